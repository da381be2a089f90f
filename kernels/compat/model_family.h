// The families of models, and the engines and versions that read them.
//
// Threading:  Values and pure functions; any thread.
#ifndef ROPE_KERNELS_COMPAT_MODEL_FAMILY_H_
#define ROPE_KERNELS_COMPAT_MODEL_FAMILY_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// A config as an implementation reads it.
struct CompatConfig {
  RopeConfig config;                 // the same rotation without a compat
  std::vector<std::string> changes;  // one sentence per change
  std::string model_type = {};       // of the file; empty if it has none
  // The length that the engine is started with; unset: max_position_embeddings.
  std::optional<int64_t> max_model_len = {};
};

// Versions of engines are written as their packages have them: "0.12.1", "0.5.10.post1".

// The numbers of a release, which compare as versions do. A post-release counts as its release.
// Unset: the text is no release: "abc", "0.12.", a commit.
std::optional<std::vector<int64_t>> ParseRelease(std::string_view text);

// Whether `version` is one from `first` to `last`. Commits are compared as text.
bool IsBetween(std::string_view first, std::string_view version, std::string_view last);

// The models that every engine of engine_table.h treats alike. Engines choose their model code by
// names, and the code decides how a config is read.
enum class Family {
  kOther,  // a named model that no other family has
  // DeepSeek V2 and V3, Kimi K2 and the models that embed them
  kDeepSeek,
  kDeepSeek32,
  kGlm4MoeLite,
  kGlmMoeDsa,
  kLongcat,
  kMinistral3,
  kGptOss,
  kLaguna,
  kPhi3,
  kMiniCpm,
  kHunyuan,
  kGemma4,
  kQwen3Vl,
  // Models whose code changes or computes the parameters itself, which was not checked.
  kUnchecked,
  // What one engine makes of some models, whatever family the others see in them.
  kTransformers,     // it runs Hugging Face's own modules
  kUnscaled,         // its class drops the scaling
  kUnscaledQuarter,  // the same, and it turns a quarter of the channels
  kDefaultTheta,     // it does not find rope_theta; llama.cpp finds no scaling either
  kLinearOfFactor,   // it makes linear of every type that has a factor
  kBaseConverter,    // llama.cpp's converter has nothing of its own for it
  kAbsent,           // its registry lacks the architecture: it does not load the model
};

// Reads a word of engines.json: "deepseek". REQUIRES: there is such a family.
void from_json(const nlohmann::json& word, Family& family);

// The family of the first known architecture, as engines choose. An unknown text model
// ("...ForCausalLM") is kOther. For the other architectures, which wrap a text model, and without
// architectures, model_type decides. Unset if both are empty.
std::optional<Family> FamilyOf(const ModelNames& names);

// The family by which `engine` treats the model in `version`: kTransformers or a later one where
// its registry, its class or its converter says so, else FamilyOf(names). `last`: of several
// versions from `version` on, the newest; empty: it alone.
std::optional<Family> FamilyIn(std::string_view engine, std::string_view version,
                               const ModelNames& names, std::string_view last = {});

// The rotation of rope_type default with the same base, channels and axes.
RopeConfig WithoutScaling(const RopeConfig& config);

// Who reads a file.
struct FileReader {
  std::string_view engine;
  std::string_view who;  // in sentences
  std::string_view version;
  bool own = true;  // with code of its own, and not with Hugging Face's modules
};

// Changes `result` to what `reader` finds in the file, where it has another order of lookups than
// the newest transformers. INVALID_ARGUMENT: it refuses the file, or its rope_type, if that is su,
// longrope's old name. UNIMPLEMENTED: that was not checked. Both say what, as Convert of
// engine_table.h does.
absl::Status ReadFile(const FileReader& reader, const ModelNames& names, CompatConfig& result);

// How an engine has the pairs of q and k.
struct EnginePairs {
  // By which it turns, of the checkpoint that Hugging Face has of the model; unset: not known.
  std::optional<Pairing> pairing;
  // The order in which it leaves the channels, if it is another one.
  std::optional<Pairing> channel_order = {};
  bool misread = false;  // these are not the layer's pairs: another rotation

  std::optional<Pairing> order() const {
    return channel_order.has_value() ? channel_order : pairing;
  }
};

// The pairs of a layer in `engine`; without a name: in this service. `chosen` replaces the layer's
// pairing.
EnginePairs PairsIn(std::string_view engine, const LayerConfig& layer,
                    std::optional<Pairing> chosen = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_MODEL_FAMILY_H_
