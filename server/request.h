// Request: one Rotate call on its way through the server, from received bytes to finished output.
// Knows no gRPC.
//
// Threading:  Confined to whoever owns it; `cancelled` may be set by any thread.
// Ownership:  Owns everything it refers to. Destroying it gives back its permit, its received bytes
//             and its output buffers.
#ifndef ROPE_SERVER_REQUEST_H_
#define ROPE_SERVER_REQUEST_H_

#include <google/protobuf/arena.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/frequencies.h"
#include "kernels/rotate_job.h"
#include "proto/message_split.h"
#include "rope/v1/rotate.pb.h"
#include "server/admission.h"
#include "server/buffer_pool.h"
#include "server/layout.h"
#include "server/region.h"

namespace rope::server {

// Heads of a packed tensor that are treated alike.
struct HeadSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool rotates = true;  // false: they pass through (v)
  bool is_k = false;
  size_t row_set = 0;  // of Plan::row_sets, where they rotate
};

// A part of a memory region.
struct RegionPart {
  std::shared_ptr<const Region> region;  // null: there is none
  uint64_t id = 0;
  uint64_t offset = 0;  // in the region
  int64_t bytes = 0;

  // Where it is, if it is mapped; else null.
  char* mapped() const {
    const bool any = region != nullptr && region->mapped() != nullptr;
    return any ? region->mapped() + offset : nullptr;
  }
};

// One tensor, validated.
struct TensorPlan {
  kernels::DType dtype = kernels::DType::kFloat32;         // of the input
  kernels::DType output_dtype = kernels::DType::kFloat32;  // any of them, fp8 too
  Layout layout;
  std::optional<LayoutStrides> strides;         // of the input, where it is not packed
  std::vector<HeadSpan> heads;                  // cover [0, layout.heads) in order
  std::string output_letters;                   // the axes of the packed output
  std::optional<LayoutStrides> output_strides;  // set: they are not in the order of `layout`
  std::optional<float> norm_eps;                // set: each head is normalised first
  std::vector<float> norm_weight;               // by channel; empty: 1
  float scale = 1;                              // multiplies the result
  bool token_scaled = false;                    // so does Plan::token_scales
  float output_scale = 1;                       // what an fp8 output is divided by
  proto::FragmentedBytes input;                 // packed: rows [pre][heads][post][head_dim]
  RegionPart place;                             // where the output goes; none: into the answer
  // Set: the output is made packed, and its rows are copied to `place` so far apart.
  std::optional<LayoutStrides> store_strides;
  std::vector<char> typed;  // what `input` refers to where it came as numbers

  int64_t elements() const { return layout.tokens() * layout.heads * layout.head_dim; }
  int64_t output_bytes() const { return elements() * kernels::ElementBytes(output_dtype); }
  // Of an element where the tensor takes more room, in the input or in the output.
  int64_t larger_element_bytes() const {
    return std::max(kernels::ElementBytes(dtype), kernels::ElementBytes(output_dtype));
  }
};

// Tokens that share their frequencies.
struct TokenRun {
  int64_t begin = 0;  // in memory order
  int64_t end = 0;
  std::shared_ptr<const kernels::Frequencies> frequencies;
  // Set: these tokens were rotated with other frequencies, at Plan::from_positions, and move.
  std::shared_ptr<const kernels::Frequencies> from;
};

// Rows that heads share: those of one side (xPos) or of one dtype (precision hf) where that makes a
// difference, else all.
struct RowSet {
  kernels::RowUse use;
  std::vector<TokenRun> runs;  // cover [0, tokens) in order
};
inline constexpr size_t kRowSetsMax = 3;  // dtypes; sides are two, and xPos has no precision hf

// What a request asks for, checked and resolved: the executor needs nothing else.
struct Plan {
  std::vector<TensorPlan> tensors;
  int64_t tokens = 0;
  // Over all tensors, each counted in its input or in its output, whichever is larger.
  int64_t bytes_per_token = 0;
  bool rotates = true;  // false: the layer has no rotary embedding, tensors pass through
  kernels::PairGeometry geometry;
  bool conjugate = false;
  kernels::PairArithmetic arithmetic = kernels::PairArithmetic::kTurn;
  absl::InlinedVector<RowSet, 1> row_sets;  // at most kRowSetsMax; empty with `rows`
  // The caller's own rows: token t takes row positions[0][t].
  std::shared_ptr<const kernels::TablePage> rows;
  std::array<std::vector<int64_t>, 3> positions;       // by token; rows 1 and 2 only with mrope
  std::optional<kernels::Mrope> mrope;                 // set: positions has three rows
  std::array<std::vector<int64_t>, 3> from_positions;  // the same for runs with `from`
  std::optional<kernels::Mrope> from_mrope;
  std::vector<float> token_scales;  // by token, for tensors that are token_scaled
  double attention_factor = 1;      // that the operation multiplies with, applied or not
  bool attention_factor_applied = true;
  std::vector<std::string> warnings;

  int64_t bytes() const { return tokens * bytes_per_token; }
};

struct Request {
  using Done = std::function<void(std::unique_ptr<Request>, absl::Status)>;

  // Set by the adapter.
  std::string id;
  uint64_t session = 0;  // the connection; queues take turns between sessions
  absl::Time received;
  int64_t message_bytes = 0;  // as received
  bool alone = false;         // no other call was in flight when it came
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<std::atomic<bool>> cancelled;
  // Of `message`; what a small request parses to fits into the block.
  static constexpr size_t kArenaBlockBytes = 2048;
  alignas(std::max_align_t) std::array<char, kArenaBlockBytes> arena_block;
  google::protobuf::Arena arena{arena_block.data(), arena_block.size()};
  v1::RotateRequest& message =  // the skeleton, parsed
      *google::protobuf::Arena::CreateMessage<v1::RotateRequest>(&arena);
  proto::SplitMessage split;  // payloads: views into `received_bytes`
  std::shared_ptr<const void> received_bytes;
  Done done;

  // Set on the way.
  std::vector<RegionPart> inputs;  // by the engine, of each tensor; empty: none in a region
  std::vector<std::shared_ptr<const Region>> held_regions;  // by the engine: of other arrays
  std::vector<PooledBuffer> region_copies;                  // by the engine: what payloads refer to
  bool in_place = false;              // by the engine: an output takes the place of its input
  bool ran = false;                   // by the executor: outputs may have been written
  Plan plan;                          // by the engine
  Permit permit;                      // by the engine
  std::vector<PooledBuffer> outputs;  // by the executor, one for each tensor
  std::string device;                 // by the executor
  v1::StageTimes stages;
  absl::Time enqueued;       // by the batcher
  int64_t tokens_taken = 0;  // by the batcher: tokens that batches have taken so far
  int64_t last_batch = 0;    // by the batcher: number of the batch that took some last

  bool IsCancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

// The share of a request that one batch runs.
struct Slice {
  Request* request = nullptr;
  int64_t begin = 0;  // tokens in memory order
  int64_t end = 0;
  absl::Status status;  // how it went, set by the executor
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_H_
