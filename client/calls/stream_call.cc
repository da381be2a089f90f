#include "client/calls/stream_call.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rope::client {
namespace {

// With the number before it the server's limit of 128 holds.
constexpr size_t kRequestIdBytesMax = 100;

// Requests of one stream in the ring: the other slots are for other calls.
constexpr int64_t kInRingMax = proto::kRingSlots / 4 * 3;

std::string WireId(uint64_t number, const std::string& request_id) {
  return request_id.empty() ? absl::StrCat(number) : absl::StrCat(number, ":", request_id);
}

// 0: none.
uint64_t NumberOf(const std::string& wire_id) {
  uint64_t number = 0;
  return absl::SimpleAtoi(absl::string_view(wire_id).substr(0, wire_id.find(':')), &number) ? number
                                                                                            : 0;
}

}  // namespace

std::shared_ptr<StreamCall> StreamCall::Open(std::shared_ptr<Connector> connector,
                                             std::shared_ptr<const Session> session,
                                             std::shared_ptr<EventQueue> queue,
                                             const StreamOptions& options) {
  auto call = std::make_shared<StreamCall>(std::move(connector), std::move(session),
                                           std::move(queue), options);
  call->rpc_ = std::make_unique<Rpc>();
  grpc::ClientContext& context = call->rpc_->context;
  if (options.timeout.has_value()) context.set_deadline(DeadlineAfter(*options.timeout));
  call->rpc_->stream = call->session_->stub.PrepareStream("/rope.v1.RopeService/RotateStream",
                                                          &context, call->queue_->queue());
  call->queue_->Add(call);
  call->rpc_->stream->StartCall(&call->started_);
  return call;
}

StreamCall::StreamCall(std::shared_ptr<Connector> connector, std::shared_ptr<const Session> session,
                       std::shared_ptr<EventQueue> queue, const StreamOptions& options)
    : connector_(std::move(connector)),
      session_(std::move(session)),
      queue_(std::move(queue)),
      watch_(session_->ring == nullptr ? nullptr : queue_->WatchOf(session_->ring)),
      options_(options) {}

Status StreamCall::Rotate(const RotateRequest& request, RotateCallback callback) {
  if (request.request_id.size() > kRequestIdBytesMax) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat("request_id: got ", request.request_id.size(),
                               " bytes, want at most ", kRequestIdBytesMax, " on a stream"));
  }
  std::unique_lock<std::mutex> lock(mu_);
  Message message{.number = next_number_++};
  lock.unlock();
  auto waiting = std::make_unique<Request>();
  waiting->request_id = WireId(message.number, request.request_id);
  waiting->callback = std::move(callback);
  Result<EncodedRotate> encoded = EncodeRotate(request, waiting->request_id, session_->region,
                                               RouteOf(*session_), waiting->borrowed);
  if (!encoded.ok()) return encoded.status();
  if (!request.request_id.empty()) waiting->request_id = request.request_id;
  message.bytes = std::move(encoded->message);
  message.ring_bytes = std::move(encoded->ring_message);
  waiting->wanted = std::move(encoded->wanted);
  waiting->staged = std::move(encoded->staged);
  waiting->region_id = std::move(encoded->region_id);
  waiting->bytes = static_cast<int64_t>(message.bytes.Valid() ? message.bytes.Length()
                                                              : message.ring_bytes.size());

  lock.lock();
  if (Status status = TakeRoom(lock, waiting->bytes); !status.ok()) {
    message.bytes.Clear();  // before the loans go
    return status;
  }
  // Within the same lock: a stream that ends from here on knows the request.
  Request& added = *unanswered_.emplace(message.number, std::move(waiting)).first->second;
  added.in_ring = !message.ring_bytes.empty();
  Send(std::move(message), std::move(lock));
  return {};
}

void StreamCall::Send(Message message, std::unique_lock<std::mutex> lock) {
  if (!message.ring_bytes.empty()) {
    ++in_ring_;
    lock.unlock();
    const auto timeout = options_.timeout.value_or(std::chrono::hours(24));
    if (watch_->Submit(message.ring_bytes, timeout, shared_from_this(), message.number)) return;
    lock.lock();
    --in_ring_;
    const auto it = unanswered_.find(message.number);
    if (it == unanswered_.end()) return;  // the stream has ended, and said so
    it->second->in_ring = false;
    message.bytes = BufferOf(message.ring_bytes);
  }
  unwritten_.push_back(std::move(message));
  StartWrite(std::move(lock));
}

Status StreamCall::Finish() {
  if (queue_->OnThread()) {
    return Status(StatusCode::kFailedPrecondition,
                  "Finish: got a call in a callback, want one on another thread");
  }
  std::unique_lock<std::mutex> lock(mu_);
  finishing_ = true;
  changed_.notify_all();
  StartWrite(std::move(lock));
  lock = std::unique_lock<std::mutex>(mu_);
  changed_.wait(lock, [this] { return over_; });
  return *ended_;
}

void StreamCall::Cancel() {
  const std::lock_guard<std::mutex> lock(mu_);
  cancelled_ = true;
  if (rpc_ != nullptr) rpc_->context.TryCancel();
}

void StreamCall::Abandon() {
  Cancel();
  if (queue_->OnThread()) return;
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [this] { return over_; });
}

void StreamCall::OnStarted(bool ok) {
  if (!ok) return rpc_->stream->Finish(&rpc_status_, &finished_);
  rpc_->stream->Read(&incoming_, &read_);
  std::unique_lock<std::mutex> lock(mu_);
  open_ = true;
  StartWrite(std::move(lock));
}

void StreamCall::OnRead(bool ok) {
  if (!ok) return rpc_->stream->Finish(&rpc_status_, &finished_);
  grpc::ByteBuffer buffer;
  buffer.Swap(&incoming_);
  rpc_->stream->Read(&incoming_, &read_);
  Match(buffer);
}

void StreamCall::OnWritten(bool ok) {
  std::unique_lock<std::mutex> lock(mu_);
  writing_ = false;
  if (!ok) open_ = false;  // the reader learns why
  StartWrite(std::move(lock));
  EndIfQuiet();
}

void StreamCall::OnFinished(bool) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ended_ = EndOfStream();
    connector_->Note(*session_, *ended_);
    // Without a word of the server's, nobody knows.
    may_have_run_ = rpc_status_.error_details().empty() || ended_->detail().executed;
    open_ = false;
    changed_.notify_all();
  }
  EndIfQuiet();
}

void StreamCall::EndIfQuiet() {
  const auto self = shared_from_this();  // the last callback lets go of the stream
  std::unique_ptr<Rpc> rpc;
  std::map<uint64_t, std::unique_ptr<Request>> unanswered;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!ended_.has_value() || writing_ || rpc_ == nullptr) return;
    rpc = std::move(rpc_);
    unanswered.swap(unanswered_);
    unwritten_.clear();
  }
  rpc.reset();  // only now it lets go of bytes that it could not send
  if (watch_ != nullptr) watch_->GiveUp(*this);
  for (auto& [number, request] : unanswered) {
    ErrorDetail detail = ended_->detail();
    detail.executed = request->in_ring || (request->sent && may_have_run_);
    Status failed(ended_->code(), ended_->message(), std::move(detail));
    if (request->sent || request->in_ring) request->staged.NoteFailure(failed);
    Deliver(std::move(request), std::move(failed));
  }
  RemoveIfOver();
}

Status StreamCall::TakeRoom(std::unique_lock<std::mutex>& lock, int64_t bytes) {
  for (;;) {
    if (ended_.has_value() && !ended_->ok()) return *ended_;
    if (ended_.has_value() || finishing_) {
      return Status(StatusCode::kFailedPrecondition,
                    "stream: got a request after its end, want an open stream");
    }
    if (HasRoom(bytes)) break;
    if (queue_->OnThread()) {
      return Status(StatusCode::kResourceExhausted,
                    absl::StrCat("stream: got ", requests_, " requests of ", bytes_,
                                 " bytes in flight, want at most ", options_.requests_max, " of ",
                                 options_.bytes_max, " with this one"));
    }
    changed_.wait(lock);
  }
  ++requests_;
  bytes_ += bytes;
  return {};
}

bool StreamCall::HasRoom(int64_t bytes) const {
  const bool in_callback = queue_->OnThread();
  const int64_t requests = requests_ - (in_callback ? credit_requests_ : 0);
  const int64_t used = bytes_ - (in_callback ? credit_bytes_ : 0);
  if (requests == 0) return true;  // whatever its size
  if (!in_callback && in_ring_ >= kInRingMax) return false;
  return requests < options_.requests_max && bytes <= options_.bytes_max - used;
}

void StreamCall::StartWrite(std::unique_lock<std::mutex> lock) {
  if (!open_ || writing_) return;
  if (unwritten_.empty()) {
    if (!finishing_ || half_closed_ || in_ring_ > 0) return;
    half_closed_ = true;
    writing_ = true;
    lock.unlock();
    return rpc_->stream->WritesDone(&written_);
  }
  const Message message = std::move(unwritten_.front());
  unwritten_.pop_front();
  if (const auto it = unanswered_.find(message.number); it != unanswered_.end()) {
    it->second->sent = true;
  }
  grpc::WriteOptions options;
  if (!unwritten_.empty()) options.set_buffer_hint();  // the next one takes it along
  writing_ = true;                                     // and so rpc_ stays
  lock.unlock();
  rpc_->stream->Write(message.bytes, options, &written_);
}

void StreamCall::Match(const grpc::ByteBuffer& buffer) {
  Result<ReceivedReply> reply = ReceivedReply::Parse(buffer);
  if (!reply.ok()) return Break(reply.status());
  const uint64_t number = NumberOf(reply->request_id());
  std::unique_lock<std::mutex> lock(mu_);
  std::unique_ptr<Request> request = TakeUnanswered(number);
  lock.unlock();
  if (request != nullptr) return Deliver(std::move(request), std::move(reply));
  Break(Status(StatusCode::kInternal,
               absl::StrCat("reply: got request_id '", reply->request_id(), "' (",
                            reply->error().ToString(), "), want that of an unanswered request")));
}

std::unique_ptr<StreamCall::Request> StreamCall::TakeUnanswered(uint64_t number) {
  auto it = unanswered_.find(number);
  // A request of which the server could not even read the id.
  if (number == 0 && unanswered_.size() == 1) it = unanswered_.begin();
  if (it == unanswered_.end()) return nullptr;
  std::unique_ptr<Request> request = std::move(it->second);
  unanswered_.erase(it);
  return request;
}

void StreamCall::OnAnswer(uint64_t number, Result<ReceivedReply> reply) {
  const auto self = shared_from_this();  // the last callback lets go of the stream
  std::unique_lock<std::mutex> lock(mu_);
  --in_ring_;
  std::unique_ptr<Request> request = TakeUnanswered(number);
  lock.unlock();
  if (request != nullptr) RunCallback(*request, reply);  // nothing was lent
  lock.lock();
  StartWrite(std::move(lock));  // the end of this side may have waited for it
}

void StreamCall::OnLost() {
  Break(Status(StatusCode::kUnavailable, "ring: the connection was lost",
               ErrorDetail{.executed = true}));
}

void StreamCall::Break(Status status) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (!broken_.has_value()) broken_ = std::move(status);
  if (rpc_ != nullptr) rpc_->context.TryCancel();
}

Status StreamCall::EndOfStream() const {
  if (broken_.has_value()) return *broken_;
  if (rpc_status_.ok() && unanswered_.empty()) return {};
  if (rpc_status_.ok()) {
    return Status(StatusCode::kUnavailable,
                  absl::StrCat("stream: got its end with ", unanswered_.size(),
                               " requests unanswered, want an answer to each"));
  }
  if (cancelled_) return Status(StatusCode::kCancelled, "cancelled by the caller");
  return ToStatus(rpc_status_, rpc_->context);
}

void StreamCall::Deliver(std::unique_ptr<Request> request, Result<ReceivedReply> reply) {
  struct Answer {
    std::unique_ptr<Request> request;
    Result<ReceivedReply> reply;
  };
  const auto answer = std::make_shared<Answer>(Answer{std::move(request), std::move(reply)});
  queue_->WhenReturned(answer->request->borrowed,
                       [this, answer] { RunCallback(*answer->request, answer->reply); });
}

void StreamCall::RunCallback(Request& request, const Result<ReceivedReply>& reply) {
  const auto self = shared_from_this();
  {
    if (reply.ok()) connector_->Note(*session_, reply->error());
    Result<RotateReply> result =
        reply.ok() ? reply->ToReply(std::move(request.wanted), connector_->outputs())
                   : Result<RotateReply>(reply.status());
    if (result.ok()) result->request_id = request.request_id;
    credit_requests_ = 1;
    credit_bytes_ = request.bytes;
    const RotateCallback callback = std::move(request.callback);
    callback(std::move(result));
  }
  credit_requests_ = 0;
  credit_bytes_ = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    --requests_;
    bytes_ -= request.bytes;
    changed_.notify_all();
  }
  RemoveIfOver();
}

void StreamCall::RemoveIfOver() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (over_ || !ended_.has_value() || rpc_ != nullptr || requests_ > 0) return;
    over_ = true;
    changed_.notify_all();
  }
  queue_->Remove(this);
}

RotateStream::RotateStream(std::shared_ptr<StreamCall> call) : call_(std::move(call)) {}

RotateStream& RotateStream::operator=(RotateStream&& other) noexcept {
  if (this != &other) {
    if (call_ != nullptr) call_->Abandon();
    call_ = std::move(other.call_);
  }
  return *this;
}

RotateStream::~RotateStream() {
  if (call_ != nullptr) call_->Abandon();
}

Status RotateStream::Rotate(const RotateRequest& request, RotateCallback callback) {
  return call_->Rotate(request, std::move(callback));
}

std::future<Result<RotateReply>> RotateStream::RotateFuture(const RotateRequest& request) {
  auto promise = std::make_shared<std::promise<Result<RotateReply>>>();
  const Status status = call_->Rotate(
      request, [promise](Result<RotateReply> reply) { promise->set_value(std::move(reply)); });
  if (!status.ok()) promise->set_value(status);
  return promise->get_future();
}

Status RotateStream::Finish() {
  return call_->Finish();
}

void RotateStream::Cancel() {
  call_->Cancel();
}

}  // namespace rope::client
