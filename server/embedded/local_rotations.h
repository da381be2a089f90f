// LocalRotations: requests of the public client as calls of a LocalService.
//
//   request -> message with addresses (client/codec) -> LocalService -> reply
//
// Threading:  Thread-safe.
// Errors:     As Client::Rotate.
#ifndef ROPE_SERVER_EMBEDDED_LOCAL_ROTATIONS_H_
#define ROPE_SERVER_EMBEDDED_LOCAL_ROTATIONS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/codec/codec.h"
#include "client/memory/region.h"
#include "proto/mutex.h"
#include "rope/async.h"
#include "rope/device.h"
#include "server/embedded/local_service.h"

namespace rope::embedded {

using SteadyTime = std::chrono::steady_clock::time_point;

// The rotations of one connection.
class LocalRotations {
 public:
  LocalRotations(std::shared_ptr<LocalService> service, int64_t pooled_bytes);

  // With a queue as Client::Enqueue.
  Result<client::RotateReply> Rotate(const client::RotateRequest& request, SteadyTime deadline,
                                     const LocalService::Cancelled& cancelled,
                                     const std::optional<DeviceQueue>& queue = {});
  // Frees the idle memory of replies; from now on none is kept.
  void Close() { region_.process_outputs->Close(); }
  LocalService& service() { return *service_; }
  client::RegionIds& ids() { return *region_.ids; }
  const client::Region& region() const { return region_; }

 private:
  Result<client::RotateReply> RotateOnce(const client::RotateRequest& request, bool is_forgotten,
                                         SteadyTime deadline,
                                         const LocalService::Cancelled& cancelled,
                                         const std::optional<DeviceQueue>& queue);
  Result<client::RotateReply> RotateWithin(const client::RotateRequest& request,
                                           SteadyTime deadline,
                                           const LocalService::Cancelled& cancelled,
                                           const std::optional<DeviceQueue>& queue);
  void PrepareAgain(const client::PreparedRotation& rotation, SteadyTime deadline);

  const std::shared_ptr<LocalService> service_;
  const client::Region region_;
  const client::Region devices_;
};

// CallbackThread: the calls that nobody waits for, and the thread that makes them.
//
// Threading:  Thread-safe. The thread starts with the first call.
// Ownership:  The thread shares the calls: they outlive their connection in a callback that
//             destroys it.
class CallbackThread : public std::enable_shared_from_this<CallbackThread> {
 public:
  struct Call {
    std::unique_ptr<const client::KeptRequest> request = nullptr;
    Status refused = {};  // why there is no request
    SteadyTime deadline;
    // The reply goes to `callback` when the lease has been released.
    client::RotateCallback callback;
    LocalService::Cancelled cancelled;
    client::RegionIds::Lease lease;
  };

  explicit CallbackThread(std::shared_ptr<LocalRotations> rotations)
      : rotations_(std::move(rotations)) {}

  // REQUIRES: not closed.
  void Add(Call call);
  bool IsCurrent() const { return std::this_thread::get_id() == id_.load(); }

  // Cancels all calls, and waits for their callbacks, except on the thread itself.
  void Close();

 private:
  void Run();
  // Runs a call and its callback.
  void Answer(Call call);

  const std::shared_ptr<LocalRotations> rotations_;
  std::atomic<std::thread::id> id_;
  proto::Mutex mutex_;
  proto::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);
  LocalService::Cancelled running_ ABSL_GUARDED_BY(mutex_);  // null: none runs
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

absl::Duration TimeLeft(SteadyTime deadline);
LocalService::Cancelled NotCancelled();

}  // namespace rope::embedded

#endif  // ROPE_SERVER_EMBEDDED_LOCAL_ROTATIONS_H_
