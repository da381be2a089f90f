// RotateRequest and RotateReply: one rotation, as the client asks for it and the server answers.
//
// Threading:  Values.
// Ownership:  A request borrows the memory of its tensors (tensor.h) until its call has ended. A
//             reply owns its contents, except RotatedTensor::data where the request gave `output`.
#ifndef ROPE_ROTATE_H_
#define ROPE_ROTATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/prepared.h"
#include "rope/tensor.h"

namespace rope::client {

// Positions of the tokens: 0 to 2^30. Set exactly one of `start`, `starts`, `position_ids` and
// `device_ids`; only RotateRequest::rows allows none. `cu_seqlens` may accompany the first three.
struct Positions {
  std::optional<int64_t> start =
      {};  // of the first token of every sequence; later tokens count up from it
  std::vector<int64_t> starts = {};        // of the first token of each sequence
  std::vector<int64_t> position_ids = {};  // of each token
  // Shape of position_ids: {S}, {B, S} or {T}; with a leading 3 for three-axis positions (t, h, w).
  // Empty: one dimension.
  std::vector<int64_t> position_ids_shape = {};
  // Of each token, in memory of the GPU, packed integers of device_id_bytes bytes, 4 or 8; with
  // their position_ids_shape of one axis or two. Only in Client::Enqueue, which does not read them:
  // they may change until the work runs.
  const void* device_ids = nullptr;
  int32_t device_id_bytes = 8;
  std::vector<int64_t> cu_seqlens = {};  // packed sequences: offset of each first token, then T
  // Final sequence length for dynamic and longrope: one value for all sequences or one for each.
  // Empty: the largest position + 1.
  std::vector<int64_t> seq_lens = {};
  // Context parallelism: each sequence is cut into 2*cp_size chunks, and the tensors hold chunks
  // cp_rank and 2*cp_size - 1 - cp_rank. Set both or none, and only with `start` or `starts`.
  std::optional<int32_t> cp_size = {};
  std::optional<int32_t> cp_rank = {};
};

enum class Operation {
  kRotate,         // rotate by the angle, times the attention factor
  kInverse,        // undo a rotation
  kBackward,       // gradient of a rotation
  kAddSinusoidal,  // add the sinusoidal table: sin to a pair's first channel, cos to its second
  kReposition,     // move rotated tensors from `reposition` to `rope` and `positions`
};

// The current positions and embedding of tensors that are already rotated.
struct Reposition {
  Positions from = {};
  std::optional<RopeSpec> from_rope = {};  // unset: the request's `rope`
  // In place of `from` and RotateRequest::positions: how far tokens move, forwards or back. One
  // number for all; one for each page, in the shape of the pages; or one for each token, in the
  // shape of position_ids.
  std::vector<int64_t> by = {};
  std::vector<int64_t> by_shape = {};  // empty: one dimension
};

// The caller's own table, used instead of an embedding: either `angles` in radians, or `cos` and
// `sin`, which may include any factor. With `positions` the shape is [rows, pairs] and a token uses
// the row of its position. Without, each token has its own row: [S, pairs], [B, S, pairs] or
// [T, pairs]. Rows in memory that the server shares are not copied, and read only where a token
// uses them.
struct Rows {
  std::optional<ArrayView> cos_sin = {};  // [rows, 2 * pairs], excludes the others: cosines, sines
  std::optional<ArrayView> angles = {};   // excludes cos and sin
  std::optional<ArrayView> cos = {};
  std::optional<ArrayView> sin = {};
};

struct RotateRequest {
  // From Client::Prepare: the request is the prepared one with the values of this call, which are
  // request_id, labels, positions, reposition->from and by, the elements of rows, and `data`,
  // `memory`, `output` and the pages or slots of each tensor. A
  // tensor's strides replace both that were prepared; the call is then sent whole, as one without
  // a preparation. INVALID_ARGUMENT: any other field is set.
  std::optional<PreparedRotation> prepared = {};
  // At most 128 bytes; the server echoes and logs them. Empty: the server generates an id.
  std::string request_id = {};
  // For the server's log lines about this request. At most 16; keys of 1 to 64 bytes, values of at
  // most 256.
  std::map<std::string, std::string> labels = {};
  RopeSpec rope = {};
  Positions positions = {};
  Operation operation = Operation::kRotate;
  std::optional<Reposition> reposition = {};  // only with Operation::kReposition, required there
  // True: the results do not include the attention factor. The caller applies
  // RotateReply::attention_factor.
  bool skip_attention_factor = false;
  std::optional<DType> output_dtype = {};  // unset: each tensor's own dtype
  // The order of a rotated pair's channels in the results; unset: that of the pairing.
  std::optional<Pairing> channel_order = {};
  // Only with Operation::kRotate, kBackward or kReposition. Of `rope` only the pairing is then set.
  std::optional<Rows> rows = {};
  std::vector<TensorView> tensors = {};  // 1 to 1024; equal lengths and order of B, S, T and L
};

// Time spent in each stage of the server, in microseconds.
struct StageTimes {
  double decode_us = 0;
  double validate_us = 0;
  double queue_us = 0;
  double execute_us = 0;
};

struct RotateReply {
  std::string request_id = {};
  // The config's attention factor, applied or not. kReposition: that of `rope` divided by that of
  // `from_rope`.
  double attention_factor = 0;
  bool attention_factor_applied = false;
  std::string device = {};  // the device that ran the request, for example "cpu"
  StageTimes stage_times = {};
  std::vector<std::string> warnings = {};
  std::vector<RotatedTensor> tensors = {};  // in the order of the request
};

}  // namespace rope::client

#endif  // ROPE_ROTATE_H_
