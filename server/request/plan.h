// The plan of a request: what is read, rotated and written, and where its arrays come from.
#ifndef ROPE_SERVER_REQUEST_PLAN_H_
#define ROPE_SERVER_REQUEST_PLAN_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/check.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/ipc/process_memory.h"
#include "proto/wire/message_split.h"
#include "proto/wire/wire_cursor.h"
#include "server/clients/regions.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/request/layout.h"

namespace rope::server {

// Bounds of one request.
namespace limits {

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

}  // namespace limits

// A part of a memory region.
struct RegionPart {
  std::shared_ptr<const Region> region;  // null: no region
  uint64_t id = 0;
  uint64_t offset = 0;  // in the region
  int64_t bytes = 0;
  bool may_lie_on_device = false;  // its reader reads no byte

  // The address of the part. REQUIRES: it has a region, not of a device.
  char* mapped() const {
    ROPE_CHECK(region->mapped() != nullptr);
    return region->mapped() + offset;
  }
  bool IsOnDevice() const { return region != nullptr && region->kind() == Region::Kind::kDevice; }
  // For kernels of the device. REQUIRES: it lies there.
  void* device_address() const {
    ROPE_CHECK(IsOnDevice());
    return reinterpret_cast<void*>(proto::kProcessMemoryBegin + offset);
  }
};

// Whether two parts share a byte.
inline bool Overlap(const RegionPart& a, const RegionPart& b) {
  if (a.region != b.region || a.bytes == 0 || b.bytes == 0) return false;
  return a.offset < b.offset + static_cast<uint64_t>(b.bytes) &&
         b.offset < a.offset + static_cast<uint64_t>(a.bytes);
}

// Whether the elements of an array came as packed bytes, and not as numbers.
inline bool CameAsBytes(const v1::Array& array) {
  return proto::HasPayload(array) || array.has_region();
}

// The bytes of a request's arrays: payloads of its message, or parts of memory regions.
//
// Threading:  Confined to its owner.
// Ownership:  The message must outlive it. Bytes that it finds stay valid as long as it says.
class ArraySource {
 public:
  // Without memory regions.
  explicit ArraySource(const proto::SplitMessage& message) : message_(message) {}
  virtual ~ArraySource() = default;

  // The payload of an array of the message. REQUIRES: proto::HasPayload(array).
  const proto::FragmentedBytes& Payload(const v1::Array& array) const {
    return proto::PayloadOf(array, message_);
  }

  // Finds the region of `part` by its id, and returns the part's bytes, which are valid while
  // part.region is held. `field` names the part. Memory of a device has no bytes here.
  // INVALID_ARGUMENT: this array may not be in a region, or not on a device.
  virtual absl::StatusOr<proto::FragmentedBytes> Find(RegionPart& /*part*/,
                                                      absl::string_view field) {
    return InvalidField(field, "a region", "raw or numbers");
  }

 private:
  const proto::SplitMessage& message_;
};

// Plan: a validated request with all names resolved, which is all that the executor needs. Knows
// neither Protobuf messages nor gRPC.
//
// Threading:  Values.
// Ownership:  Inputs are views into the request's received bytes, its copies or memory regions.

// A range of heads of a packed tensor with the same role.
struct HeadSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool rotates = true;  // false: the heads pass through unchanged (v)
  bool is_k = false;
  size_t row_set = 0;  // index into Plan::row_sets; meaningful if `rotates`
};

// Where the tokens of a tensor lie in a pool of pages, in elements from the pool's beginning.
// Tokens are numbered in memory order, layers outermost.
struct PagedPlan {
  int64_t block_size = 1;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t layer_stride = 0;
  int64_t pool_elements = 0;              // 0: unknown
  std::vector<int64_t> pages_shape = {};  // [B, pages] or [pages]; empty: the caller gave slots
  // By token of a layer. -1: no token. Tensors that share them have the same.
  std::shared_ptr<const std::vector<int64_t>> slots = nullptr;
  std::shared_ptr<const std::vector<int64_t>> targets = nullptr;  // of the results

  int64_t OffsetOf(int64_t slot) const {
    return slot / block_size * page_stride + slot % block_size * token_stride;
  }
};

// One tensor, validated.
struct TensorPlan {
  kernels::DType dtype = kernels::DType::kFloat32;         // of the input
  kernels::DType output_dtype = kernels::DType::kFloat32;  // any dtype, including fp8
  Layout layout;
  std::optional<LayoutStrides> strides;         // of the input; unset: the input is packed
  std::optional<PagedPlan> paged;               // set: input and output are pools of pages
  absl::InlinedVector<HeadSpan, 1> heads;       // cover [0, layout.heads) in order
  std::string output_letters;                   // the axes of the packed output
  std::optional<LayoutStrides> output_strides;  // set: the output's axes have another order
  std::optional<float> norm_eps;                // set: each head is normalised first
  // By channel; null: all 1. The calls of a prepared request share it.
  std::shared_ptr<const std::vector<float>> norm_weight;
  std::optional<int64_t> rotary_offset;  // first rotated channel; unset: the embedding's
  float scale = 1;                       // factor of the result
  bool token_scaled = false;             // Plan::token_scales is a factor as well
  float output_scale = 1;                // divisor of an fp8 output
  proto::FragmentedBytes input;          // packed: rows [pre][heads][post][head_dim]
  RegionPart source;                     // of the input; no region: in the message
  RegionPart place;                      // of the output; no region: in the reply
  // The fragments of `input`, which the result overwrites and the reply takes. Empty: in a reply,
  // the result takes a pooled buffer.
  absl::InlinedVector<char*, 2> overwritten;
  bool numbers = false;     // the input came as numbers, so the result does too
  std::vector<char> typed;  // the elements that `input` views, if they came as numbers

  int64_t elements() const { return layout.tokens() * layout.heads * layout.head_dim; }
  int64_t token_bytes() const { return layout.heads * layout.head_dim * larger_element_bytes(); }
  // Whether its channels are not adjacent, so that a slice is copied before it runs.
  bool IsGathered() const {
    return strides.has_value() && strides->channel != 1 && layout.head_dim > 1;
  }
  bool IsInReply() const { return place.region == nullptr; }
  bool TakesBuffer() const { return IsInReply() && overwritten.empty(); }
  // Whether the client loses its input: a place that overlaps the input is exactly that of it.
  bool IsInPlace() const { return Overlap(place, source); }
  int64_t output_bytes() const { return elements() * kernels::ElementBytes(output_dtype); }
  // The size of an element in the input or in the output, whichever is larger.
  int64_t larger_element_bytes() const {
    return std::max(kernels::ElementBytes(dtype), kernels::ElementBytes(output_dtype));
  }
};

// A range of tokens that share their frequencies.
struct TokenRun {
  int64_t begin = 0;  // in memory order
  int64_t end = 0;
  std::shared_ptr<const kernels::Frequencies> frequencies;
  // Set: a reposition between two embeddings. These tokens were rotated with `from` at
  // Plan::from_positions; that rotation is undone before the new one is applied.
  std::shared_ptr<const kernels::Frequencies> from;
};

// The rows of a group of heads. Rows depend on the side (q or k) with xPos, and on the dtype with
// precision hf. Without either, all heads share one set.
struct RowSet {
  kernels::RowUse use;
  absl::InlinedVector<TokenRun, 1> runs;  // cover [0, tokens) in order
};
// Three dtypes, or two sides. xPos and precision hf exclude each other.
inline constexpr size_t kRowSetsMax = 3;

// The jobs that a slice becomes: at most `fixed`, and `per_token` for each of its tokens.
struct JobBounds {
  int64_t fixed = 0;
  double per_token = 0;

  int64_t Of(int64_t tokens) const {
    return fixed + static_cast<int64_t>(per_token * static_cast<double>(tokens));
  }
  // How many of `tokens` become at most `most` jobs.
  int64_t TokensWithin(int64_t most, int64_t tokens) const {
    if (Of(tokens) <= most) return tokens;
    if (most <= fixed) return 0;
    return static_cast<int64_t>(static_cast<double>(most - fixed) / per_token);
  }
};

// Tensors that are token_scaled are multiplied by 1 + beta * ln(1 + floor(position / length)).
struct TokenScaling {
  double beta = 0;
  int64_t length = 1;  // the config's original_max_position_embeddings
  std::string field;   // of beta, for errors
};

// The table of a move, and what keeps its rows.
struct MoveTable {
  kernels::RowTable rows;
  RegionPart cos;
  RegionPart sin;
  std::shared_ptr<const std::vector<float>> copied;  // rows that could not be used where they are
};

// The positions of tensors on a device, which no thread of the host walks over.
struct DevicePositions {
  std::optional<int64_t> move;  // the difference of all tokens; excludes the others
  std::vector<int64_t> starts;  // of each sequence
  RegionPart ids;               // of each token, on the device; no region: none
  bool wide = false;            // they are int64, not int32
  bool by_batch = false;        // [B, S]; else one list for every sequence
  int64_t table_rows = 0;       // the model's own length; 0: unknown
};

// UNIMPLEMENTED: something that tensors in host memory may have.
inline absl::Status RefuseOnDevice(absl::string_view field, absl::string_view got,
                                   absl::string_view want) {
  return MakeError(Reason::kNotBuilt, field, absl::StrCat(got, " with tensors on a device"), want);
}

// The validated request. The executor needs nothing else.
struct Plan {
  // False: the thread that received the request plans it. Planning then returns NeedsSideThread
  // instead of doing what takes longer than rotating a slice.
  bool may_take_long = true;
  std::vector<TensorPlan> tensors;
  int64_t tokens = 0;
  // The sum over all tensors; each counts its input or its output, whichever is larger.
  int64_t bytes_per_token = 0;
  bool rotates = true;  // false: the layer has no rotary embedding; tensors pass through
  bool conjugate = false;
  bool attention_factor_applied = true;
  kernels::PairArithmetic arithmetic = kernels::PairArithmetic::kTurn;
  std::optional<kernels::Pairing> channel_order;  // of the results; unset: that of the pairing
  kernels::PairGeometry geometry;
  absl::InlinedVector<RowSet, 1> row_sets;  // at most kRowSetsMax; empty with `rows`
  // Explicit rows of the caller: token t uses row positions[0][t].
  std::shared_ptr<const kernels::TablePage> rows;
  // A move by the caller's table, from row from_positions[0][t] to row positions[0][t].
  std::shared_ptr<MoveTable> table;
  // Set: all tensors lie on a device. Positions by token are empty, and each row set is one run.
  std::shared_ptr<DevicePositions> device;
  std::array<std::vector<int64_t>, 3> positions;       // by token; rows 1 and 2 only with mrope
  std::shared_ptr<const kernels::Mrope> mrope;         // set: positions has three rows
  std::array<std::vector<int64_t>, 3> from_positions;  // of runs with `from`, and of a table
  std::shared_ptr<const kernels::Mrope> from_mrope;
  JobBounds jobs;
  int64_t frequency_bytes = 0;  // of frequencies that were made for this request
  std::optional<TokenScaling> token_scaling;
  std::vector<float> token_scales;  // by token, for tensors that are token_scaled
  double attention_factor = 1;      // of the operation, whether or not it is applied
  std::vector<std::string> warnings;

  int64_t bytes() const { return tokens * bytes_per_token; }  // fits 63 bits (PrepareTensors)
  bool IsInPlace() const { return std::ranges::any_of(tensors, &TensorPlan::IsInPlace); }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PLAN_H_
