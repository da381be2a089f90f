#include "client/cli/diagnose/rope_numbers.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace rope::client {
namespace {

constexpr size_t kRowsMax = 4096;  // of 64 pairs: 4 MiB

kernels::DType KernelsDType(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return kernels::DType::kFloat16;
    case DType::kBFloat16:
      return kernels::DType::kBFloat16;
    default:
      return kernels::DType::kFloat32;
  }
}

Status Refused(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

}  // namespace

Result<RopeNumbers> RopeNumbers::Of(const kernels::RopeConfig& config, int64_t head_dim,
                                    int64_t seq_len, DType dtype) {
  if (config.xpos.has_value()) {
    return Refused("config.xpos: got it, which turns q and k differently, want none");
  }
  auto rope = kernels::Resolve(config, head_dim);
  if (!rope.ok()) return ToStatus(rope.status());
  RopeNumbers numbers;
  numbers.rope_ = *std::move(rope);
  const kernels::ResolvedRope& resolved = *numbers.rope_;
  if (!config.rotary_offset.has_value() && resolved.head_dim() != head_dim) {
    return Refused(
        absl::StrCat("head_dim: got ", head_dim, ", want the config's ", resolved.head_dim()));
  }
  if (resolved.rotary_dim() > head_dim - resolved.rotary_offset()) {
    return Refused(absl::StrCat("rotary_dim: got ", resolved.rotary_dim(), " from channel ",
                                resolved.rotary_offset(), ", want at most the head's ", head_dim));
  }
  numbers.frequencies_ = resolved.ForSeqLen(seq_len, kernels::Multiplier::kAttentionFactor,
                                            {.dtype = KernelsDType(dtype)});
  for (const kernels::InverseFrequency frequency : resolved.Evaluate(seq_len).inv_freq) {
    numbers.inv_freq_.push_back(static_cast<double>(frequency));
  }
  return numbers;
}

const std::vector<kernels::CosSin>& RopeNumbers::RowAt(double position) const {
  const double nearest = std::round(position);
  if (nearest != position) {
    between_.resize(pairs());
    for (size_t i = 0; i < pairs(); ++i) {
      const double angle = position * inv_freq_[i];
      between_[i] = {.cos = attention_factor() * std::cos(angle),
                     .sin = attention_factor() * std::sin(angle)};
    }
    return between_;
  }
  const auto key = static_cast<int64_t>(nearest);
  if (rows_.size() >= kRowsMax && rows_.find(key) == rows_.end()) rows_.clear();
  const auto [it, is_new] = rows_.try_emplace(key);
  if (!is_new) return it->second;
  // Frequencies leaves out trailing pairs that do not turn where nothing scales them either.
  it->second.resize(pairs());
  for (size_t i = 0; i < frequencies_->inv_freq.size(); ++i) {
    it->second[i] = kernels::CosSinAt(*frequencies_, i, std::abs(key));
    if (key < 0) it->second[i].sin = -it->second[i].sin;
  }
  return it->second;
}

}  // namespace rope::client
