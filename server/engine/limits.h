// Bounds of planning, batches and slices.
#ifndef ROPE_SERVER_ENGINE_LIMITS_H_
#define ROPE_SERVER_ENGINE_LIMITS_H_

#include <cstdint>

#include "server/limits.h"

namespace rope::server::limits {

// Requests that gather before they run on the thread that received them: enough to wake clients
// together, few enough that the first of them does not wait long.
inline constexpr int64_t kGatheredRequestsMax = 8;
inline constexpr int64_t kGatheredBytesMax = 256 * kKiB;
// A batch: keeps every core busy, and delays the next batch only by milliseconds.
inline constexpr int64_t kBatchBytesMax = 32 * kMiB;
inline constexpr int64_t kBatchTokensMax = 64 * 1024;
inline constexpr int64_t kBatchRequestsMax = 256;
// A result of at least this size overwrites the received bytes. A smaller result would keep alive
// received buffers that are larger than itself.
inline constexpr int64_t kOverwriteBytesMin = 64 * kKiB;
// The part of a large request that one batch takes, so that it cannot hold up a small one.
inline constexpr int64_t kSliceBytesMax = 8 * kMiB;
// Bytes of table rows that a batch may build, but always those of one token: 64 separate pages of a
// head of 128 channels, which take 4 to 8 ms. No permit counts them: few batches run at a time.
inline constexpr int64_t kBatchBuildBytesMax = 2 * kMiB;
// The rows that one token may build and no permit counts: two pages of a head of 128 channels, so
// that a decode token does not count a page that the table cache counts already.
inline constexpr int64_t kUncountedBuildBytes = 64 * kKiB;
// Up to this size, a permit counts only frequencies made for lengths; SpecCache counts the others.
inline constexpr int64_t kUncountedFrequencyBytes = 16 * kKiB;
// Jobs of a batch, each a rectangle of tokens and heads with 210 bytes. A token may need up to
// kJobsMax jobs.
inline constexpr int64_t kJobsMax = 64 * 1024;
// Elements of all results that a reply has as numbers, encoded in one step: 4 milliseconds.
inline constexpr int64_t kReplyNumbersMax = 256 * 1024;
// Bytes of one token in all tensors; a slice has at least one token.
inline constexpr int64_t kTokenBytesMax = 64 * kMiB;
// The same for a tensor whose channels are not adjacent: a slice of it is copied first.
inline constexpr int64_t kGatheredTokenBytesMax = kSliceBytesMax;

static_assert(kGatheredBytesMax < kSliceBytesMax && kSliceBytesMax < kBatchBytesMax);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_ENGINE_LIMITS_H_
