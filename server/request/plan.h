// Plan: what a request asks for, checked and resolved. Knows no message and no gRPC.
//
// Threading:  Values.
// Ownership:  Inputs are views into the request's received bytes, its copies or memory regions.
#ifndef ROPE_SERVER_REQUEST_PLAN_H_
#define ROPE_SERVER_REQUEST_PLAN_H_

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/wire/wire_cursor.h"
#include "server/memory/region.h"
#include "server/request/layout.h"

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
  absl::InlinedVector<HeadSpan, 1> heads;       // cover [0, layout.heads) in order
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
  absl::InlinedVector<TokenRun, 1> runs;  // cover [0, tokens) in order
};
inline constexpr size_t kRowSetsMax = 3;  // dtypes; sides are two, and xPos has no precision hf

// What building the rows of a plan costs.
struct BuildBounds {
  int64_t rows = 0;
  // Tokens at which a slice ends, so that it builds for a bounded time; null: one slice may hold
  // all of it.
  std::shared_ptr<const std::vector<int64_t>> slice_ends;
};

// What a request asks for, checked and resolved: the executor needs nothing else.
struct Plan {
  std::vector<TensorPlan> tensors;
  int64_t tokens = 0;
  // Over all tensors, each counted in its input or in its output, whichever is larger.
  int64_t bytes_per_token = 0;
  bool rotates = true;  // false: the layer has no rotary embedding, tensors pass through
  bool conjugate = false;
  bool attention_factor_applied = true;
  kernels::PairArithmetic arithmetic = kernels::PairArithmetic::kTurn;
  kernels::PairGeometry geometry;
  // The embedding; null where none decides (explicit rows, moves, layers that do not rotate).
  std::shared_ptr<const kernels::ResolvedRope> resolved;
  absl::InlinedVector<RowSet, 1> row_sets;  // at most kRowSetsMax; empty with `rows`
  // The caller's own rows: token t takes row positions[0][t].
  std::shared_ptr<const kernels::TablePage> rows;
  std::array<std::vector<int64_t>, 3> positions;       // by token; rows 1 and 2 only with mrope
  std::optional<kernels::Mrope> mrope;                 // set: positions has three rows
  std::array<std::vector<int64_t>, 3> from_positions;  // the same for runs with `from`
  std::optional<kernels::Mrope> from_mrope;
  BuildBounds building;
  std::vector<float> token_scales;  // by token, for tensors that are token_scaled
  double attention_factor = 1;      // that the operation multiplies with, applied or not
  std::vector<std::string> warnings;

  int64_t bytes() const { return tokens * bytes_per_token; }
};

// Asked when the tensors of a plan stand, before memory is taken for positions, rows and results.
using AdmitTensors = absl::FunctionRef<absl::Status(Plan& plan)>;

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PLAN_H_
