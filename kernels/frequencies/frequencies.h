// From a RopeConfig to inverse frequencies and the attention factor: the formulas of each scaling
// type.
//
//   RopeConfig --Resolve--> ResolvedRope --ForSeqLen(n)--> Frequencies (whose bits are the table's
//   key)
//
// Threading:  Everything here is immutable after creation and thread-safe.
// Precision:  Inverse frequencies carry the 64-bit significand of an x86 long double, because at
//             position 10^9 the rounding of a double alone turns the angle by 1e-7.
#ifndef ROPE_KERNELS_FREQUENCIES_FREQUENCIES_H_
#define ROPE_KERNELS_FREQUENCIES_FREQUENCIES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
#include "kernels/frequencies/cos_sin.h"

namespace rope::kernels {

// Radians per position.
using InverseFrequency = long double;

// How often cos and sin are scaled by the attention factor m.
enum class Multiplier { kAttentionFactor, kOne, kInverseAttentionFactor };

// Whose rows: those of q and k differ with xPos. An inverse takes the other side's.
enum class Side { kQ, kK };

// What else than its length and multiplier decides the rows of a tensor.
struct RowUse {
  Side side = Side::kQ;
  DType dtype = DType::kFloat32;  // of the tensor; read with precision hf only
  bool operator==(const RowUse&) const = default;
};

struct Frequencies;

// Identity of a table: the bits of the inverse frequencies, of the multiplier and of what xPos
// scales by, and the angle mode. Equal meaning gives an equal key; names, lengths, pairing and head
// counts are not in it.
class TableKey {
 public:
  TableKey() = default;
  TableKey(const std::vector<InverseFrequency>& inv_freq, double multiplier);
  explicit TableKey(const Frequencies& frequencies);  // its own key is not read
  bool operator==(const TableKey& other) const {
    return hash_ == other.hash_ && bits_ == other.bits_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const TableKey& key) {
    return H::combine(std::move(h), key.hash_);
  }

 private:
  std::string bits_;
  size_t hash_ = 0;
};

// What one table is made of.
struct Frequencies {
  // Columns of the table, without trailing zero frequencies where the multiplier is 1: those
  // channels pass through. At most rotary_dim/2.
  std::vector<InverseFrequency> inv_freq;
  double multiplier = 1;  // on cos and sin
  TableKey key = {};
  // False: they follow a varying seq_len (dynamic NTK past its length), so a table for them is
  // built for the request and not cached.
  bool cacheable = true;
  // xPos: column j is multiplied by exp(growth[j] * (position - centre)) too. Empty: by nothing.
  std::vector<long double> growth = {};
  int64_t centre = 0;
  // Set: rows as Hugging Face's eager code computes them for a tensor of this dtype. Positions and
  // angles are rounded to float32, cos and sin of those rounded to float32, multiplied in float32
  // and rounded to the dtype. The inverse frequencies are float32 numbers then.
  std::optional<DType> eager = {};
};

// First and last position of which every row is finite and not 0.
struct PositionRange {
  int64_t first = 0;
  int64_t last = 0;
};

// A validated config with every default filled in, for heads of one size.
class ResolvedRope {
 public:
  // Everything that depends on seq_len.
  struct AtSeqLen {
    std::vector<InverseFrequency> inv_freq;  // [rotary_dim/2], zeros included; float32 with hf
    double rope_theta = 0;                   // enlarged by dynamic
    bool cacheable = true;
  };

  // Every field that the type reads is set.
  const RopeConfig& config() const { return config_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t rotary_dim() const { return rotary_dim_; }
  int64_t rotary_offset() const { return config_.rotary_offset.value_or(0); }
  double attention_factor() const { return attention_factor_; }
  // Whether q and k turn by other rows (xPos).
  bool DependsOnSide() const { return config_.xpos.has_value(); }
  // Whether tensors of other dtypes take other rows (precision hf). Not beside DependsOnSide().
  bool DependsOnDType() const { return config_.precision == Precision::kHuggingFace; }
  // Set with xPos, whose scale leaves float32 at some distance from its centre: 35,000 positions
  // with a scale_base of 512.
  std::optional<PositionRange> position_range() const { return position_range_; }
  // Whether ForSeqLen differs from length to length (dynamic, longrope).
  bool DependsOnSeqLen() const;
  // The formulas at `seq_len` (largest position + 1, or the caller's planned length). REQUIRES:
  // seq_len >= 1.
  AtSeqLen Evaluate(int64_t seq_len) const;
  // What a table for `seq_len` is made of. The same pointer for every length that gives the same
  // numbers, except for dynamic past its length. Null where there is no 1/m to multiply with
  // (kInverseAttentionFactor and an attention factor of 0). REQUIRES: seq_len >= 1. Thread-safe.
  std::shared_ptr<const Frequencies> ForSeqLen(int64_t seq_len, Multiplier multiplier,
                                               RowUse use = {}) const;
  // About what the frequencies that are kept take, with their keys.
  int64_t KeptBytes() const;
  // What rows of differences of positions are made of, to move rotated vectors: all rotary_dim/2
  // columns, no multiplier, an xPos without a centre, exact angles in either precision.
  // REQUIRES: seq_len >= 1.
  std::shared_ptr<const Frequencies> ForDifferences(int64_t seq_len, Side side = Side::kQ) const;

 private:
  friend absl::StatusOr<std::shared_ptr<const ResolvedRope>> Resolve(const RopeConfig&,
                                                                     std::optional<int64_t>);
  ResolvedRope() = default;

  RopeConfig config_;
  int64_t head_dim_ = 0;
  int64_t rotary_dim_ = 0;
  double attention_factor_ = 1;
  std::vector<long double> growth_;  // of q's rows with xPos
  std::optional<PositionRange> position_range_;
  // [branch][multiplier][side][dtype]; branch 0: up to the length that changes something, 1: past
  // it (longrope). Side and dtype 0 where they make no difference.
  std::shared_ptr<const Frequencies> fixed_[2][3][2][3];

  std::shared_ptr<const Frequencies> Make(AtSeqLen evaluated, double multiplier,
                                          const RowUse& use) const;
  void MakeFixed(size_t branch, const AtSeqLen& evaluated);
};

// Validates and resolves. `head_dim` is taken where the config has none.
// INVALID_ARGUMENT: as Validate, neither gives a head_dim, or a frequency would not be finite.
absl::StatusOr<std::shared_ptr<const ResolvedRope>> Resolve(
    const RopeConfig& config, std::optional<int64_t> head_dim = std::nullopt);

// cos and sin of position * inv_freq, times multiplier, in long double and rounded once to double:
// right to 1e-16 * multiplier for the inv_freq given. Its own last bit, 2^-64, moves the angle by
// position * inv_freq * 2^-64. REQUIRES: |position| <= 2^31.
CosSin ExactCosSin(int64_t position, InverseFrequency inv_freq, double multiplier);

// cos and sin of a row at `position` as ExactCosSin, xPos and the angle mode included; float32
// numbers in the eager mode.
CosSin CosSinAt(const Frequencies& frequencies, size_t column, int64_t position);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_FREQUENCIES_H_
