// Reads a tensor before and after a rotation by another program from .npy files, and takes a sample
// of it.
//
// Threading:  Functions and values.
// Errors:     INVALID_ARGUMENT: files, layout and positions that do not match; the message names
//             the flag.
// Limits:     A sample has at most kSampleElementsMax elements of each tensor, or 8 heads if that
//             is more.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_INPUT_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_INPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rope/status.h"
#include "rope/tensor.h"

namespace rope::client {

inline constexpr int64_t kSampleElementsMax = int64_t{1} << 18;  // 1 MiB of float32
inline constexpr int64_t kThinTokensMax = 32;
inline constexpr int64_t kThinRowsMax = 8;

// A row is one head of one sequence (and layer): head_dim channels.
struct RotatedSample {
  int64_t tokens_total = 0;  // in the files
  int64_t rows_total = 0;
  int64_t rows = 0;
  int64_t head_dim = 0;
  // Of `after`. float64 is treated as float32, and a tensor in float32 whose elements bfloat16 or
  // float16 can represent, like those of `before`, as one of that type.
  DType dtype = DType::kFloat32;
  int64_t seq_len = 0;             // largest position in the files + 1
  std::vector<int64_t> positions;  // of the sampled tokens
  std::vector<double> before;      // [tokens, rows, head_dim]
  std::vector<double> after;
  // Where the sampled tokens and rows are in the files.
  std::vector<int64_t> token_indices;
  std::vector<int64_t> row_indices;
  std::vector<int64_t> all_positions;  // of every token in the files
  int64_t heads = 1;                   // length of axis H
  int64_t head_stride = 1;             // row r is of head r / head_stride % heads
  bool heads_before_tokens = false;    // in the layout

  int64_t HeadOf(size_t row) const { return row_indices[row] / head_stride % heads; }
  // The row without its head: the sequence and the layer.
  int64_t SequenceOf(size_t row) const {
    return row_indices[row] % head_stride + row_indices[row] / head_stride / heads * head_stride;
  }
};

// The axes of the files and the positions of their tokens.
struct SamplePlan {
  std::string layout = {};              // letters of B, S, T, H, L and D; D last, one of S and T
  std::optional<int64_t> start = {};    // of the first token; excludes `positions`
  std::vector<int64_t> positions = {};  // of each token
};

// `before` and `after` are whole .npy files: <f4, <f2, <f8, or <u2 with the bits of bfloat16.
Result<RotatedSample> SampleOf(absl::string_view before, absl::string_view after,
                               const SamplePlan& plan);

// The type that the elements of a float32 sample come from, see RotatedSample::dtype.
DType NarrowestDType(const RotatedSample& sample);

// At most kThinTokensMax tokens with kThinRowsMax rows each.
RotatedSample Thinned(const RotatedSample& sample);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_INPUT_H_
