// AsyncCall: one asynchronous Rotate with its retries. The event queue owns it from Start until its
// callback has run.
//
//   Start -> attempt -> (failed: alarm -> attempt ...) -> outcome
//         -> borrowed memory returned -> callback
//
// Until the outcome is known, exactly one event is outstanding: that of attempt_ or of alarm_. An
// alarm with delay 0 moves an immediate failure (no connection, an encoding error) to the queue's
// thread.
//
// Threading:  Start and Cancel on any thread, everything else on the queue's thread. If the
//             connection was lost, that thread also redials it, for Connector::kRedialMax at most.
// Ownership:  Copies the parts of the request that it needs later; borrows the memory of the
//             tensors until the callback has run.
#ifndef ROPE_CLIENT_CALLS_ASYNC_CALL_H_
#define ROPE_CLIENT_CALLS_ASYNC_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/calls/event_loop.h"
#include "client/calls/retry.h"
#include "client/codec/borrowed_slices.h"
#include "client/codec/codec.h"
#include "client/transport/connector.h"
#include "client/transport/stub.h"
#include "proto/mutex.h"
#include "rope/async.h"

namespace rope::client {

class AsyncCall final : public LiveCall, private EventHandler {
 public:
  // `random` returns numbers in [0, 1).
  static std::shared_ptr<AsyncCall> Start(std::shared_ptr<Connector> connector,
                                          std::shared_ptr<EventQueue> queue,
                                          const RotateRequest& request, RotateCallback callback,
                                          const Attempts& attempts, std::function<double()> random);

  AsyncCall(std::shared_ptr<Connector> connector, std::shared_ptr<EventQueue> queue,
            RotateCallback callback, const Attempts& attempts, std::function<double()> random);

  void Cancel() override;

 private:
  void OnEvent(bool ok) override;

  // REQUIRES of these three: no event is outstanding. Each arranges the next one.
  // `request`: encoded for this attempt. Null: the message of the previous attempt is sent again.
  void StartAttempt(const RotateRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Keep(const RotateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartAlarm(std::chrono::microseconds delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Handles the event of an attempt or alarm: sets outcome_, or starts the next attempt or alarm.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The attempt by an id that the server has forgotten is made again with the whole request.
  void StartWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What follows a failed attempt, or a failure to connect.
  void TryAgain(const Status& status, bool idempotent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndCancelled(const Status& last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call. REQUIRES: mu_ is not held; gRPC has returned all borrowed memory.
  void RunCallback();

  const std::shared_ptr<EventQueue> queue_;
  const std::shared_ptr<Connector> connector_;
  const std::function<double()> random_;
  RotateCallback callback_;
  BorrowedSlices borrowed_;

  proto::Mutex mu_;
  EncodedRotate encoded_ ABSL_GUARDED_BY(mu_);
  PreparedUse use_ ABSL_GUARDED_BY(mu_);          // of the last attempt
  bool goes_whole_ ABSL_GUARDED_BY(mu_) = false;  // the server has forgotten its id
  // Kept if the message must be encoded again for another session, or without an id.
  std::optional<RotateRequest> request_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Preparation> kept_preparation_ ABSL_GUARDED_BY(mu_);  // owns its weights
  Attempts attempts_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const Session> session_ ABSL_GUARDED_BY(mu_);  // of the last attempt
  std::optional<Status> unsent_ ABSL_GUARDED_BY(mu_);  // why the last attempt got no connection
  std::optional<UnaryAttempt> attempt_ ABSL_GUARDED_BY(mu_);  // set while an RPC is under way
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);     // the most recent one
  std::optional<Result<grpc::ByteBuffer>> outcome_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_ASYNC_CALL_H_
