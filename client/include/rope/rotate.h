// A rotation to ask for, and what comes back.
//
// Threading:  Values.
// Ownership:  A request borrows its tensors' memory (tensor.h) until the call that it is for has
//             ended. A reply owns what it holds, except RotatedTensor::data where the request gave
//             `output`.
#ifndef ROPE_ROTATE_H_
#define ROPE_ROTATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/tensor.h"

namespace rope::client {

// Where the tokens stand: exactly one of `start`, `starts` and `position_ids`; `cu_seqlens` may
// stand beside each.
struct Positions {
  std::optional<int64_t> start =
      {};                            // of the first token of every sequence; the next tokens follow
  std::vector<int64_t> starts = {};  // of each sequence's first token
  std::vector<int64_t> position_ids = {};  // of each token
  // Shape of position_ids: {S}, {B, S} or {T}, with a leading 3 where each token has three (t, h,
  // w). Empty: one axis.
  std::vector<int64_t> position_ids_shape = {};
  std::vector<int64_t> cu_seqlens = {};  // packed sequences: where each begins, then T
  // Final length for dynamic and longrope configs: one value, or one for each sequence.
  std::vector<int64_t> seq_len = {};
  // Context parallel: the tensors hold chunks cp_rank and 2*cp_size - 1 - cp_rank of each sequence,
  // cut into 2*cp_size. Both or none.
  std::optional<int32_t> cp_size = {};
  std::optional<int32_t> cp_rank = {};
};

enum class Operation {
  kRotate,         // turn by the angle, times the attention factor
  kInverse,        // undo a rotation
  kBackward,       // gradient of a rotation
  kAddSinusoidal,  // add the sinusoidal table: sin to a pair's first channel, cos to its second
  kReposition,     // move rotated tensors from `reposition` to `rope` and `positions`
};

// Where rotated tensors stand now.
struct Reposition {
  Positions from = {};
  std::optional<RopeSpec> from_rope = {};  // unset: the request's
};

// Rows of the caller's own table in place of an embedding: the angles in radians, or cos and sin
// with whatever factor they hold. Beside positions [rows, pairs], and a token takes the row of its
// position; without, a row for each token: [S, pairs], [B, S, pairs] or [T, pairs].
struct Rows {
  std::optional<ArrayView> angles = {};  // alone
  std::optional<ArrayView> cos = {};
  std::optional<ArrayView> sin = {};
};

struct RotateRequest {
  std::string request_id = {};  // echoed and logged by the server; empty: the server makes one
  RopeSpec rope = {};
  Positions positions = {};
  Operation operation = Operation::kRotate;
  std::optional<Reposition> reposition = {};  // with Operation::kReposition alone
  // True: the attention factor is left to the caller.
  bool return_attention_factor = false;
  std::optional<DType> output_dtype = {};  // unset: each tensor's own
  // With Operation::kRotate or kBackward; of `rope` then only the pairing is set.
  std::optional<Rows> rows = {};
  std::vector<TensorView> tensors = {};
};

// Time in each stage of the server, microseconds.
struct StageTimes {
  double decode = 0;
  double validate = 0;
  double queue = 0;
  double execute = 0;
};

struct RotateReply {
  std::string request_id = {};
  // Of the config, whether applied or not; kReposition: of `rope` over that of `from_rope`.
  double attention_factor = 0;
  bool attention_factor_applied = false;
  std::string device = {};  // what ran it
  StageTimes microseconds = {};
  std::vector<std::string> warnings = {};
  std::vector<RotatedTensor> tensors = {};  // in the order of the request
};

}  // namespace rope::client

#endif  // ROPE_ROTATE_H_
