// StreamCall: one bidirectional RPC with bytes in and bytes out, from being armed to being freed.
// Every message gets one answer, in the order in which answers become ready, or is dropped. An
// error in one message does not end the stream.
//
//   arrived -> reads
//   read -> the handler gets the message; the next is read while few enough bytes are unanswered,
//           after a look at the sockets if the queue has had many events
//   Answer or Drop (any thread, once for each message) -> answers are written, one after the other
//   the client closed its side, or Drain: no more reads; when all is answered and written: finished
//
// Threading:  Steps run on the queue's thread; all public functions may run on any.
// Ownership:  Owns itself from Arm on, until gRPC is done with it and every message is answered.
// Errors:     The stream ends OK when its client has closed and all messages are answered, and
//             UNAVAILABLE after Drain. Answers for a client that has gone are dropped.
// Limits:     Flow control: while 64 MiB or 1024 messages are not answered and taken by the client,
//             or 64 errors are not taken, the stream reads no more. A client that does not read its
//             answers delays only itself.
#ifndef ROPE_SERVER_GRPC_STREAM_CALL_H_
#define ROPE_SERVER_GRPC_STREAM_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "proto/mutex.h"
#include "server/clients/account.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"

namespace rope::server {

class StreamCall;

// The set of open streams, which the server drains.
//
// Threading:  Thread-safe.
class OpenStreams {
 public:
  int64_t count() const;
  // Drains all open streams, and every stream that opens later.
  void Drain();

 private:
  friend class StreamCall;
  void Add(StreamCall& stream);
  void Remove(StreamCall& stream);

  mutable proto::Mutex mutex_;
  std::set<StreamCall*> streams_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

class StreamCall final : public QueueCall {
 public:
  // Must lead to one Answer or Drop, now or later, on any thread.
  using Handler = std::function<void(StreamCall&, grpc::ByteBuffer& message)>;

  struct Method : QueueCall::Method {
    Handler handler;
    OpenStreams* open = nullptr;
  };

  // Tracks a request under the client's number, and gives it a flag that becomes true when the
  // client cancels the request or has gone. False: a request that has not ended has the number.
  bool BeginRequest(uint64_t sequence, std::shared_ptr<std::atomic<bool>>& cancelled);
  void EndRequest(uint64_t sequence);
  // Sets the flag of the request with that number; counts the cancel if there is none.
  void CancelRequest(uint64_t sequence);

  // Answers a message of `message_bytes` bytes and takes the bytes of `reply`. The caller must not
  // touch the call afterwards. `permit` is released when the client has taken the reply or has
  // gone.
  void Answer(grpc::ByteBuffer& reply, int64_t message_bytes, Permit permit);

  // Counts a message of `message_bytes` bytes as answered, without an answer. The caller must not
  // touch the call afterwards.
  void Drop(int64_t message_bytes);

  // Stops reading, answers the messages that were read, and ends with UNAVAILABLE.
  void Drain();

 private:
  friend class CallArming;

  class Change;
  struct Reply {
    grpc::ByteBuffer bytes;
    int64_t held_bytes = 0;  // the larger of message and reply
    Permit permit;

    bool IsAdmitted() const { return permit.bytes() > 0; }  // an error is not
  };

  StreamCall(const Method& method, std::shared_ptr<CallArming> arming)
      : QueueCall(method, std::move(arming), /*releases=*/1), method_(method) {}

  void OnArrived() override;
  void OnRead(bool ok) override;
  void OnWritten(bool ok) override;
  void OnEnded(bool ok) override;
  void OnDone() override;
  // The sockets were looked at.
  void OnLooked(bool ok);

  // Starts every step that the state allows: a read, a write, the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the first reply. Replies that are ready at the same time go to the socket together.
  // REQUIRES: replies_ is not empty, and no write is under way.
  void WriteFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops all replies except the one that is being written: the client has gone.
  void DropReplies() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a reply that leaves replies_ out of the counts. `taken`: by the client.
  void Uncount(const Reply& reply, bool taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether every step has come back and every answer was given. It becomes true once; the caller
  // that sees it frees the call.
  bool IsFree() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Free() ABSL_LOCKS_EXCLUDED(mutex_);

  const Method& method_;
  absl::Time began_;  // at its headers

  proto::Mutex mutex_;
  // The cancellation flags of requests that have not ended, by the client's numbers.
  absl::flat_hash_map<uint64_t, std::shared_ptr<std::atomic<bool>>> requests_
      ABSL_GUARDED_BY(mutex_);
  std::deque<Reply> replies_ ABSL_GUARDED_BY(mutex_);  // while writing_, the first is being written
  int64_t unanswered_ ABSL_GUARDED_BY(mutex_) = 0;     // messages without an answer
  int64_t held_ ABSL_GUARDED_BY(mutex_) = 0;           // messages without an answer or not written
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unadmitted_ ABSL_GUARDED_BY(mutex_) = 0;      // replies without a permit
  int64_t received_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all messages
  int64_t sent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of all answers that the client has taken
  bool has_written_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t joined_ ABSL_GUARDED_BY(mutex_) = 0;        // answers in gRPC's buffer, perhaps not sent
  int64_t joined_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of these
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool deferred_ ABSL_GUARDED_BY(mutex_) = false;  // the next read, until OnLooked
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // by the client: no more messages
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // the client has gone: drop answers
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusCode code_ ABSL_GUARDED_BY(mutex_) = absl::StatusCode::kOk;  // that it finishes with
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_seen_ ABSL_GUARDED_BY(mutex_) = false;

  CallEvent<StreamCall> looked_{this, &StreamCall::OnLooked};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_STREAM_CALL_H_
