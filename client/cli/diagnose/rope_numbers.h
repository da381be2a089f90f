// RopeNumbers: the frequencies and rows of one config, computed by the kernels in this process.
//
// Threading:  One thread: rows are kept when they are first asked for.
// Errors:     INVALID_ARGUMENT: the config is not valid, or does not fit into the head.
// Limits:     Positions up to 2^31 in magnitude.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_ROPE_NUMBERS_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_ROPE_NUMBERS_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/cos_sin.h"
#include "kernels/frequencies/frequencies.h"
#include "rope/status.h"
#include "rope/tensor.h"

namespace rope::client {

inline constexpr double kSolvedPositionMax = 0x1p31;

class RopeNumbers {
 public:
  // `seq_len` decides dynamic and longrope; `dtype` is the tensor's, for precision hf.
  static Result<RopeNumbers> Of(const kernels::RopeConfig& config, int64_t head_dim,
                                int64_t seq_len, DType dtype);

  // Every field that the rope_type uses is set.
  const kernels::RopeConfig& config() const { return rope_->config(); }
  double attention_factor() const { return rope_->attention_factor(); }
  // The first rotated channel; 2 * pairs() channels rotate.
  int64_t window() const { return rope_->rotary_offset(); }
  size_t pairs() const { return inv_freq_.size(); }
  // Radians per position, one for each pair; 0 for a pair that does not turn.
  const std::vector<double>& inv_freq() const { return inv_freq_; }

  // cos and sin of each pair at `position`, the attention factor included. The position may be
  // negative, and need not be an integer. The reference is valid until the next call.
  const std::vector<kernels::CosSin>& RowAt(double position) const;

 private:
  RopeNumbers() = default;

  std::shared_ptr<const kernels::ResolvedRope> rope_;
  std::shared_ptr<const kernels::Frequencies> frequencies_;
  std::vector<double> inv_freq_;
  mutable std::unordered_map<int64_t, std::vector<kernels::CosSin>> rows_;  // at most kRowsMax
  mutable std::vector<kernels::CosSin> between_;  // the last row of a position between two tokens
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_ROPE_NUMBERS_H_
