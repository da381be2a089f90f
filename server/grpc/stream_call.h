// StreamCall: one bidirectional RPC with bytes in and bytes out, from being armed to being freed.
// Every message is answered once, in the order in which answers come; the stream outlives errors.
//
//   armed -> received: arms its successor, reads
//   read -> the handler gets the message; the next is read while few enough bytes are unanswered
//   Answer (any thread, once for each message) -> written, one after the other
//   the client closed its side, or Drain: no more reads; when all is answered and written: finished
//
// Threading:  Steps run on the queue's thread; Answer and Drain may be called from any.
// Ownership:  Owns itself from Arm on, until gRPC is done with it and every message is answered.
// Errors:     The stream ends OK when its client has closed and all is answered, and UNAVAILABLE
//             after Drain. Messages that are not answered when the client goes are answered into
//             nothing.
// Limits:     While `unanswered_bytes_max` bytes or `unanswered_max` messages are not answered and
//             taken by the client, nothing more is read: a client that does not read its answers
//             holds up itself. Under pressure of memory EndRead ends a stream that may be in the
//             middle of a message.
#ifndef ROPE_SERVER_GRPC_STREAM_CALL_H_
#define ROPE_SERVER_GRPC_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/unary_call.h"

namespace rope::server {

class StreamCall;

// The streams that are open, so that they can be drained.
//
// Threading:  Thread-safe.
class OpenStreams {
 public:
  int64_t count() const;
  // Drains those that are open and those that will be opened.
  void Drain();

 private:
  friend class StreamCall;
  void Add(StreamCall& stream);
  void Remove(StreamCall& stream);

  mutable proto::Mutex mutex_;
  std::set<StreamCall*> streams_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

class StreamCall final : private Receiving::Read {
 public:
  // Asks gRPC for the next call of the method.
  using Request = std::function<void(grpc::ServerContext*, RawStream*, grpc::ServerCompletionQueue*,
                                     void* tag)>;
  // Must lead to one Answer, now or later, on any thread.
  using Handler = std::function<void(StreamCall&, grpc::ByteBuffer& message)>;

  // A method as the server serves it; outlives its calls.
  struct Method {
    Request request;
    Handler handler;
    CallsInFlight* in_flight = nullptr;
    Receiving* receiving = nullptr;
    OpenStreams* open = nullptr;
    int64_t unanswered_bytes_max = 0;
    int64_t unanswered_max = 0;
  };

  // Waits for one call of `method` on `queue`, and for the next when it has come.
  static void Arm(const Method& method, grpc::ServerCompletionQueue& queue);

  // The connection: the same for all its messages.
  uint64_t session() const { return session_; }
  // Until the client gives up.
  absl::Duration time_left() const { return TimeLeft(context_); }
  // True once the client has gone or given up; safe to read after the call was freed.
  const std::shared_ptr<std::atomic<bool>>& cancelled() const { return cancelled_; }

  // Answers a message of `message_bytes` bytes and takes the bytes of `reply`. Nothing of the call
  // may be touched afterwards. `permit` goes when the client has taken the reply, or has gone.
  void Answer(grpc::ByteBuffer& reply, int64_t message_bytes, Permit permit);

  // Reads no more, answers what was read, and ends with UNAVAILABLE.
  void Drain();

 private:
  struct Reply {
    grpc::ByteBuffer bytes;
    int64_t held_bytes = 0;  // of the message or of the reply, whichever is more
    Permit permit;
  };

  StreamCall(const Method& method, grpc::ServerCompletionQueue& queue)
      : Receiving::Read(/*may_idle=*/true), method_(method), queue_(queue), stream_(&context_) {}

  void EndRead(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);
  void AbortRead() override { context_.TryCancel(); }
  void Retain() override ABSL_LOCKS_EXCLUDED(mutex_);
  void Release() override ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReceived(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnDone(bool ok);

  // Starts whatever the state allows: a read, a write, the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers that are there at the same time go to the socket together. REQUIRES: there is one.
  void StartWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the answers that nobody will read, but not the one that is being written.
  void DropReplies() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether every step has come back and every answer was given. True once.
  bool IsFree() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Free() ABSL_LOCKS_EXCLUDED(mutex_);

  const Method& method_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  RawStream stream_;
  uint64_t session_ = 0;  // set when it is received
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);

  proto::Mutex mutex_;
  grpc::ByteBuffer message_;                           // being read
  std::deque<Reply> replies_ ABSL_GUARDED_BY(mutex_);  // writing_: the first is being written
  int64_t unanswered_ ABSL_GUARDED_BY(mutex_) = 0;     // messages that the handler still owes
  int64_t held_ ABSL_GUARDED_BY(mutex_) = 0;           // messages not answered or not written yet
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_written_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t joined_ ABSL_GUARDED_BY(mutex_) = 0;        // answers written, but perhaps not sent yet
  int64_t joined_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // written, but perhaps not sent yet
  int retained_ ABSL_GUARDED_BY(mutex_) = 0;          // by who is about to end its read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // by the client: nothing more to read
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // nobody reads answers any more
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_seen_ ABSL_GUARDED_BY(mutex_) = false;

  CallEvent<StreamCall> received_{this, &StreamCall::OnReceived};
  CallEvent<StreamCall> read_{this, &StreamCall::OnRead};
  CallEvent<StreamCall> written_{this, &StreamCall::OnWritten};
  CallEvent<StreamCall> ended_{this, &StreamCall::OnFinished};
  CallEvent<StreamCall> done_{this, &StreamCall::OnDone};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_STREAM_CALL_H_
