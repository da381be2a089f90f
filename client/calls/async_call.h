// AsyncCall: one Rotate that does not wait, with its retries. The event queue owns it from Start to
// the end of its callback.
//
//   Start -> attempt -> (failed: alarm -> attempt ...) -> memory given back -> callback
//
// Threading:  Start and Cancel on any thread, everything else on the queue's thread. A connection
//             that was lost is dialed there, for Connector::kRedialMax at most.
// Ownership:  Copies what it needs of the request; borrows tensor memory until the callback runs.
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
  // `random` gives numbers in [0, 1).
  static std::shared_ptr<AsyncCall> Start(std::shared_ptr<Connector> connector,
                                          std::shared_ptr<EventQueue> queue,
                                          const RotateRequest& request, RotateCallback callback,
                                          const Attempts& attempts, std::function<double()> random);

  AsyncCall(std::shared_ptr<Connector> connector, std::shared_ptr<EventQueue> queue,
            RotateCallback callback, const Attempts& attempts, std::function<double()> random);

  void Cancel() override;

 private:
  void OnEvent(bool ok) override;

  // Each starts an operation, whose event follows.
  // `request`: encoded for this attempt; null: as the last.
  void StartAttempt(const RotateRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartAlarm(std::chrono::microseconds delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Sets outcome_ if the attempt or alarm whose event has come was the last, else starts the next.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // These go on from an attempt that failed, or never was.
  void TryAgain(const Status& status, bool idempotent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndCancelled(const Status& last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call, once nothing refers to the caller's memory.
  void RunCallback();

  const std::shared_ptr<EventQueue> queue_;
  const std::shared_ptr<Connector> connector_;
  const std::function<double()> random_;
  RotateCallback callback_;
  BorrowedSlices borrowed_;

  proto::Mutex mu_;
  EncodedRotate encoded_ ABSL_GUARDED_BY(mu_);
  std::optional<RotateRequest> request_
      ABSL_GUARDED_BY(mu_);  // where its message is for one connection only
  Attempts attempts_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const Session> session_ ABSL_GUARDED_BY(mu_);  // of the last attempt
  std::optional<Status> unsent_ ABSL_GUARDED_BY(mu_);  // why there was no connection for an attempt
  std::optional<UnaryAttempt> attempt_ ABSL_GUARDED_BY(mu_);  // while one is under way
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);     // the last that was set
  std::optional<Result<grpc::ByteBuffer>> outcome_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_ASYNC_CALL_H_
