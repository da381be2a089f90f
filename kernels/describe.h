// Describe: evaluates one rotary embedding: its frequencies, rows, scaling, warnings and readings.
//
//   LayerConfig --ReadLayer--> LayerRope --Resolve--> ResolvedRope --Describe--> DescribeReply
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT, "field: got X, want Y".
// Precision:  cos and sin are the exact values of the formulas, rounded once to double. With
//             precision hf they are EagerCosSin, rounded to row_dtype.
#ifndef ROPE_KERNELS_DESCRIBE_H_
#define ROPE_KERNELS_DESCRIBE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/compat/model_family.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/derived_rows.h"
#include "rope/describe.h"

namespace rope::kernels {

// The embedding of one layer, as a caller asks for it.
struct LayerRope {
  LayerConfig layer;               // with its config as the caller's `compat` interprets it
  RopeConfig stated;               // the config as it is written
  std::optional<Pairing> pairing;  // the caller's, else the layer's, else nothing
  // Of replies: the remarks that are no notes, what `compat` changes, that a layer does not rotate,
  // and settings without effect of a config that is no model's file.
  std::vector<std::string> warnings;
};

// Everything that is said of the file and of the values of its config, notes included.
std::vector<Remark> RemarksOf(const LayerRope& rope);

// Adds the warnings of the config and applies `compat` to it. `pairing`, if set, replaces the
// layer's. REQUIRES: Validate(layer.config) is OK, if the layer rotates. INVALID_ARGUMENT: the
// implementation has no such rotation.
absl::StatusOr<LayerRope> ReadLayer(LayerConfig layer, std::optional<Pairing> pairing,
                                    Compat compat);

struct DescribeOptions {
  std::optional<int64_t> seq_len = {};       // >= 1; unset: see SeqLenOf
  absl::Span<const int64_t> positions = {};  // of the rows; each 0 to 2^30
  DType row_dtype = DType::kFloat32;         // of rows with precision hf
  bool sinusoidal = false;                   // also fill Row::sinusoid
};

// The length that options ask for: seq_len, else the largest position + 1, else 1.
int64_t SeqLenOf(const DescribeOptions& options);

// The rows of an embedding, for callers that compute them one at a time. A pair of cos and sin
// takes about 0.3 microseconds. The embedding may be destroyed before the rows.
class DescribedRows {
 public:
  // The parameters of Describe, which has checked them.
  DescribedRows(const LayerRope& rope, const ResolvedRope& resolved,
                const DescribeOptions& options);

  // The attention factor is included; with xPos, cos and sin are those of q.
  Row At(int64_t position) const;

 private:
  RowSource source_;
  std::optional<Pairing> sinusoidal_;  // of the sinusoid; unset: rows have none
};

// Describes `rope`, except its config_id. `resolved` is Resolve(rope.layer.config), and null if the
// layer does not rotate: the answer then has no numbers. REQUIRES: the ranges of DescribeOptions.
// INVALID_ARGUMENT: `sinusoidal` for an embedding with an attention factor other than 1, with xPos,
// with precision hf or without a pairing.
absl::StatusOr<DescribeReply> Describe(const LayerRope& rope, const ResolvedRope* resolved,
                                       const DescribeOptions& options);

// A format version, the config as `compat` interprets it, precision, pairing, channel order, layer
// type, and whether the layer rotates; without names of models, warnings or the way the config was
// given. Numbers are exact. A config_id is the hash of this text.
std::string CanonicalText(const LayerRope& rope);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DESCRIBE_H_
