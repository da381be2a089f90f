// AsyncCall: one asynchronous Rotate with its retries. The event queue owns it from Start until its
// callback has run.
//
//   Start -> attempt -> (failed: alarm -> attempt ...) -> outcome
//         -> borrowed memory returned -> callback
//
// Until the outcome is known, exactly one event is outstanding: the end of an attempt or an alarm.
// An alarm with delay 0 moves an immediate failure (no connection, an encoding error) to the
// queue's thread.
//
// Threading:  Start and Cancel on any thread; everything else on the thread that Start is called
//             on, and then on callback threads: on the one that the outstanding event arrives on.
//             If the connection was lost, that thread also redials it, for
//             Connector::kRedialMax at most. No lock is held while it dials, encodes or runs the
//             callback.
// Ownership:  Copies the parts of the request that it needs later; borrows the memory of the
//             tensors until the callback has run.
#ifndef ROPE_CLIENT_CALLS_ASYNC_CALL_H_
#define ROPE_CLIENT_CALLS_ASYNC_CALL_H_

#include <grpcpp/alarm.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "client/calls/event_loop.h"
#include "client/calls/retry.h"
#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/transport/connector.h"
#include "client/transport/ring.h"
#include "client/transport/rotate_transport.h"
#include "client/transport/stub.h"
#include "client/transport/waiter.h"
#include "proto/mutex.h"
#include "rope/async.h"

namespace rope::client {

class AsyncCall final : public LiveCall,
                        private EventHandler,
                        public std::enable_shared_from_this<AsyncCall> {
 public:
  // `random` returns numbers in [0, 1).
  AsyncCall(std::shared_ptr<Connector> connector, std::shared_ptr<EventQueue> queue,
            RotateCallback callback, Attempts attempts, std::function<double()> random);

  // REQUIRES: called once.
  void Start(const RotateRequest& request);
  void Cancel() override;

 private:
  // The end of an RPC, or an alarm.
  void OnEvent(bool ok) override;
  // The end of an attempt.
  void OnReply(Result<ReceivedReply> reply);

  // REQUIRES of these: no event is outstanding. Each arranges the next one, which may arrive before
  // it returns.
  // `request`: encoded for this attempt. Null: the message of the previous attempt is sent again.
  void StartAttempt(const RotateRequest* request);
  void StartInRing(const RingCompletions::Ticket& ticket);
  void StartAlarm(std::chrono::microseconds delay);
  // What follows a failed attempt, or a failure to connect.
  void TryAgain(const Status& status, bool idempotent);
  // Ends the call once gRPC has returned all borrowed memory.
  void End(Result<ReceivedReply> outcome);

  Status Encode(const RotateRequest& request);
  Status Keep(const RotateRequest& request);
  std::optional<Result<ReceivedReply>> TakeReply();  // of the RPC that has ended; nullopt: none
  bool IsCancelled();
  void RunCallback();

  const std::shared_ptr<EventQueue> queue_;
  const std::shared_ptr<Connector> connector_;
  const std::function<double()> random_;

  // Used by the thread that handles the call's outstanding event.
  RotateCallback callback_;
  BorrowedSlices borrowed_;
  EncodedRotate encoded_;
  bool is_forgotten_ = false;  // the server has forgotten its id, so it goes whole
  // Set if the message must be encoded again for another link, or without an id.
  std::unique_ptr<const KeptRequest> kept_;
  Attempts attempts_;
  std::shared_ptr<const Link> link_;  // of the last attempt
  std::optional<Status> unsent_;      // why the last attempt was not sent
  std::optional<Result<ReceivedReply>> outcome_;

  proto::Mutex mu_;  // of what Cancel needs
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<RingCompletions> ring_ ABSL_GUARDED_BY(mu_);  // null: it has no request of this
  RingCompletions::Ticket ticket_ ABSL_GUARDED_BY(mu_);
  std::optional<UnaryAttempt> rpc_ ABSL_GUARDED_BY(mu_);   // nullopt: none is under way
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);  // the most recent one
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_ASYNC_CALL_H_
