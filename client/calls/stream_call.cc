#include "client/calls/stream_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/prepare_call.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "client/transport/waiter.h"

namespace rope::client {

Status CheckStreamOptions(const StreamOptions& options) {
  if (options.requests_max > 0 && options.bytes_max > 0) return CheckMetadata(options.metadata);
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("requests_max, bytes_max: got ", options.requests_max, " and ",
                             options.bytes_max, ", want more than 0"));
}

Status StreamIsFull(const StreamOptions& options, int64_t requests, int64_t bytes) {
  return MakeError(
      Reason::kQueueFull, "stream",
      absl::StrCat(requests, " requests of ", bytes, " bytes in flight"),
      absl::StrCat("at most ", options.requests_max, " of ", options.bytes_max, " with this one"));
}
namespace {

// The error of an unanswered request of a stream that ended with `ended`.
Status ErrorOfRequest(const Status& ended, bool may_have_executed) {
  ErrorDetail detail = ended.detail();
  detail.may_have_executed = may_have_executed;
  return {ended.code(), ended.message(), std::move(detail)};
}

}  // namespace

StreamCall::StreamCall(std::shared_ptr<Connector> connector, std::shared_ptr<const Link> link,
                       std::shared_ptr<EventQueue> queue, const StreamOptions& options)
    : connector_(std::move(connector)),
      link_(std::move(link)),
      queue_(std::move(queue)),
      options_(options) {}

void StreamCall::Start() {
  auto rpc = std::make_unique<Rpc>();
  if (options_.timeout.has_value()) {
    rpc->context.set_deadline(DeadlineAfter(BoundedTimeout(*options_.timeout)));
  }
  AddMetadata(options_.metadata, rpc->context);
  rpc->stream =
      link_->stub.PrepareStream(RopeMethod("RotateStream"), &rpc->context, queue_->queue());
  stream_ = rpc->stream.get();
  {
    const proto::MutexLock lock(&mu_);
    rpc_ = std::move(rpc);
  }
  queue_->Add(shared_from_this());
  stream_->StartCall(&started_);
}

// mu_ is held twice, briefly: to take a number, and from ReserveRoom to Enqueue. Encoding copies or
// borrows the tensors and runs without the lock, so that several threads can encode at once.
Status StreamCall::Rotate(const RotateRequest& request, RotateCallback callback,
                          uint64_t* sequence) {
  const uint64_t number = NewSequence();
  if (sequence != nullptr) *sequence = number;
  auto waiting = std::make_unique<Request>();
  waiting->callback = std::move(callback);
  Result<Message> message = MessageOf(
      EncodeRotate(request, link_->region, Route::kRpc, waiting->borrowed), number, *waiting);
  if (!message.ok()) return message.status();
  if (request.prepared.has_value()) {
    waiting->by_id = std::make_unique<const RotateRequest>(request);
  }
  {
    const proto::MutexLock lock(&mu_);
    if (Status status = ReserveRoom(waiting->bytes); !status.ok()) return status;
    Enqueue(*std::move(message), std::move(waiting));
  }
  WriteNext();
  return {};
}

Result<StreamCall::Message> StreamCall::MessageOf(Result<EncodedRotate> encoded, uint64_t sequence,
                                                  Request& waiting) {
  if (!encoded.ok()) return encoded.status();
  Message message{.sequence = sequence, .bytes = StreamMessageOf(sequence, encoded->message)};
  encoded->message.Clear();
  waiting.wanted = std::move(encoded->wanted);
  waiting.staged = std::move(encoded->staged);
  waiting.region_id = std::move(encoded->region_id);
  waiting.bytes = static_cast<int64_t>(message.bytes.Length());
  return message;
}

// Under one lock: an end, a half-close or a cancellation of the request sees both or neither.
void StreamCall::Enqueue(Message message, std::unique_ptr<Request> request) {
  request->sent = false;
  if (request->by_id != nullptr) ++by_id_;
  unanswered_.emplace(message.sequence, std::move(request));
  unwritten_.push_back(std::move(message));
}

// Runs on the queue's thread, so it must not wait for room: the request keeps what it has, and may
// exceed bytes_max by what the whole request is longer. by_id_ still counts it, so the stream is
// not half-closed; it may have ended.
void StreamCall::SendWhole(uint64_t sequence, std::unique_ptr<Request> request) {
  const std::unique_ptr<const RotateRequest> by_id = std::move(request->by_id);
  StartPrepareAgain(link_, queue_, *by_id->prepared, options_.metadata, [] { return 1.0; });
  const int64_t bytes = request->bytes;
  Result<Message> message = MessageOf(
      EncodeWhole(*by_id, link_->region, Route::kRpc, request->borrowed), sequence, *request);
  {
    const proto::MutexLock lock(&mu_);
    --by_id_;
    bytes_ += request->bytes - bytes;
    if (message.ok() && ended_.has_value()) {
      message = ErrorOfRequest(*ended_, /*may_have_executed=*/false);
    } else if (message.ok()) {
      Enqueue(*std::move(message), std::move(request));
    }
  }
  WriteNext();  // the half-close, if the request failed and nothing else is left
  if (request != nullptr) Deliver(std::move(request), message.status());
}

uint64_t StreamCall::NewSequence() {
  const proto::MutexLock lock(&mu_);
  return next_sequence_++;
}

Status StreamCall::Finish() {
  if (queue_->OnCallbackThread()) {
    return InCallback("Finish");
  }
  {
    const proto::MutexLock lock(&mu_);
    finishing_ = true;
    changed_.SignalAll();
  }
  WriteNext();
  const proto::MutexLock lock(&mu_);
  while (!over_) changed_.Wait(&mu_);
  return *ended_;
}

void StreamCall::Cancel() {
  const proto::MutexLock lock(&mu_);
  cancelled_ = true;
  if (rpc_ != nullptr) rpc_->context.TryCancel();
}

// The message follows the request's own, if that is still unwritten.
void StreamCall::CancelRequest(uint64_t sequence) {
  {
    const proto::MutexLock lock(&mu_);
    if (!unanswered_.contains(sequence) || half_closed_ || ended_.has_value()) return;
    unwritten_.push_back({.bytes = StreamCancelOf(sequence)});
  }
  WriteNext();
}

void StreamCall::Abandon() {
  Cancel();
  if (queue_->OnCallbackThread()) return;
  const proto::MutexLock lock(&mu_);
  while (!over_) changed_.Wait(&mu_);
}

// Events of the RPC run on the queue's thread, one at a time, so incoming_ and rpc_status_ need no
// lock. One Read is outstanding until it fails; then Finish asks for the status.
void StreamCall::OnStarted(bool ok) {
  if (!ok) return stream_->Finish(&rpc_status_, &finished_);
  stream_->Read(&incoming_, &read_);
  {
    const proto::MutexLock lock(&mu_);
    open_ = true;
  }
  WriteNext();
}

void StreamCall::OnRead(bool ok) {
  if (!ok) return stream_->Finish(&rpc_status_, &finished_);
  grpc::ByteBuffer buffer;
  buffer.Swap(&incoming_);
  stream_->Read(&incoming_, &read_);
  Match(buffer);
}

void StreamCall::OnWritten(bool ok) {
  {
    const proto::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) open_ = false;  // OnRead fails too, and OnFinished gets the reason
  }
  WriteNext();
  EndIfQuiet();
}

void StreamCall::OnFinished(bool) {
  {
    const proto::MutexLock lock(&mu_);
    ended_ = EndOfStream();
    connector_->Note(*link_, *ended_);
    // Only the server's error detail can prove that the unanswered requests did not run.
    may_have_run_ = rpc_status_.error_details().empty() || ended_->detail().may_have_executed;
    open_ = false;
    changed_.SignalAll();
  }
  EndIfQuiet();
}

// Called after OnFinished and each OnWritten. The last of them finds ended_ set and no write under
// way; it takes rpc_ and the unanswered requests out under mu_ and delivers them without the lock.
void StreamCall::EndIfQuiet() {
  const auto self = shared_from_this();  // the last callback may drop the last other reference
  std::unique_ptr<Rpc> rpc;
  std::map<uint64_t, std::unique_ptr<Request>> unanswered;
  Status ended;
  bool may_have_run = true;
  {
    const proto::MutexLock lock(&mu_);
    if (!ended_.has_value() || writing_ || rpc_ == nullptr) return;
    ended = *ended_;
    may_have_run = may_have_run_;
    rpc = std::move(rpc_);
    unanswered.swap(unanswered_);
    unwritten_.clear();
  }
  rpc.reset();  // makes gRPC return the slices that it could not send
  for (auto& [sequence, request] : unanswered) {
    Status failed = ErrorOfRequest(ended, request->sent && may_have_run);
    if (request->sent) request->staged.NoteFailure(failed);
    Deliver(std::move(request), std::move(failed));
  }
  RemoveIfOver();
}

// Waits on changed_, which releases mu_. On the queue's thread it fails instead: room becomes free
// only when callbacks run on that thread, so waiting there would deadlock.
Status StreamCall::ReserveRoom(int64_t bytes) {
  for (;;) {
    if (ended_.has_value() && !ended_->ok()) return *ended_;
    if (ended_.has_value() || finishing_) {
      return MakeError(Reason::kWrongState, "stream", "a request after its end", "an open stream");
    }
    if (HasRoom(bytes)) break;
    if (queue_->OnCallbackThread()) {
      return StreamIsFull(options_, requests_, bytes_);
    }
    changed_.Wait(&mu_);
  }
  ++requests_;
  bytes_ += bytes;
  return {};
}

// A callback may use the room of the request that it answers (credit_): its request counts until
// the callback returns, and with requests_max = 1 a callback could otherwise send nothing.
bool StreamCall::HasRoom(int64_t bytes) const {
  const bool in_callback = queue_->OnThread();
  const int64_t requests = requests_ - (in_callback ? credit_requests_ : 0);
  const int64_t used = bytes_ - (in_callback ? credit_bytes_ : 0);
  return HasRoomFor(bytes, requests, used, options_);
}

// One write at a time: writing_ is set here, and OnWritten clears it and asks for the next. While
// writing_ is set, EndIfQuiet leaves rpc_ alone, so WriteNext may use it without mu_.
StreamCall::Write StreamCall::NextWrite() {
  Write write;
  if (!open_ || writing_) return write;
  if (unwritten_.empty()) {
    if (!finishing_ || half_closed_ || by_id_ > 0) return write;
    half_closed_ = true;
    write.kind = Write::Kind::kHalfClose;
  } else {
    const Message message = std::move(unwritten_.front());
    unwritten_.pop_front();
    if (const auto it = unanswered_.find(message.sequence); it != unanswered_.end()) {
      it->second->sent = true;
    }
    write.kind = Write::Kind::kMessage;
    write.bytes = message.bytes;
    if (!unwritten_.empty()) write.options.set_buffer_hint();  // gRPC combines both
  }
  writing_ = true;
  return write;
}

void StreamCall::WriteNext() {
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    write = NextWrite();
  }
  switch (write.kind) {
    case Write::Kind::kNone:
      return;
    case Write::Kind::kMessage:
      return stream_->Write(write.bytes, write.options, &written_);
    case Write::Kind::kHalfClose:
      return stream_->WritesDone(&written_);
  }
}

void StreamCall::Match(const grpc::ByteBuffer& buffer) {
  uint64_t sequence = 0;
  Result<ReceivedReply> reply = ReceivedReply::ParseStream(buffer, sequence);
  if (!reply.ok()) return Break(reply.status());
  const bool is_forgotten = IsForgotten(reply->error());
  std::unique_ptr<Request> request;
  bool is_by_id = false;
  {
    const proto::MutexLock lock(&mu_);
    request = RemoveUnanswered(sequence);
    is_by_id = request != nullptr && request->by_id != nullptr;
    if (is_by_id && !is_forgotten) --by_id_;
  }
  if (is_by_id && is_forgotten) return SendWhole(sequence, std::move(request));
  if (is_by_id) WriteNext();  // the half-close may have waited for this reply
  if (request != nullptr) return Deliver(std::move(request), std::move(reply));
  Break(MakeError(Reason::kInternal, "reply",
                  absl::StrCat("sequence ", sequence, " (", reply->error().ToString(), ")"),
                  "that of an unanswered request"));
}

std::unique_ptr<StreamCall::Request> StreamCall::RemoveUnanswered(uint64_t sequence) {
  auto it = unanswered_.find(sequence);
  // 0: the server could not read the number. With one request in flight it must be that one.
  if (sequence == 0 && unanswered_.size() == 1) it = unanswered_.begin();
  if (it == unanswered_.end()) return nullptr;
  std::unique_ptr<Request> request = std::move(it->second);
  unanswered_.erase(it);
  return request;
}

void StreamCall::Break(Status status) {
  const proto::MutexLock lock(&mu_);
  if (!broken_.has_value()) broken_ = std::move(status);
  if (rpc_ != nullptr) rpc_->context.TryCancel();
}

Status StreamCall::EndOfStream() const {
  if (broken_.has_value()) return *broken_;
  if (rpc_status_.ok() && unanswered_.empty()) return {};
  if (rpc_status_.ok()) {
    return MakeError(Reason::kConnectionLost, "stream",
                     absl::StrCat("its end with ", unanswered_.size(), " requests unanswered"),
                     "an answer to each");
  }
  if (cancelled_) return CancelledByCaller(/*may_have_executed=*/false);
  return ToStatus(rpc_status_, rpc_->context);
}

// gRPC may still hold slices of the request: WhenReturned postpones the callback until it holds
// none. The request keeps its room meanwhile, so the stream is not over and `this` stays valid.
void StreamCall::Deliver(std::unique_ptr<Request> request, Result<ReceivedReply> reply) {
  struct Answer {
    std::unique_ptr<Request> request;
    Result<ReceivedReply> reply;
  };
  const auto answer = std::make_shared<Answer>(Answer{std::move(request), std::move(reply)});
  queue_->WhenReturned(answer->request->borrowed,
                       [this, answer] { RunCallback(*answer->request, answer->reply); });
}

// Runs on the queue's thread, without mu_, so the callback may call Rotate or Cancel. The callback
// is destroyed before the room is freed: it may hold the last copy of the client.
void StreamCall::RunCallback(Request& request, const Result<ReceivedReply>& reply) {
  const auto self = shared_from_this();
  {
    if (reply.ok()) connector_->Note(*link_, reply->error());
    Result<RotateReply> result =
        reply.ok() ? reply->ToReply(std::move(request.wanted), connector_->outputs())
                   : Result<RotateReply>(reply.status());
    credit_requests_ = 1;
    credit_bytes_ = request.bytes;
    const RotateCallback callback = std::move(request.callback);
    callback(std::move(result));
  }
  credit_requests_ = 0;
  credit_bytes_ = 0;
  {
    const proto::MutexLock lock(&mu_);
    --requests_;
    bytes_ -= request.bytes;
    changed_.SignalAll();
  }
  RemoveIfOver();
}

void StreamCall::RemoveIfOver() {
  {
    const proto::MutexLock lock(&mu_);
    if (over_ || !ended_.has_value() || rpc_ != nullptr || requests_ > 0) return;
    over_ = true;
    changed_.SignalAll();
  }
  queue_->Remove(this);
}

}  // namespace rope::client
