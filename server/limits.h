// Every fixed bound of the server, each with its reason. Bounds that an operator may change are the
// defaults of their flags (options.h).
#ifndef ROPE_SERVER_LIMITS_H_
#define ROPE_SERVER_LIMITS_H_

#include <cstdint>

namespace rope::server::limits {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

// --- one request --- Default of --max_message_bytes: a prefill of 8192 tokens x 40 heads x 128 in
// fp32, with room.
inline constexpr int64_t kMessageBytesMax = 256 * kMiB;
// gRPC's own cap stands this much above ours, so that ours speaks first and names the flag.
inline constexpr int64_t kMessageSlackBytes = 1 * kMiB;
// The largest --max_message_bytes: Protobuf and HTTP/2 count in 31 bits.
inline constexpr int64_t kMessageBytesCeiling = 2 * kGiB - 2 * kMiB;
// Everything but raw payloads: people's numbers, configs. Parsed into objects, so kept small.
inline constexpr int64_t kSkeletonBytesMax = 16 * kMiB;
// What a byte of it becomes: at most a number of 8 bytes beside itself.
inline constexpr int64_t kSkeletonFactor = 9;
// Of one repeated message field, before it is parsed: far above every legal count.
inline constexpr int64_t kRepeatedMessagesMax = 1024;
inline constexpr int64_t kConfigJsonBytesMax = 1 * kMiB;
inline constexpr int64_t kRequestIdBytesMax = 128;
inline constexpr int64_t kTensorsMax = 64;
// Of one request.
inline constexpr int64_t kTokensMax = int64_t{1} << 22;
// What each token costs beside its tensors while it is planned, about: three positions as they
// came and as they are used, its sequence, its index there, a row and a scale.
inline constexpr int64_t kTokenBytes = 80;
// cu_seqlens may name as many sequences as there are tokens, or at least so many: batches are
// padded with empty ones.
inline constexpr int64_t kSequencesMin = 64 * 1024;
// What is planned on the thread that received it: positions, rows and other arrays of at most so
// many bytes. More takes longer than a slice may, and goes to the planner's thread.
inline constexpr int64_t kPlanHereBytesMax = 512 * kKiB;
// Beyond it the angles' error bound is no longer proven (kernels/tables/table_cache.h).
inline constexpr int64_t kPositionMax = int64_t{1} << 30;
// A planned length may exceed every position.
inline constexpr int64_t kSeqLenMax = int64_t{1} << 40;
inline constexpr int64_t kDescribePositionsMax = 4096;
// Of an error's message, which may quote the request: status and details travel as trailers, of
// which clients take 8 KiB.
inline constexpr int64_t kErrorBytesMax = 512;

// --- the queue --- A request up to this size that finds its device free runs where it arrived: a
// hand-over to a sleeping thread costs as much as its work.
inline constexpr int64_t kDirectBytesMax = 256 * kKiB;
// The same where the host rotates, of what did not come through a ring: at 1 MiB a hand-over costs
// a tenth of the time, and to read so many bytes takes the thread several times as long as to
// rotate them. An accelerator does more with a batch.
inline constexpr int64_t kDirectHostBytesMax = 2 * kMiB;
// The same for a client that is alone: a hand-over costs it two sleeping threads, a tenth of its
// time at 42 MB, and takes a processor from the rotation while the thread that handed it over polls
// for others. What others send meanwhile waits for it once; with them its client is alone no more.
inline constexpr int64_t kDirectAloneBytesMax = 64 * kMiB;
// What gathers before it runs where it arrived, as long as more arrives: enough that clients are
// woken in one go, little enough that the first of them does not wait for long.
inline constexpr int64_t kGatheredRequestsMax = 8;
inline constexpr int64_t kGatheredBytesMax = 256 * kKiB;
// A batch: enough to keep every core busy, little enough that what waits behind it waits
// milliseconds.
inline constexpr int64_t kBatchBytesMax = 32 * kMiB;
inline constexpr int64_t kBatchTokensMax = 64 * 1024;
inline constexpr int64_t kBatchRequestsMax = 256;
// A result of at least this size takes the place of the received bytes: what is smaller would keep
// more of the buffers that it came in than it has bytes.
inline constexpr int64_t kOverwriteBytesMin = 64 * kKiB;
// The part of a large request that one batch takes, so that it cannot hold up a small one.
inline constexpr int64_t kSliceBytesMax = 8 * kMiB;
// What a slice may build, in table rows: 64 pages that are nowhere near each other, which take 0.5
// to 8 ms with the head's size. A batch takes at most two such slices more than it has begun with.
inline constexpr int64_t kSliceRowsMax = 4096;
inline constexpr int64_t kBatchRowsMax = 2 * kSliceRowsMax;
// What the page after the last one counts as. It is as dear where it is not there yet, but such
// pages are shared by all that is at these positions.
inline constexpr int64_t kNextPageRows = 16;
// Requests admitted and not yet answered.
inline constexpr int64_t kAdmittedRequestsMax = 4096;
// What a rejected client is told to wait: about the time that a full queue takes to shrink by a
// batch.
inline constexpr int64_t kRetryDelayMs = 20;

// --- state --- Specs whose resolution is kept, and as many config_ids.
inline constexpr int64_t kSpecsMax = 4096;
inline constexpr int64_t kSpecBytesMax = 64 * kMiB;
// Requests that are recognised by their bytes: the shapes that a few pipelines send in turns. Each
// is compared with what comes until one fits.
inline constexpr int64_t kPreparedMax = 16;
// Tokens of those whose positions are kept with them, where they are no run.
inline constexpr int64_t kPreparedTokensMax = 1024;
inline constexpr int64_t kTableCacheBytes = 256 * kMiB;
// The least --memory_bytes: the program itself, and messages of some MiB.
inline constexpr int64_t kMemoryBytesMin = 64 * kMiB;
inline constexpr int64_t kMemoryBytesCeiling = int64_t{1} << 47;
// Models that callers may register, and bytes of the configs that they come with.
inline constexpr int64_t kRegisteredModelsMax = 1024;
inline constexpr int64_t kRegisteredBytesMax = 16 * kMiB;
// The same of one owner (peers.h): half, so that no one takes the places of all others.
inline constexpr int64_t kOwnersModelsMax = kRegisteredModelsMax / 2;
inline constexpr int64_t kOwnersModelBytesMax = kRegisteredBytesMax / 2;
// Warm-ups that wait for their turn; one runs.
inline constexpr int64_t kWarmUpsMax = 16;
// Output buffers kept for reuse; more are given back to the kernel.
inline constexpr int64_t kPooledBytesMax = 1 * kGiB;
// Concurrent calls of one connection; gRPC buffers requests that nobody asked for.
inline constexpr int kConcurrentStreamsMax = 128;
// While a stream holds this much that is not answered and taken yet, it is not read on: enough for
// many prefills in flight, little enough for many clients that never read.
inline constexpr int64_t kStreamBytesMax = 64 * kMiB;
inline constexpr int64_t kStreamRequestsMax = 1024;
// Answers of a stream that are sent together, where the next is there already: as many as gather,
// what gRPC is told to buffer before it writes, and a third of what a socket takes at once.
inline constexpr int64_t kJoinedAnswersMax = kGatheredRequestsMax;
inline constexpr int64_t kJoinedBytesMax = 64 * kKiB;
// Memory regions of a connection, by their ids, and those that are not registered any more and
// still in use: one large one, of which requests use parts, is the way to go.
inline constexpr int64_t kRegionsMax = 64;
// Defaults of --shared_memory_bytes and --session_memory_bytes. The memory is the clients'; what
// they have not touched yet is charged to the server when a request touches it.
inline constexpr int64_t kSharedMemoryBytesMax = 16 * kGiB;
inline constexpr int64_t kSessionMemoryBytesMax = 4 * kGiB;
inline constexpr int64_t kSharedMemoryBytesCeiling = int64_t{1} << 47;  // as far as addresses go
// Connections that have not said anything yet, and how long they may: one that serves people has
// its preface under way when it connects.
inline constexpr int64_t kPendingConnectionsMax = 512;
inline constexpr int64_t kPendingMs = 10'000;
// Calls of one method that are armed on each queue at a time.
inline constexpr int kArmedCalls = 4;

// --- the log --- Lines of one kind (a method and its code, ...) that clients cause: enough to see
// what goes wrong, little enough to read and to keep, about 200 bytes each.
inline constexpr int64_t kLogLinesPerSecond = 20;
inline constexpr int64_t kLogBurstLines = 20;  // a second's worth
// Lines that wait for the output: a second of fifty kinds at their limit; about half a MiB.
inline constexpr int64_t kLogQueueLines = 1024;
// How long a line waits for room in the output: a reader that runs has read a pipe within that.
inline constexpr int64_t kLogPatienceMs = 100;
// How long the process waits for its log when it ends.
inline constexpr int64_t kLogEndMs = 1000;

// --- the metrics page --- Connections that are read at the same time, a thread each: a connection
// whose request does not end holds one for this long, and a scrape waits where all are held.
inline constexpr int64_t kMetricsThreads = 16;
inline constexpr int64_t kMetricsRequestMs = 1000;  // a packet that was lost has been sent again

static_assert(kSkeletonBytesMax < kMessageBytesMax);
static_assert(kMessageBytesMax <= kMessageBytesCeiling);
static_assert(kConfigJsonBytesMax < kSkeletonBytesMax);
static_assert(kConfigJsonBytesMax < kOwnersModelBytesMax);
static_assert(kSessionMemoryBytesMax <= kSharedMemoryBytesMax);
static_assert(kDirectBytesMax < kDirectHostBytesMax && kDirectHostBytesMax < kSliceBytesMax &&
              kSliceBytesMax < kBatchBytesMax && kBatchBytesMax < kDirectAloneBytesMax);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_LIMITS_H_
