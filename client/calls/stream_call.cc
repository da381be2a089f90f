#include "client/calls/stream_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/prepare_call.h"
#include "client/error.h"

namespace rope::client {
namespace {

// Requests of streams in the ring: a quarter of the slots stays free for synchronous calls.
constexpr int64_t kInRingMax = proto::kRingSlots / 4 * 3;

// The error of an unanswered request of a stream that ended with `ended`.
Status ErrorOfRequest(const Status& ended, bool may_have_executed) {
  ErrorDetail detail = ended.detail();
  detail.may_have_executed = may_have_executed;
  return {ended.code(), ended.message(), std::move(detail)};
}

}  // namespace

std::shared_ptr<StreamCall> StreamCall::Open(std::shared_ptr<Connector> connector,
                                             std::shared_ptr<const Session> session,
                                             std::shared_ptr<EventQueue> queue,
                                             const StreamOptions& options) {
  auto call = std::make_shared<StreamCall>(std::move(connector), std::move(session),
                                           std::move(queue), options);
  auto rpc = std::make_unique<Rpc>();
  if (options.timeout.has_value()) rpc->context.set_deadline(DeadlineAfter(*options.timeout));
  rpc->stream = call->session_->stub.PrepareStream("/rope.v1.RopeService/RotateStream",
                                                   &rpc->context, call->queue_->queue());
  call->stream_ = rpc->stream.get();
  {
    const proto::MutexLock lock(&call->mu_);
    call->rpc_ = std::move(rpc);
  }
  call->queue_->Add(call);
  call->stream_->StartCall(&call->started_);
  return call;
}

StreamCall::StreamCall(std::shared_ptr<Connector> connector, std::shared_ptr<const Session> session,
                       std::shared_ptr<EventQueue> queue, const StreamOptions& options)
    : connector_(std::move(connector)),
      session_(std::move(session)),
      queue_(std::move(queue)),
      watch_(session_->ring == nullptr ? nullptr : queue_->WatchOf(session_->ring)),
      options_(options) {}

// mu_ is held twice, briefly: to take a number, and from TakeRoom to Send. Encoding copies or
// borrows the tensors and runs without the lock, so that several threads can encode at once.
Status StreamCall::Rotate(const RotateRequest& request, RotateCallback callback,
                          uint64_t* sequence) {
  const uint64_t number = NewSequence();
  if (sequence != nullptr) *sequence = number;
  auto waiting = std::make_unique<Request>();
  waiting->callback = std::move(callback);
  waiting->use = session_->prepared->UseOf(request);
  Result<Message> message = Encode(request, number, *waiting);
  if (!message.ok()) return message.status();
  if (waiting->use.id != nullptr) waiting->values.emplace(request);
  {
    const proto::MutexLock lock(&mu_);
    if (Status status = ReserveRoom(waiting->bytes); !status.ok()) {
      message->bytes.Clear();  // its slices refer to `waiting->borrowed`, which is destroyed first
      return status;
    }
    // Under the same lock: if the stream ends from here on, it finds the request.
    AddUnanswered(*message, std::move(waiting));
  }
  Send(*std::move(message));
  return {};
}

Result<StreamCall::Message> StreamCall::Encode(const RotateRequest& request, uint64_t sequence,
                                               Request& waiting) const {
  Result<EncodedRotate> encoded =
      EncodeRotate(request, waiting.use, session_->region, RouteOf(*session_), waiting.borrowed);
  if (!encoded.ok()) return encoded.status();
  Message message{.sequence = sequence};
  if (encoded->ring_message.empty()) {
    message.bytes = StreamMessageOf(sequence, encoded->message);
    encoded->message.Clear();
  }
  message.ring_bytes = std::move(encoded->ring_message);
  waiting.wanted = std::move(encoded->wanted);
  waiting.staged = std::move(encoded->staged);
  waiting.region_id = std::move(encoded->region_id);
  waiting.bytes = static_cast<int64_t>(message.bytes.Valid() ? message.bytes.Length()
                                                             : message.ring_bytes.size());
  return message;
}

void StreamCall::AddUnanswered(const Message& message, std::unique_ptr<Request> request) {
  request->sent = false;
  request->in_ring = !message.ring_bytes.empty();
  if (request->in_ring) ++in_ring_;
  if (request->use.id != nullptr) ++by_id_;
  unanswered_.emplace(message.sequence, std::move(request));
}

// Runs in the queue's turn, so it must not wait for room: the request keeps what it has, and may
// exceed bytes_max by what the whole request is longer. by_id_ still counts it, so the stream is
// not half-closed; it may have ended.
void StreamCall::SendWhole(uint64_t sequence, std::unique_ptr<Request> request) {
  session_->prepared->NoteForgotten(request->use);
  const RotateRequest whole = request->use.preparation->With(*request->values);
  request->use = {.preparation = std::move(request->use.preparation)};
  const int64_t bytes = request->bytes;
  Result<Message> message = Encode(whole, sequence, *request);
  Status failed = message.status();
  {
    const proto::MutexLock lock(&mu_);
    --by_id_;
    bytes_ += request->bytes - bytes;
    if (message.ok() && ended_.has_value()) {
      message->bytes.Clear();  // its slices refer to `request->borrowed`
      failed = ErrorOfRequest(*ended_, /*may_have_executed=*/false);
    } else if (message.ok()) {
      AddUnanswered(*message, std::move(request));
    }
  }
  if (request != nullptr) return Deliver(std::move(request), failed);
  Send(*std::move(message));
}

uint64_t StreamCall::NewSequence() {
  const proto::MutexLock lock(&mu_);
  return next_sequence_++;
}

// The ring is tried first, without mu_: RingWatch has its own lock, and the reply may arrive before
// Submit returns. If the ring refuses (no free slot, or lost), the request goes to the RPC.
void StreamCall::Send(Message message) {
  const bool for_ring = !message.ring_bytes.empty();
  const auto timeout = options_.timeout.value_or(std::chrono::hours(24));
  if (for_ring &&
      watch_->Submit(message.ring_bytes, timeout, shared_from_this(), message.sequence)) {
    return;
  }
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    if (for_ring) {
      --in_ring_;
      const auto it = unanswered_.find(message.sequence);
      if (it == unanswered_.end()) return;  // the stream has failed the request
      it->second->in_ring = false;
      message.bytes = StreamMessageOf(message.sequence, BufferOf(message.ring_bytes));
    }
    unwritten_.push_back(std::move(message));
    write = NextWrite();
  }
  Start(std::move(write));
}

Status StreamCall::Finish() {
  if (queue_->OnThread()) {
    return MakeError(Reason::kWrongState, "Finish", "a call in a callback",
                     "one on another thread");
  }
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    finishing_ = true;
    changed_.SignalAll();
    write = NextWrite();
  }
  Start(std::move(write));
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
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    const auto it = unanswered_.find(sequence);
    if (it == unanswered_.end() || it->second->in_ring || half_closed_ || ended_.has_value())
      return;
    unwritten_.push_back({.bytes = StreamCancelOf(sequence)});
    write = NextWrite();
  }
  Start(std::move(write));
}

void StreamCall::Abandon() {
  Cancel();
  if (queue_->OnThread()) return;
  const proto::MutexLock lock(&mu_);
  while (!over_) changed_.Wait(&mu_);
}

// Events of the RPC run on the queue's thread, one at a time, so incoming_ and rpc_status_ need no
// lock. One Read is outstanding until it fails; then Finish asks for the status.
void StreamCall::OnStarted(bool ok) {
  if (!ok) return stream_->Finish(&rpc_status_, &finished_);
  stream_->Read(&incoming_, &read_);
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    open_ = true;
    write = NextWrite();
  }
  Start(std::move(write));
}

void StreamCall::OnRead(bool ok) {
  if (!ok) return stream_->Finish(&rpc_status_, &finished_);
  grpc::ByteBuffer buffer;
  buffer.Swap(&incoming_);
  stream_->Read(&incoming_, &read_);
  Match(buffer);
}

void StreamCall::OnWritten(bool ok) {
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) open_ = false;  // OnRead fails too, and OnFinished gets the reason
    write = NextWrite();
  }
  Start(std::move(write));
  EndIfQuiet();
}

void StreamCall::OnFinished(bool) {
  {
    const proto::MutexLock lock(&mu_);
    ended_ = EndOfStream();
    connector_->Note(*session_, *ended_);
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
  if (watch_ != nullptr) watch_->GiveUp(*this);
  for (auto& [sequence, request] : unanswered) {
    const bool may_have_executed = request->in_ring || (request->sent && may_have_run);
    Status failed = ErrorOfRequest(ended, may_have_executed);
    if (request->sent || request->in_ring) request->staged.NoteFailure(failed);
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
    if (queue_->OnThread()) {
      return MakeError(Reason::kQueueFull, "stream",
                       absl::StrCat(requests_, " requests of ", bytes_, " bytes in flight"),
                       absl::StrCat("at most ", options_.requests_max, " of ", options_.bytes_max,
                                    " with this one"));
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
  if (requests == 0) return true;  // a single request may exceed bytes_max
  if (!in_callback && in_ring_ >= kInRingMax) return false;
  return requests < options_.requests_max && bytes <= options_.bytes_max - used;
}

// One write at a time: writing_ is set here, and OnWritten clears it and asks for the next. While
// writing_ is set, EndIfQuiet leaves rpc_ alone, so Start may use it without mu_.
StreamCall::Write StreamCall::NextWrite() {
  Write write;
  if (!open_ || writing_) return write;
  if (unwritten_.empty()) {
    if (!finishing_ || half_closed_ || in_ring_ > 0 || by_id_ > 0) return write;
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

void StreamCall::Start(Write write) {
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
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    request = RemoveUnanswered(sequence);
    if (request != nullptr && request->use.id != nullptr && !is_forgotten) {
      --by_id_;
      write = NextWrite();
    }
  }
  Start(std::move(write));
  if (request != nullptr && request->use.id != nullptr && is_forgotten) {
    return SendWhole(sequence, std::move(request));
  }
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

// Runs on the watch's thread, in the queue's turn, without mu_.
void StreamCall::OnAnswer(uint64_t sequence, Result<ReceivedReply> reply) {
  const auto self = shared_from_this();  // the last callback may drop the last other reference
  const bool is_forgotten = reply.ok() && IsForgotten(reply->error());
  std::unique_ptr<Request> request;
  bool is_by_id = false;
  {
    const proto::MutexLock lock(&mu_);
    --in_ring_;
    request = RemoveUnanswered(sequence);
    is_by_id = request != nullptr && request->use.id != nullptr;
    if (is_by_id && !is_forgotten) --by_id_;
  }
  if (is_by_id && is_forgotten) {
    SendWhole(sequence, std::move(request));
  } else if (request != nullptr) {
    RunCallback(*request, reply);  // the ring borrows no memory
  }
  Write write;
  {
    const proto::MutexLock lock(&mu_);
    write = NextWrite();  // the half-close waits until the ring is empty
  }
  Start(std::move(write));
}

void StreamCall::OnLost() {
  Break(MakeError(Reason::kConnectionLost, "ring: the connection was lost", true));
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
  if (cancelled_) return MakeError(Reason::kCancelled, "cancelled by the caller");
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

// Runs in the queue's turn, without mu_, so the callback may call Rotate or Cancel. The callback
// is destroyed before the room is freed: it may hold the last copy of the client.
void StreamCall::RunCallback(Request& request, const Result<ReceivedReply>& reply) {
  const auto self = shared_from_this();
  {
    if (reply.ok()) connector_->Note(*session_, reply->error());
    if (reply.ok() && reply->error().ok()) StartPrepare(session_, queue_, request.use);
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
