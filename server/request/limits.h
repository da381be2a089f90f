// Bounds of one request.
#ifndef ROPE_SERVER_REQUEST_LIMITS_H_
#define ROPE_SERVER_REQUEST_LIMITS_H_

#include <cstdint>

#include "server/limits.h"

namespace rope::server::limits {

// The skeleton: a message without its raw payloads (numbers, configs). It is parsed into objects,
// so it must be small.
inline constexpr int64_t kSkeletonBytesMax = 16 * kMiB;
// Memory for each byte of the skeleton: the byte itself and at most a number of 8 bytes.
inline constexpr int64_t kSkeletonFactor = 9;
inline constexpr int64_t kLabelsMax = 16;
inline constexpr int64_t kLabelKeyBytesMax = 64;
inline constexpr int64_t kLabelValueBytesMax = 256;
inline constexpr int64_t kTensorsMax = 1024;
// Length of an L axis whose layers have their own embeddings.
inline constexpr int64_t kLayersMax = 1024;
// Tokens of one request.
inline constexpr int64_t kTokensMax = int64_t{1} << 22;
// Approximate memory of a token while it is planned, without its tensors: three positions as
// received and as used, its sequence, its index there, a row and a scale.
inline constexpr int64_t kTokenBytes = 80;
// cu_seqlens may name as many sequences as there are tokens, or this many if that is more: batches
// are padded with empty sequences.
inline constexpr int64_t kSequencesMin = 64 * 1024;
// A request whose positions and rows have at most this many bytes is planned on the thread that
// received it. More takes longer than a slice may, and goes to the side thread. So do copies of so
// many bytes of strided tensors, and frequencies for lengths of half as many.
inline constexpr int64_t kPlanHereBytesMax = 512 * kKiB;
// Tokens whose frequencies, which depend on a length or the layer, are looked up on that thread.
inline constexpr int64_t kLengthTokensHereMax = 8 * 1024;
// The error bound of the angles is proven up to here (kernels/tables/table_cache.h).
inline constexpr int64_t kPositionMax = int64_t{1} << 30;
// Larger than kPositionMax: a planned length may exceed every position.
inline constexpr int64_t kSeqLenMax = int64_t{1} << 40;
// Frequencies that a request has made for its lengths: 7,000 lengths of 64 columns, with 32 bytes
// and some 0.15 microseconds a column.
inline constexpr int64_t kFrequencyBytesMax = 16 * kMiB;
// Prepared requests, and their bytes; half of each for one session. An entry of q and k with heads
// of 128 channels has about 12 KiB, of which 7 are its embedding's.
inline constexpr int64_t kPreparedMax = 4096;

static_assert(kSkeletonBytesMax < kMessageBytesMax);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_REQUEST_LIMITS_H_
