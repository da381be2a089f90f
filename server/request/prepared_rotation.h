// A prepared rotation: what repeated requests have in common. PreparedRotations keeps several.
#ifndef ROPE_SERVER_REQUEST_PREPARED_ROTATION_H_
#define ROPE_SERVER_REQUEST_PREPARED_ROTATION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/mutex.h"
#include "proto/wire/message_split.h"
#include "rope/v1/prepare.pb.h"
#include "server/clients/limits.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/rotation_plan.h"

namespace rope::server {

// PreparedRotation: a request without the values that each call brings, validated once.
//
// Threading:  Functions; a PreparedRotation is immutable.
// Errors:     Prepare: as PrepareFixed, with the field's path in the PrepareRequest. BeginCall:
//             INVALID_ARGUMENT: the call sets a field that is no value.

struct PreparedRotation {
  std::string id;
  v1::RotateRequest message;  // what stays the same
  char open_axis = 0;         // its length differs between calls; 0: no axis
  Plan plan;                  // without inputs, places and positions
  Ropes ropes;
  int64_t bytes = 0;  // of memory, approximately
};

// `payloads`: of the request's arrays.
absl::StatusOr<std::shared_ptr<const PreparedRotation>> Prepare(const v1::PrepareRequest& request,
                                                                const proto::SplitMessage& payloads,
                                                                ModelRegistry& registry);

// Begins the plan of a call: the prepared plan, with the call's length of the open axis. Arrays of
// which the call has the elements alone get the type and shape that were prepared.
// PlanElements and PlanPositions (validate.h) fill the rest.
absl::Status BeginCall(const PreparedRotation& prepared, v1::RotateRequest& call, Plan& plan);

// PreparedRotations: the prepared requests by their ids.
//
// A look-up takes the reader lock and notes the time of use in an atomic. Keep takes the writer
// lock; where a bound is passed, the owner that has the most loses the entry that it used least
// recently. Calls under way hold their entry.
//
// Threading:  Thread-safe.
// Limits:     entries_max and bytes_max of Options. An entry may have half of the bytes.

class PreparedRotations {
 public:
  struct Options {
    int64_t entries_max = limits::kPreparedMax;
    int64_t bytes_max = limits::kPreparedBytesMax;
  };
  struct Size {
    int64_t entries = 0;
    int64_t bytes = 0;
  };

  explicit PreparedRotations(const Options& options) : options_(options) {}

  // Keeps an entry, in place of an earlier one with the same id. `owner`: who prepares it.
  // RESOURCE_EXHAUSTED: it has more bytes than one may have; it carries no retry delay, because
  // waiting does not help.
  absl::Status Keep(std::shared_ptr<const PreparedRotation> prepared, const std::string& owner);

  // NOT_FOUND: no such entry.
  absl::StatusOr<std::shared_ptr<const PreparedRotation>> Find(absl::string_view id);

  Size size() const;
  const Options& options() const { return options_; }

 private:
  struct Entry {
    std::shared_ptr<const PreparedRotation> prepared;
    std::string owner = {};
    std::atomic<int64_t> used = 0;
  };
  using Entries = absl::node_hash_map<std::string, Entry>;

  bool IsFull() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return all_.entries > options_.entries_max || all_.bytes > options_.bytes_max;
  }
  // Drops entries until the bounds hold.
  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::atomic<int64_t> clock_ = 0;  // counts look-ups
  mutable proto::SharedMutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  Size all_ ABSL_GUARDED_BY(mutex_);  // of entries_
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PREPARED_ROTATION_H_
