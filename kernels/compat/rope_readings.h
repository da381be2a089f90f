// How implementations are known to read one config differently: as a switch (ApplyCompat), as a
// comparison (Readings), and what a resolved config did to each frequency.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT: the implementation has no such rotation.
#ifndef ROPE_KERNELS_COMPAT_ROPE_READINGS_H_
#define ROPE_KERNELS_COMPAT_ROPE_READINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::kernels {

enum class Compat {
  kDefault,      // Hugging Face; dynamic and longrope by sequence
  kHuggingFace,  // Hugging Face; dynamic and longrope by the longest sequence of the call
  kVllm,
  kLlamaCpp,
  kDeepSeek,  // DeepSeek's model code, and vLLM's class for it
};

// "default", "hf", "vllm", "llamacpp", "deepseek".
std::string_view Name(Compat compat);

struct CompatConfig {
  RopeConfig config;                 // says the same without a compat
  std::vector<std::string> changes;  // in words, one for each that was made
};

// `config` as an implementation reads it, in explicit fields. What only this service has (ramp,
// longrope_branch, alpha, seq_len_policy) stays where it is given. REQUIRES: `config` is valid.
// INVALID_ARGUMENT: it has no such rotation.
absl::StatusOr<CompatConfig> ApplyCompat(const RopeConfig& config, Compat compat);

// One implementation whose numbers differ.
struct Reading {
  std::string implementation;
  std::string difference;            // in words
  double attention_factor = 0;       // 0: it has no such rotation
  double inv_freq_max_relative = 0;  // largest relative difference of an inverse frequency
};

// What the implementations make of `stated` where that is not what `answered` does at `seq_len`.
// REQUIRES: `answered` is `stated`, resolved under any compat; seq_len >= 1.
std::vector<Reading> Readings(const RopeConfig& stated, const ResolvedRope& answered,
                              int64_t seq_len);

// Where a blend runs between kept and divided frequencies, in indices and in positions per turn.
struct Ramp {
  double low_index = 0;   // kept up to here
  double high_index = 0;  // divided from here on
  double low_wavelength = 0;
  double high_wavelength = 0;
};

// That of yarn and llama3; unset for the other types.
std::optional<Ramp> RampOf(const ResolvedRope& rope);

// What the scaling did to one frequency.
enum class ColumnScaling {
  kKept,
  kBlended,  // between kept and divided by the factor (yarn, llama3)
  kScaled,   // divided by the factor, or changed otherwise
  kStill,    // does not turn
};

// One for each column of `evaluated`, which is rope.Evaluate() of some length.
std::vector<ColumnScaling> ScalingOf(const ResolvedRope& rope,
                                     const ResolvedRope::AtSeqLen& evaluated);

// Largest absolute error of a cos or sin if inverse frequencies and angles were float32, over the
// 16 positions up to `position`, without the attention factor. REQUIRES: 0 <= position <= 2^31.
double Float32AngleError(const ResolvedRope::AtSeqLen& evaluated, int64_t position);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ROPE_READINGS_H_
