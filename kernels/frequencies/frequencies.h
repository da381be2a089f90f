// From a RopeConfig to inverse frequencies and the attention factor: the formulas of each scaling
// type.
//
//   RopeConfig --Resolve--> ResolvedRope --ForSeqLen(n)--> Frequencies --> rows of a TableCache
//
// Threading:  Everything here is immutable after creation and thread-safe.
// Precision:  Inverse frequencies have a significand of 64 bits, the same on every processor. With
//             a double, rounding alone would change the angle at position 10^9 by 1e-7.
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
#include "kernels/frequencies/inverse_frequencies.h"

namespace rope::kernels {

// Radians per position. A long double may have more bits than the 64 that are used.
using InverseFrequency = long double;

// The factor on cos and sin: the attention factor m, 1, or 1/m.
enum class Multiplier { kAttentionFactor, kOne, kInverseAttentionFactor };

// The tensor that rows are for. With xPos, q and k have different rows, and the inverse rotation of
// one side uses the rows of the other.
enum class Side { kQ, kK };

// The properties of a tensor that select its rows, in addition to the length and the multiplier.
struct RowUse {
  Side side = Side::kQ;
  DType dtype = DType::kFloat32;  // the tensor's; used with precision hf only
  bool operator==(const RowUse&) const = default;
};

struct Frequencies;

// Identity of a table: the bits of the inverse frequencies, of the multiplier and of the xPos
// scale, and the angle mode. Configs with equal rows have equal keys. Names, lengths, pairing and
// head counts are not part of the key.
class TableKey {
 public:
  TableKey() = default;
  explicit TableKey(const Frequencies& frequencies);  // ignores frequencies.key
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

// Everything that determines the rows of one table.
struct Frequencies {
  // One per column of the table, at most rotary_dim/2. If the multiplier is 1 and the frequencies
  // are the same for every seq_len, trailing zeros are left out: their channels pass unchanged.
  std::vector<InverseFrequency> inv_freq;
  double multiplier = 1;  // on cos and sin
  TableKey key = {};
  // False if the frequencies change with seq_len (dynamic NTK past its length). Rows are then built
  // for one request and not cached.
  bool cacheable = true;
  // xPos: column j is also multiplied by exp(growth[j] * (position - centre)). Empty without xPos.
  std::vector<long double> growth = {};
  int64_t centre = 0;
  // If set, rows are computed like Hugging Face's eager code does for a tensor of this dtype.
  // Positions, angles, cos and sin are each rounded to float32; cos and sin are multiplied in
  // float32 and rounded to the dtype. inv_freq then holds float32 numbers.
  std::optional<DType> eager = {};
};

// The first and the last position whose rows are finite and not 0.
struct PositionRange {
  int64_t first = 0;
  int64_t last = 0;
};

// A validated config with all defaults filled in, for one head_dim.
class ResolvedRope {
 public:
  // The values that depend on seq_len.
  struct AtSeqLen {
    std::vector<InverseFrequency> inv_freq;  // [rotary_dim/2], zeros included; float32 with hf
    double rope_theta = 0;                   // the base; dynamic enlarges it
    bool cacheable = true;
  };

  // Every field that the rope_type uses is set.
  const RopeConfig& config() const { return config_; }
  int64_t head_dim() const { return *config_.head_dim; }
  int64_t rotary_dim() const { return *config_.rotary_dim; }
  int64_t rotary_offset() const { return config_.rotary_offset.value_or(0); }
  double attention_factor() const { return attention_factor_; }
  // Whether q and k have different rows (xPos).
  bool DependsOnSide() const { return config_.xpos.has_value(); }
  // Whether rows depend on the tensor's dtype (precision hf). Excludes DependsOnSide().
  bool DependsOnDType() const { return config_.precision == Precision::kHf; }
  // Set with xPos only: its scale leaves the range of float32 at some distance from the centre,
  // which is 35,000 positions with a scale_base of 512.
  std::optional<PositionRange> position_range() const { return position_range_; }
  // Whether the result of ForSeqLen depends on the length (dynamic, longrope).
  bool DependsOnSeqLen() const;
  // The formulas at `seq_len` (largest position + 1, or the caller's planned length). REQUIRES:
  // seq_len >= 1.
  AtSeqLen Evaluate(int64_t seq_len) const;
  // The frequencies for `seq_len`. Lengths with equal numbers get the same pointer, except dynamic
  // past its length. Null if 1/m does not exist (kInverseAttentionFactor and an attention factor of
  // 0). REQUIRES: seq_len >= 1. Thread-safe.
  std::shared_ptr<const Frequencies> ForSeqLen(int64_t seq_len, Multiplier multiplier,
                                               RowUse use = {}) const;
  // The memory that it keeps, approximately: itself, its config, and the stored frequencies with
  // their keys.
  int64_t KeptBytes() const;
  // The frequencies for differences of positions, which move rotated vectors: all rotary_dim/2
  // columns, no multiplier, xPos without a centre, exact angles in either precision.
  // REQUIRES: seq_len >= 1.
  std::shared_ptr<const Frequencies> ForDifferences(int64_t seq_len, Side side = Side::kQ) const;

 private:
  friend absl::StatusOr<std::shared_ptr<const ResolvedRope>> Resolve(const RopeConfig&,
                                                                     std::optional<int64_t>);
  ResolvedRope() = default;

  RopeConfig config_;
  double attention_factor_ = 1;
  std::vector<long double> growth_;  // growth of q's rows with xPos
  std::optional<PositionRange> position_range_;
  // [branch][multiplier][side][dtype]. Branch 0 is used up to longrope's original length and by all
  // other types, branch 1 past it. Side and dtype are 0 if rows do not depend on them.
  std::shared_ptr<const Frequencies> fixed_[2][3][2][3];
  size_t fixed_numbers_ = 0;  // in all lists of fixed_

  std::shared_ptr<const Frequencies> Make(AtSeqLen evaluated, double multiplier,
                                          const RowUse& use) const;
  void MakeFixed(size_t branch, const AtSeqLen& evaluated);
};

// Validates and resolves. `head_dim` is used if the config has none.
// INVALID_ARGUMENT: as Validate; no head_dim is given; or a frequency is not finite.
absl::StatusOr<std::shared_ptr<const ResolvedRope>> Resolve(
    const RopeConfig& config, std::optional<int64_t> head_dim = std::nullopt);

// cos and sin of position * inv_freq, times multiplier, computed in long double and rounded once to
// double. The error is at most 1e-16 * multiplier for the given inv_freq. The rounding of inv_freq
// itself (2^-64) changes the angle by position * inv_freq * 2^-64. REQUIRES: |position| <= 2^31.
CosSin ExactCosSin(int64_t position, InverseFrequency inv_freq, double multiplier);

// cos and sin of one column of the row at `position`: ExactCosSin with the xPos scale, or
// EagerCosSin with precision hf, which gives float32 numbers.
CosSin CosSinAt(const Frequencies& frequencies, size_t column, int64_t position);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_FREQUENCIES_H_
