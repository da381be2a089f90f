// Formats the scaling of a resolved config as one line, for readable tables of expected values.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_TESTS_UNIT_KERNELS_CONFIG_RESOLVED_TEXT_H_
#define ROPE_TESTS_UNIT_KERNELS_CONFIG_RESOLVED_TEXT_H_

#include <string>

#include "absl/strings/str_format.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::testing {

inline std::string MropeText(const kernels::Mrope& mrope) {
  constexpr const char* kLayouts[] = {"", "interleaved ", "hw ", "axial "};
  return absl::StrFormat(" mrope %s%d,%d,%d", kLayouts[static_cast<size_t>(mrope.layout)],
                         mrope.section[0], mrope.section[1], mrope.section[2]);
}

// The parameters that the type's formula uses.
inline std::string TypeText(const kernels::RopeConfig& config) {
  switch (config.rope_type) {
    case kernels::RopeType::kDefault:
      return "default";
    case kernels::RopeType::kLinear:
      return absl::StrFormat("linear f%g", *config.factor);
    case kernels::RopeType::kDynamic:
      if (config.alpha.has_value()) return absl::StrFormat("dynamic a%g", *config.alpha);
      return absl::StrFormat("dynamic f%g M%d", *config.factor, *config.max_position_embeddings);
    case kernels::RopeType::kNtk:
      return absl::StrFormat("ntk f%g", *config.factor);
    case kernels::RopeType::kYarn:
      return absl::StrFormat("yarn f%g L%d bf%g bs%g %s", *config.factor,
                             *config.original_max_position_embeddings, *config.beta_fast,
                             *config.beta_slow, *config.truncate ? "rounded" : "exact");
    case kernels::RopeType::kLongrope:
      return absl::StrFormat("longrope f%g L%d short%d long%d", *config.factor,
                             *config.original_max_position_embeddings, config.short_factor.size(),
                             config.long_factor.size());
    case kernels::RopeType::kLlama3:
      return absl::StrFormat("llama3 f%g lf%g hf%g L%d", *config.factor, *config.low_freq_factor,
                             *config.high_freq_factor, *config.original_max_position_embeddings);
    case kernels::RopeType::kProportional:
      return absl::StrFormat("proportional f%g p%g", *config.factor, *config.partial_rotary_factor);
  }
  return "unknown";
}

// For example "llama3 f8 lf1 hf4 L8192" or "default mrope 16,24,24".
inline std::string ScalingText(const kernels::ResolvedRope& rope) {
  const kernels::RopeConfig& config = rope.config();
  return TypeText(config) + (config.mrope.has_value() ? MropeText(*config.mrope) : "");
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_UNIT_KERNELS_CONFIG_RESOLVED_TEXT_H_
