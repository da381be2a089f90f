// The conversions of which a reading consists (engine_table.cc says which engine has which). A step
// changes the config to explicit fields and adds a sentence for each change. It does nothing if its
// subject is not in the config: another rope_type, or a field that is unset. It keeps a field that
// only this service has (ramp, longrope_branch, alpha, seq_len_policy), if the field is set.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT (Refuse...): the engine has no such rotation; the message names it.
//             UNIMPLEMENTED (Claim...): how the engine reads this was not checked.
#ifndef ROPE_KERNELS_COMPAT_ENGINE_TABLE_H_
#define ROPE_KERNELS_COMPAT_ENGINE_TABLE_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// `who` is the engine's name in sentences. REQUIRES: the config is valid.
using ReadingStep = absl::Status (*)(std::string_view who, CompatConfig& result);

// rope_type.
absl::Status ClaimNothingButYarn(std::string_view who, CompatConfig& result);
absl::Status ClaimNoDynamic(std::string_view who, CompatConfig& result);
absl::Status ClaimNoLongrope(std::string_view who, CompatConfig& result);
absl::Status RefuseDynamic(std::string_view who, CompatConfig& result);
absl::Status RefuseNtk(std::string_view who, CompatConfig& result);
absl::Status RefuseLongrope(std::string_view who, CompatConfig& result);
absl::Status RefuseFourthAxis(std::string_view who, CompatConfig& result);

// default, and dynamic with alpha: the model's class does not read the key of a partial rotation
// that the file has.
absl::Status TurnWholeHeads(std::string_view who, CompatConfig& result);

// dynamic: the base of length max_position_embeddings * factor, or rope_theta, for every length.
absl::Status DynamicBaseOfFactor(std::string_view who, CompatConfig& result);
absl::Status DynamicUnscaled(std::string_view who, CompatConfig& result);

// dynamic and longrope: the longest sequence of a call decides for all of them.
absl::Status DecideByBatch(std::string_view who, CompatConfig& result);
// longrope: one list for every length, by the context that the engine is started with.
absl::Status LongropeByContext(std::string_view who, CompatConfig& result);
// longrope: the attention factor follows from the two lengths only.
absl::Status LongropeFactorOfLengths(std::string_view who, CompatConfig& result);

absl::Status DropProportionalFactor(std::string_view who, CompatConfig& result);

// Plain rotation, whatever the rope_type.
absl::Status DropScaling(std::string_view who, CompatConfig& result);
// A quarter of the channels turns, whatever partial_rotary_factor says.
absl::Status TurnAQuarter(std::string_view who, CompatConfig& result);

// yarn: fields that the engine does not read.
absl::Status RefuseYarnWithoutFactor(std::string_view who, CompatConfig& result);
absl::Status ClaimNoYarnWithoutFactor(std::string_view who, CompatConfig& result);
absl::Status RefuseBetaZero(std::string_view who, CompatConfig& result);
absl::Status DropBetas(std::string_view who, CompatConfig& result);
absl::Status DropTruncate(std::string_view who, CompatConfig& result);
absl::Status DropAttentionFactor(std::string_view who, CompatConfig& result);
absl::Status DropAttnFactor(std::string_view who, CompatConfig& result);

// yarn: mscale and mscale_all_dim. Let g(m) be 0.1 m ln(factor) + 1. Hugging Face's attention
// factor is g(mscale) / g(mscale_all_dim) if both are set and not 0, else g(1).
// The engine's attention factor is always g(1).
absl::Status DropMscale(std::string_view who, CompatConfig& result);
// An absent mscale is 1, an absent mscale_all_dim is 0: DeepSeek's formula.
absl::Status MscaleOneAllDimZero(std::string_view who, CompatConfig& result);
// A 0 counts as set.
absl::Status MscaleZeroCounts(std::string_view who, CompatConfig& result);
// mscale is 1, or equal to mscale_all_dim, if mscale_all_dim is set and not 0.
absl::Status MscaleIsOne(std::string_view who, CompatConfig& result);
absl::Status MscaleIsAllDim(std::string_view who, CompatConfig& result);

// yarn with mrope: four times the original length places the ramp; no mscale.
absl::Status MropeRampOfFourLengths(std::string_view who, CompatConfig& result);
absl::Status RefuseMropeMscale(std::string_view who, CompatConfig& result);

// The table of engines: who reads a config how, in which versions, for which models. One entry is
// one reading; a new reading is a new entry, and a test.
//
// Threading:  Constants.

struct EngineEntry {
  std::string_view engine;  // "vllm"
  std::string_view who;     // "vLLM", in sentences
  // The oldest and the newest version whose files were read and say this; commits where an engine
  // has no versions.
  std::string_view first;
  std::string_view last;
  std::span<const Family> families;  // empty: every model, also one without names
  std::span<const ReadingStep> steps;

  bool Covers(Family family) const;
  // Whether `other` is an entry for the same engine and versions.
  bool SameVersions(const EngineEntry& other) const {
    return engine == other.engine && first == other.first;
  }
};

// Ordered by engine. Within an engine the newest versions come first, and entries of the same
// versions are neighbours; the last of these is the one for ordinary models.
std::span<const EngineEntry> EngineTable();

// The config that `entry` makes of `config`. Errors of its steps are returned as they are.
absl::StatusOr<CompatConfig> Convert(const EngineEntry& entry, const RopeConfig& config,
                                     const ModelNames& names = {});

// "0.12.0 to 0.21.0", or one version.
std::string Versions(std::string_view first, std::string_view last);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ENGINE_TABLE_H_
