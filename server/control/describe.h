// Describe evaluates a config: its frequencies, rows, scaling and readings. Fingerprint identifies
// the rotation of K, and compares two of them.
//
// The first step of Describe computes all but the rows, each other one some rows. A pair of cos
// and sin takes about 0.3 microseconds. Fingerprint takes one step: kernels/identity bounds the
// columns.
//
// Threading:  Functions only; the registry is thread-safe.
// Ownership:  Steps own all that they need; they keep no reference to the request.
// Precision:  cos and sin are the exact values of the formulas, rounded once to double.
#ifndef ROPE_SERVER_CONTROL_DESCRIBE_H_
#define ROPE_SERVER_CONTROL_DESCRIBE_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "rope/v1/describe.pb.h"
#include "rope/v1/fingerprint.pb.h"
#include "server/engine/side_thread.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/rotation_plan.h"

namespace rope::server {

inline constexpr int64_t kDescribePositionsMax = 4096;
// Bytes of the rows of Describe: 4096 positions of 256 frequencies, which take 0.3 seconds.
inline constexpr int64_t kDescribeBytesMax = 16 * limits::kMiB;
// Memory that one KeyIdentity takes, with its text and its message.
inline constexpr int64_t kIdentityBytesMax = 16 * limits::kMiB;

// Acquires memory for the answer.
using AdmitReply = absl::FunctionRef<absl::Status(int64_t bytes)>;

// The embedding of `entry` for heads of the request's head_dim, if it names one.
// INVALID_ARGUMENT: the config has another head_dim; as RopeEntry::Resolve.
template <typename Request>
absl::StatusOr<ResolvedPtr> ResolveAsked(const RopeEntry& entry, const Request& request) {
  if (!request.has_head_dim()) return entry.Resolve(std::nullopt);
  const int64_t head_dim = request.head_dim();
  ROPE_ASSIGN_OR_RETURN(ResolvedPtr resolved, entry.Resolve(head_dim));
  if (resolved->head_dim() == head_dim) return resolved;
  return InvalidField("head_dim", head_dim, absl::StrCat("the config's ", resolved->head_dim()));
}

// Checks a request, and returns the steps of its answer, whose errors are those of
// kernels::Describe. `admit` is called once, before anything that grows with the embedding is
// computed.
// INVALID_ARGUMENT, NOT_FOUND: as ModelRegistry::Find and kernels::Resolve; what
// rope/v1/describe.proto says of each field. OUT_OF_RANGE: a position above limits::kPositionMax.
// RESOURCE_EXHAUSTED: rows of more bytes than kDescribeBytesMax or `reply_bytes_max`.
// Errors of `admit`.
absl::StatusOr<Steps<v1::DescribeResponse>> Describe(const v1::DescribeRequest& request,
                                                     ModelRegistry& registry,
                                                     int64_t reply_bytes_max, AdmitReply admit);

// INVALID_ARGUMENT, NOT_FOUND: as ModelRegistry::CopyOf and kernels::IdentifyKey; the path of the
// field begins with "key." or "other.". Errors of `admit`.
absl::StatusOr<v1::FingerprintResponse> Fingerprint(const v1::FingerprintRequest& request,
                                                    ModelRegistry& registry, AdmitReply admit);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_DESCRIBE_H_
