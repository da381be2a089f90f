#include "client/cli/kernels_config.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace rope::client {
namespace {

// Copies the fields that both configs have with one name and one type.
template <typename From, typename To>
void CopyNumbers(const From& from, To& to) {
  to.head_dim = from.head_dim;
  to.rotary_dim = from.rotary_dim;
  to.partial_rotary_factor = from.partial_rotary_factor;
  to.max_position_embeddings = from.max_position_embeddings;
  to.original_max_position_embeddings = from.original_max_position_embeddings;
  to.factor = from.factor;
  to.attention_factor = from.attention_factor;
  to.mscale = from.mscale;
  to.mscale_all_dim = from.mscale_all_dim;
  to.beta_fast = from.beta_fast;
  to.beta_slow = from.beta_slow;
  to.truncate = from.truncate;
  to.low_freq_factor = from.low_freq_factor;
  to.high_freq_factor = from.high_freq_factor;
  to.short_factor = from.short_factor;
  to.long_factor = from.long_factor;
  to.attn_factor = from.attn_factor;
  to.alpha = from.alpha;
  to.mixed_b = from.mixed_b;
  to.inv_freq = from.inv_freq;
  to.rotary_offset = from.rotary_offset;
}

kernels::Mrope::Layout KernelsLayout(const RopeConfig& config) {
  using Layout = kernels::Mrope::Layout;
  switch (config.mrope_layout) {
    case MropeLayout::kSections:
      return Layout::kSections;
    case MropeLayout::kInterleaved:
      return Layout::kInterleaved;
    case MropeLayout::kHwInterleaved:
      return Layout::kHwInterleaved;
    case MropeLayout::kAxial:
      return Layout::kAxial;
    case MropeLayout::kUnspecified:
      break;
  }
  return config.mrope_interleaved.value_or(false) ? Layout::kInterleaved : Layout::kSections;
}

void SetMrope(const kernels::Mrope& mrope, RopeConfig& config) {
  using Layout = kernels::Mrope::Layout;
  if (!mrope.axes.empty()) {
    config.mrope_axes.assign(mrope.axes.begin(), mrope.axes.end());
    return;
  }
  config.mrope_section.assign(mrope.section.begin(), mrope.section.end());
  config.mrope_interleaved = mrope.layout == Layout::kInterleaved;
  switch (mrope.layout) {
    case Layout::kSections:
      config.mrope_layout = MropeLayout::kSections;
      break;
    case Layout::kInterleaved:
      config.mrope_layout = MropeLayout::kInterleaved;
      break;
    case Layout::kHwInterleaved:
      config.mrope_layout = MropeLayout::kHwInterleaved;
      break;
    case Layout::kAxial:
      config.mrope_layout = MropeLayout::kAxial;
      break;
  }
}

// The fields that select a variant of a formula.
void SetSwitches(const kernels::RopeConfig& from, RopeConfig& config) {
  if (from.reverse) config.reverse = true;
  if (from.ramp.has_value()) {
    config.ramp = *from.ramp == kernels::YarnRamp::kIndex ? YarnRamp::kIndex : YarnRamp::kTurns;
  }
  if (from.longrope_branch.has_value()) {
    config.longrope_branch = *from.longrope_branch == kernels::LongropeBranch::kShort
                                 ? LongropeBranch::kShort
                                 : LongropeBranch::kLong;
  }
  if (from.seq_len_policy.has_value()) {
    config.seq_len_policy = *from.seq_len_policy == kernels::SeqLenPolicy::kSequence
                                ? SeqLenPolicy::kSequence
                                : SeqLenPolicy::kBatch;
  }
  if (from.xpos.has_value()) {
    config.xpos = XPos{.scale_base = from.xpos->scale_base, .centre = from.xpos->centre};
  }
  if (from.mrope.has_value()) SetMrope(*from.mrope, config);
}

}  // namespace

std::optional<kernels::Pairing> KernelsPairing(Pairing pairing) {
  switch (pairing) {
    case Pairing::kHalf:
      return kernels::Pairing::kHalf;
    case Pairing::kInterleaved:
      return kernels::Pairing::kInterleaved;
    case Pairing::kUnspecified:
      break;
  }
  return std::nullopt;
}

kernels::Compat KernelsCompat(Compat compat) {
  switch (compat) {
    case Compat::kHf:
      return kernels::Compat::kHuggingFace;
    case Compat::kVllm:
      return kernels::Compat::kVllm;
    case Compat::kLlamacpp:
      return kernels::Compat::kLlamaCpp;
    case Compat::kDeepseek:
      return kernels::Compat::kDeepSeek;
    case Compat::kUnspecified:
      break;
  }
  return kernels::Compat::kDefault;
}

Result<kernels::RopeConfig> KernelsConfigOf(const RopeConfig& from) {
  kernels::RopeConfig config;
  if (!from.rope_type.empty()) {
    const auto type = kernels::ParseRopeType(from.rope_type);
    if (!type.ok()) return ToStatus(type.status());
    config.rope_type = *type;
  }
  config.rope_theta = from.rope_theta.value_or(config.rope_theta);
  CopyNumbers(from, config);
  if (from.ramp == YarnRamp::kIndex) config.ramp = kernels::YarnRamp::kIndex;
  if (from.ramp == YarnRamp::kTurns) config.ramp = kernels::YarnRamp::kTurns;
  if (from.longrope_branch == LongropeBranch::kShort) {
    config.longrope_branch = kernels::LongropeBranch::kShort;
  }
  if (from.longrope_branch == LongropeBranch::kLong) {
    config.longrope_branch = kernels::LongropeBranch::kLong;
  }
  if (from.seq_len_policy == SeqLenPolicy::kSequence) {
    config.seq_len_policy = kernels::SeqLenPolicy::kSequence;
  }
  if (from.seq_len_policy == SeqLenPolicy::kBatch) {
    config.seq_len_policy = kernels::SeqLenPolicy::kBatch;
  }
  config.reverse = from.reverse.value_or(false);
  if (from.xpos.has_value()) {
    config.xpos = {.scale_base = from.xpos->scale_base, .centre = from.xpos->centre};
  }
  if (!from.mrope_axes.empty()) {
    config.mrope.emplace().axes.assign(from.mrope_axes.begin(), from.mrope_axes.end());
    return config;
  }
  if (from.mrope_section.empty()) return config;
  if (from.mrope_section.size() != 3) {
    return Status(
        StatusCode::kInvalidArgument,
        absl::StrCat("mrope_section: got ", from.mrope_section.size(), " counts, want three"));
  }
  config.mrope = kernels::Mrope{.section = {}, .layout = KernelsLayout(from)};
  std::copy(from.mrope_section.begin(), from.mrope_section.end(), config.mrope->section.begin());
  return config;
}

RopeConfig ClientConfigOf(const kernels::RopeConfig& from) {
  RopeConfig config;
  config.rope_type = std::string(kernels::Name(from.rope_type));
  config.rope_theta = from.rope_theta;
  CopyNumbers(from, config);
  SetSwitches(from, config);
  return config;
}

}  // namespace rope::client
