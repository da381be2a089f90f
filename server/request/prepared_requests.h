// PreparedRequests: what earlier requests turned out to be. One that differs from them in its id,
// its positions, its elements and their places in memory regions alone is recognised by its bytes,
// and neither parsed nor validated once more: a decode step is the step before it with other
// numbers. Regions are found and checked for each request anew, in its own session.
//
//   1. Find, before a message is parsed: the prepared request whose outline it has.
//   2. Without one it is parsed and validated. If a message of its size came before (Wants), what
//      became of it is kept (Keep), unless its values decide more than positions and elements.
//   3. PlanPrepared makes the plan of a request that was found: it reads and checks positions.
//
// Threading:  Thread-safe.
// Ownership:  Prepared requests are immutable and shared; they outlive their replacement.
// Limits:     limits::kPreparedMax, each of RequestOutline::kBytesMax and with the positions of
//             limits::kPreparedTokensMax tokens, unless they are a run; the oldest goes first.
//             Those that were prepared before a model was unregistered or a config_id forgotten
//             are not found any more.
#ifndef ROPE_SERVER_REQUEST_PREPARED_REQUESTS_H_
#define ROPE_SERVER_REQUEST_PREPARED_REQUESTS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/mutex.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/prepared.h"

namespace rope::server {

struct Request;

class PreparedRequests {
 public:
  // `registry` must outlive it.
  explicit PreparedRequests(const ModelRegistry& registry) : registry_(registry) {}

  // The prepared request that a message has the outline of, and the message's values; else null.
  std::shared_ptr<const Prepared> Find(absl::Span<const std::string_view> fragments,
                                       proto::RequestOutline::Values& values) const;

  // Whether a message that was not found should be kept. Notes its size.
  bool Wants(int64_t message_bytes);

  // Keeps a request that was validated while the registry had `registry_version`, if others can be
  // like it and none of them is kept already. REQUIRES: its kept_fragments.
  void Keep(Request& request, int64_t registry_version);

 private:
  const ModelRegistry& registry_;
  mutable proto::SharedMutex mutex_;
  std::deque<std::shared_ptr<const Prepared>> all_ ABSL_GUARDED_BY(mutex_);  // newest first
  std::deque<int64_t> sizes_ ABSL_GUARDED_BY(mutex_);  // of the last that were not found
};

// Fills the plan of a request that was found. INVALID_ARGUMENT, OUT_OF_RANGE: as ReadPositions.
absl::Status PlanPrepared(Request& request, AdmitTensors admit);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PREPARED_REQUESTS_H_
