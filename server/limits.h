// Every fixed bound of the server, with its reason. A bound that an operator may change is the
// default of its flag (options.h).
#ifndef ROPE_SERVER_LIMITS_H_
#define ROPE_SERVER_LIMITS_H_

#include <cstdint>

namespace rope::server::limits {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

// --- one request ---

// Default of --max_message_bytes: a prefill of 8192 tokens x 40 heads x 128 in fp32, with room.
inline constexpr int64_t kMessageBytesMax = 256 * kMiB;
// gRPC's own cap is this much larger, so that the server's error comes first and names the flag.
inline constexpr int64_t kMessageSlackBytes = 1 * kMiB;
// The largest --max_message_bytes: Protobuf and HTTP/2 count in 31 bits.
inline constexpr int64_t kMessageBytesCeiling = 2 * kGiB - 2 * kMiB;
// The skeleton: a message without its raw payloads (numbers, configs). It is parsed into objects,
// so it must be small.
inline constexpr int64_t kSkeletonBytesMax = 16 * kMiB;
// Memory for each byte of the skeleton: the byte itself and at most a number of 8 bytes.
inline constexpr int64_t kSkeletonFactor = 9;
// Elements of one repeated message field, checked before parsing: far above every legal count.
inline constexpr int64_t kRepeatedMessagesMax = 1024;
// Fields of a message, which take some 50 nanoseconds each; numbers of a packed array are one. A
// config has up to kFieldsMax if its factors for 65,536 channels are not packed.
inline constexpr int64_t kFieldsMax = 256 * 1024;
inline constexpr int64_t kConfigJsonBytesMax = 1 * kMiB;
// A larger one always goes to another thread; a smaller one only if its spec is not cached.
inline constexpr int64_t kConfigJsonHereBytesMax = 16 * kKiB;
inline constexpr int64_t kRequestIdBytesMax = 128;
inline constexpr int64_t kLabelsMax = 16;
inline constexpr int64_t kLabelKeyBytesMax = 64;
inline constexpr int64_t kLabelValueBytesMax = 256;
inline constexpr int64_t kTensorsMax = 64;
// Length of an L axis whose layers have their own embeddings.
inline constexpr int64_t kLayersMax = 1024;
// Memory of the embeddings of these layers: two types of layers have some 20 KiB.
inline constexpr int64_t kLayersBytesMax = 32 * kMiB;
// Tokens of one request.
inline constexpr int64_t kTokensMax = int64_t{1} << 22;
// Approximate memory of a token while it is planned, without its tensors: three positions as
// received and as used, its sequence, its index there, a row and a scale.
inline constexpr int64_t kTokenBytes = 80;
// cu_seqlens may name as many sequences as there are tokens, or this many if that is more: batches
// are padded with empty sequences.
inline constexpr int64_t kSequencesMin = 64 * 1024;
// A request whose positions, rows and other arrays have at most this many bytes is planned on the
// thread that received it. More takes longer than a slice may, and goes to the side thread. So
// do copies of so many bytes from POSIX objects, and frequencies for lengths of half as many.
inline constexpr int64_t kPlanHereBytesMax = 512 * kKiB;
// Tokens whose frequencies, which depend on a length or the layer, are looked up on that thread.
inline constexpr int64_t kLengthTokensHereMax = 8 * 1024;
// The error bound of the angles is proven up to here (kernels/tables/table_cache.h).
inline constexpr int64_t kPositionMax = int64_t{1} << 30;
// Larger than kPositionMax: a planned length may exceed every position.
inline constexpr int64_t kSeqLenMax = int64_t{1} << 40;
inline constexpr int64_t kDescribePositionsMax = 4096;
// Rows and bytes of GetTables, which computes each cos and sin for the call, at 0.3 microseconds a
// pair: 65,536 rows of 64 frequencies in 16 bits have 16 MiB and take a second.
inline constexpr int64_t kTablesRowsMax = 64 * 1024;
inline constexpr int64_t kTablesBytesMax = 16 * kMiB;
// Bytes of the rows of Describe: 4096 positions of 256 frequencies, which take 0.3 seconds.
inline constexpr int64_t kDescribeBytesMax = 16 * kMiB;
// A message of the control plane: two config_json of the largest size, with room.
inline constexpr int64_t kControlMessageBytesMax = 4 * kMiB;
// The same, and replies, up to this size are not admitted: gRPC's own call is as large.
inline constexpr int64_t kControlSmallBytes = 4 * kKiB;
// Lengths of an error's text and of each part. They travel as trailers: clients accept 8 KiB.
inline constexpr int64_t kErrorBytesMax = 512;
inline constexpr int64_t kErrorPartBytesMax = 256;

// --- the queue ---

// The largest request that runs on the thread that received it, if an accelerator takes batches:
// waking the batch thread would cost as much as its work. On a host alone every request may.
inline constexpr int64_t kDirectBytesMax = 256 * kKiB;
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
// Frequencies that a request has made for its lengths: 7,000 lengths of 64 columns, with 32 bytes
// and some 0.15 microseconds a column.
inline constexpr int64_t kFrequencyBytesMax = 16 * kMiB;
// Up to this size, a permit counts only frequencies made for lengths; SpecCache counts the others.
inline constexpr int64_t kUncountedFrequencyBytes = 16 * kKiB;
// Jobs of a batch, each a rectangle of tokens and heads with 210 bytes. A token may need up to
// kJobsMax jobs.
inline constexpr int64_t kJobsMax = 64 * 1024;
// Elements of all results that a reply has as numbers, encoded in one step: 4 milliseconds.
inline constexpr int64_t kReplyNumbersMax = 256 * 1024;
// Separate writes of one request to objects that are not mapped: 6 milliseconds.
inline constexpr int64_t kObjectWritesMax = 8 * 1024;
// Bytes of one token in all tensors; a slice has at least one token.
inline constexpr int64_t kTokenBytesMax = 64 * kMiB;
// The same for a tensor whose channels are not adjacent: a slice of it is copied first.
inline constexpr int64_t kGatheredTokenBytesMax = kSliceBytesMax;
// Requests admitted and not yet answered.
inline constexpr int64_t kAdmittedRequestsMax = 4096;
// The retry delay of a refused request: a full queue shrinks by about one batch meanwhile.
inline constexpr int64_t kRetryDelayMs = 20;

// --- state ---

// Specs whose resolution is kept, and so the most config_ids. The byte limits of specs, prepared
// requests and registered models cap their shares of --memory_bytes (DivideMemory).
inline constexpr int64_t kSpecsMax = 4096;
inline constexpr int64_t kSpecBytesMax = 64 * kMiB;
// Prepared requests, and their bytes; half of each for one session. An entry of q and k with heads
// of 128 channels has about 12 KiB, of which 7 are its embedding's.
inline constexpr int64_t kPreparedMax = 4096;
inline constexpr int64_t kPreparedBytesMax = 16 * kMiB;
inline constexpr int64_t kTableCacheBytes = 256 * kMiB;
// The smallest --memory_bytes: the program itself, and messages of some MiB.
inline constexpr int64_t kMemoryBytesMin = 64 * kMiB;
inline constexpr int64_t kMemoryBytesCeiling = int64_t{1} << 47;
// Models that callers may register, and the memory that they keep.
inline constexpr int64_t kRegisteredModelsMax = 1024;
inline constexpr int64_t kRegisteredBytesMax = 16 * kMiB;
// The same for one owner (peers.h): half, so that no owner uses up all places.
inline constexpr int64_t kOwnersModelsMax = kRegisteredModelsMax / 2;
// Bytes of a page of ListModels, unless its only model is larger. gRPC's clients accept 4 MiB.
inline constexpr int64_t kModelsPageBytesMax = 1 * kMiB;
// Bytes of free output buffers kept for reuse; the rest goes back to the kernel.
inline constexpr int64_t kPooledBytesMax = 1 * kGiB;
// Concurrent calls of one connection. gRPC buffers calls before the server accepts them.
inline constexpr int kConcurrentStreamsMax = 128;
// Calls of the control plane that wait for the side thread. One session has half of the places:
// all of its concurrent calls, but not those of other sessions.
inline constexpr int64_t kSessionsControlCallsMax = kConcurrentStreamsMax;
inline constexpr int64_t kControlCallsMax = 2 * kSessionsControlCallsMax;
// A stream reads no more while this much is unanswered or not taken by the client: enough for many
// prefills in flight, little enough for many clients that never read.
inline constexpr int64_t kStreamBytesMax = 64 * kMiB;
inline constexpr int64_t kStreamRequestsMax = 1024;
// Errors of a stream that the client has not taken. No permit counts their 1.2 KiB each.
inline constexpr int64_t kUnadmittedRepliesMax = 64;
// Replies of this size, alone or together on a stream, can be cancelled if they are not taken.
inline constexpr int64_t kListedReplyBytesMin = 4 * kKiB;
// What a stream must take for its time to begin anew.
inline constexpr int64_t kTakenBytesMin = 64 * kKiB;
// Replies of a stream that are sent together if the next one is ready: as many as gather. The bytes
// are what gRPC is told to buffer before it writes, and a third of what a socket takes at once.
inline constexpr int64_t kJoinedAnswersMax = kGatheredRequestsMax;
inline constexpr int64_t kJoinedBytesMax = 64 * kKiB;
// Region ids of a connection, including unregistered ids that requests still use. Clients should
// register one large region and use parts of it.
inline constexpr int64_t kRegionsMax = 64;
// The largest defaults of --shared_memory_bytes and --session_memory_bytes (memory_limit.h).
inline constexpr int64_t kSharedMemoryBytesMax = 16 * kGiB;
inline constexpr int64_t kSessionMemoryBytesMax = 4 * kGiB;
inline constexpr int64_t kSharedMemoryBytesCeiling = int64_t{1} << 47;  // the user address space
// Pending connections (no whole preface yet), and how long they may stay so. A real client sends
// its HTTP/2 preface when it connects.
inline constexpr int64_t kPendingConnectionsMax = 512;
inline constexpr int64_t kPendingMs = 10'000;
// Calls of each method that are armed on each queue.
inline constexpr int kArmedCalls = 4;

// --- the log ---

// Lines of one kind (such as a method and code) that clients cause, of about 200 bytes each.
inline constexpr int64_t kLogLinesPerSecond = 20;
inline constexpr int64_t kLogBurstLines = 20;  // one second of lines
// Lines that wait for the output: one second of fifty kinds at their limit, about half a MiB.
inline constexpr int64_t kLogQueueLines = 1024;
// How long a line waits for room in the output. A running reader empties a pipe within that time.
inline constexpr int64_t kLogPatienceMs = 100;
// How long the process waits for its log at exit.
inline constexpr int64_t kLogEndMs = 1000;

// --- the metrics page ---

// Connections that are read at the same time, by one thread each. A connection whose request is not
// complete holds its thread for kMetricsRequestMs. A scrape waits while all threads are held.
inline constexpr int64_t kMetricsThreads = 16;
inline constexpr int64_t kMetricsRequestMs = 1000;  // enough to resend a lost packet

static_assert(kSkeletonBytesMax < kMessageBytesMax);
static_assert(kMessageBytesMax <= kMessageBytesCeiling);
static_assert(kConfigJsonBytesMax < kSkeletonBytesMax);
static_assert(kConfigJsonBytesMax < kRegisteredBytesMax / 2);
static_assert(2 * kConfigJsonBytesMax < kControlMessageBytesMax);
static_assert(kSessionMemoryBytesMax <= kSharedMemoryBytesMax);
static_assert(kGatheredBytesMax < kSliceBytesMax && kSliceBytesMax < kBatchBytesMax);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_LIMITS_H_
