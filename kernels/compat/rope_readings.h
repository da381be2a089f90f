// Readings: how other implementations interpret the same config, by engine_table.h. ApplyCompat
// converts a config to another reading, Readings compares all readings, and ScalingOf shows the
// effect of a config on each frequency. Remarks: what is said of the values of a config.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT: the implementation has no such rotation, or was not checked.
#ifndef ROPE_KERNELS_COMPAT_ROPE_READINGS_H_
#define ROPE_KERNELS_COMPAT_ROPE_READINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "rope/describe.h"

namespace rope::kernels {

// An engine of engine_table.h, and one of its versions.
struct EngineVersion {
  std::string engine = {};
  std::string version = {};  // empty: the newest that was compared
};

// Splits "vllm" or "vllm@0.33.0". INVALID_ARGUMENT, of the field "engine": no engine of that name,
// or no version after the @.
absl::StatusOr<EngineVersion> SplitEngine(std::string_view text);

// The same, and INVALID_ARGUMENT of a version that was never compared.
absl::StatusOr<EngineVersion> ParseEngine(std::string_view text);

// A config as one engine reads it.
struct EngineConfig {
  CompatConfig read;
  std::string who;       // "vLLM"
  std::string versions;  // those that read it so: "0.30.0 to 0.31.0"
};

// Returns `config` as `engine` reads it, in the sense of ApplyCompat. `max_model_len` is the length
// that the engine is started with; unset: max_position_embeddings. `field` named the engine.
// REQUIRES: ParseEngine returned `engine`, or it has no version; `config` is valid.
// INVALID_ARGUMENT, of `field`: as ApplyCompat.
absl::StatusOr<EngineConfig> ReadAs(const RopeConfig& config, const EngineVersion& engine,
                                    const ModelNames& names, std::optional<int64_t> max_model_len,
                                    std::string_view field = "engine");

// "default", "hf", "vllm", "llamacpp", "deepseek".
std::string_view Name(Compat compat);

// Returns `config` as the newest version of an implementation in engine_table.h reads it, in
// explicit fields. Fields that only this service has (ramp, longrope_branch, alpha, seq_len_policy)
// are kept if they are set. Without names, longrope is read as Phi-3, proportional as Gemma 4, and
// other types as an ordinary model. kDeepSeek reads every model as DeepSeek's code would.
// REQUIRES: `config` is valid.
// INVALID_ARGUMENT: the implementation has no such rotation, or how it reads this model was not
// checked.
absl::StatusOr<CompatConfig> ApplyCompat(const RopeConfig& config, Compat compat,
                                         const ModelNames& names = {});

// The readings of `stated` whose numbers at `seq_len` differ from those of `answered`, the newest
// versions of an engine first. Versions with equal readings share one. Without names only those are
// returned that hold for every model but those that an engine singles out. REQUIRES: `answered` is
// `stated`, resolved under any compat; seq_len >= 1.
std::vector<Reading> Readings(const RopeConfig& stated, const ModelNames& names,
                              const ResolvedRope& answered, int64_t seq_len);

// The ramp of a type that blends; unset for the other types.
std::optional<Ramp> RampOf(const ResolvedRope& rope);

// The scaling of each column of `evaluated`. REQUIRES: `evaluated` is a result of rope.Evaluate().
std::vector<FrequencyScaling> ScalingOf(const ResolvedRope& rope,
                                        const ResolvedRope::AtSeqLen& evaluated);

// The largest absolute error of cos or sin that float32 inverse frequencies and float32 angles
// cause at the 16 positions up to `position`, without the attention factor. REQUIRES: 0 <= position
// <= 2^31.
double Float32AngleError(const ResolvedRope::AtSeqLen& evaluated, int64_t position);

// One sentence per setting: a factor below 1, high_freq_factor equal to low_freq_factor, a factor
// that contradicts the length ratio, a field that has no effect, a default that was assumed.
// `head_dim` as for Validate. REQUIRES: Validate(config, head_dim) is OK.
std::vector<Remark> Remarks(const RopeConfig& config,
                            std::optional<int64_t> head_dim = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ROPE_READINGS_H_
