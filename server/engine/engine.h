// Engine: the request path between an adapter and the batcher. Knows no gRPC.
//
//   1. The request gets a permit for the bytes that were received for it (account.h).
//   2. A prepared_id is looked up.
//   3. The request is planned on the caller's thread. If planning finds that it would take longer
//      than rotating a slice, the side thread plans it instead. A caller in this process plans its
//      own request whatever it takes: its thread serves no one else.
//   4. Each step of planning grows the request's permit before the step takes memory.
//   5. The batcher takes the request. One whose tensors lie on a device is enqueued on its caller's
//      stream instead, on this thread, and is then done.
//
// Threading:  Thread-safe.
// Ownership:  Submit takes the request if and only if it returns OK; `done` then runs exactly once,
//             on any thread, possibly before Submit returns.
// Errors:     As RegionResolver, validate.h, Account and Batcher. RESOURCE_EXHAUSTED: the reply
//             would have more than `reply_bytes_max` bytes; the system has no memory left.
#ifndef ROPE_SERVER_ENGINE_ENGINE_H_
#define ROPE_SERVER_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/clock.h"
#include "server/engine/batcher.h"
#include "server/engine/executor.h"
#include "server/engine/side_thread.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/request/prepared_rotation.h"
#include "server/request/request.h"

namespace rope::server {

namespace limits {

// A result of at least this size overwrites the received bytes. A smaller result would keep alive
// received buffers that are larger than itself.
inline constexpr int64_t kOverwriteBytesMin = 64 * kKiB;
// The rows that one token may build and no permit counts: two pages of a head of 128 channels, so
// that a decode token does not count a page that the table cache counts already.
inline constexpr int64_t kUncountedBuildBytes = 64 * kKiB;

}  // namespace limits

class Engine {
 public:
  struct Options {
    int64_t reply_bytes_max = limits::kMessageBytesMax;    // results inside one reply
    int64_t overwritten_min = limits::kOverwriteBytesMin;  // of a result, SetDestinations
  };

  // All must outlive the engine. `devices`: with nothing, no request may have a queue.
  Engine(ModelRegistry& registry, PreparedRotations& prepared, Batcher& batcher, const Clock& clock,
         const Options& options, const DeviceRotation& devices = {});

  absl::Status Submit(std::unique_ptr<Request>& request);

  // Plans large requests. It must be drained before the batcher, and serves calls of the control
  // plane too.
  SideThread& side_thread() { return side_thread_; }

 private:
  class Planning;

  // Finds the prepared request, and plans on this thread or on the side thread.
  absl::Status PlanOrEnqueue(std::unique_ptr<Request>& request);
  // Plans the request, enqueues it on its device and calls `done`.
  absl::Status EnqueueOnDevice(std::unique_ptr<Request>& request);
  // Fills everything that the batcher needs. NeedsSideThread, unless it may take long: planning
  // takes longer than rotating a slice.
  absl::Status MakePlan(Request& request, bool may_take_long);
  // Fills the request's plan, checks its reply, and admits what running it takes.
  absl::Status FillPlan(Request& request, bool may_take_long);
  // RESOURCE_EXHAUSTED: the reply is too large, or might not fit the slot that it must go to.
  absl::Status CheckReplyBytes(const Request& request) const;

  ModelRegistry& registry_;
  PreparedRotations& prepared_;
  Batcher& batcher_;
  const Clock& clock_;
  const Options options_;
  const DeviceRotation devices_;
  SideThread side_thread_;  // last: it uses everything else
};

// Estimates the memory that a request makes the server hold and the time that its planning takes,
// from the part of the request that is decoded or planned so far. Sums saturate below 63 bits, at a
// value that no budget holds.

// Bytes of a decoded request: its message, plus the parsed objects of its skeleton.
int64_t DecodedBytes(const Request& request);

// The cost of planning a request's positions and rows, as bytes of a copy. REQUIRES: `plan` has its
// tensors.
int64_t PlanningBytes(const v1::RotateRequest& values, const Plan& plan);

// Bytes that planning and running allocate in addition: copies of numbers that came as repeated
// fields, a fixed cost per token, the caller's own rows, results that take a buffer, and a slice of
// each tensor whose channels are not adjacent.
// REQUIRES: `plan` has its tensors and their destinations.
int64_t RunningBytes(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                     const Plan& plan);

// Bytes of what the positions ask for: the plan's frequencies, and the rows that one token may
// build, a page on each axis for each row set. A batch's budget bounds what it builds in addition.
int64_t PlannedBytes(const Plan& plan);

// Bytes of results inside the reply: all results that do not go to a region.
int64_t ReplyBytes(const Plan& plan);

// The most that the other fields of the reply take. A tensor of a reply says what the request says
// of it, and where a result in a region lies.
int64_t ReplyTextBytesMax(const Request& request);

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_ENGINE_H_
