// Sub-configs: the configs that a composite config.json holds, each named by its path in the file,
// "vision_config" or "thinker_config.audio_config".
//
// A sub-config is an object that states a model_type, or whose key ends in "_config", in the file
// or in another sub-config. quantization_config and per_layer_config are none.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: the text is not JSON; "path: got X, want Y"; of sub_config the
//             message lists the sub-configs of the file.
// Limits:     The first 64 sub-configs, down to 4 levels, with names of at most 128 bytes; others
//             are not found.
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/json_fields.h"
#include "kernels/config/model_types.h"
#include "kernels/config/remark.h"

namespace rope::kernels {

struct SubConfig {
  std::string name;          // its path
  bool states_rope = false;  // has rope parameters by itself; those of its own sub-configs are not
  std::string unsupported;   // why the rotation of its model_type is refused; empty: it is not
};

struct SubConfigs {
  // False: only the sub-configs have rope parameters, and one must be chosen.
  bool readable_without_choice = true;
  std::vector<SubConfig> configs;  // a config before its own sub-configs
};

// INVALID_ARGUMENT: the text is not a JSON object.
absl::StatusOr<SubConfigs> FindSubConfigs(std::string_view json);

// The config to read in place of the whole file.
struct ChosenConfig {
  nlohmann::json* config = nullptr;  // in `file`
  std::string path;                  // empty: the file itself
  bool has_sub_configs = false;      // in the file itself
};

// The config that `name` chooses; the file itself if `name` is empty. A text_config selects the
// enclosing config, which is read by its text_config. A sub-config without a model_type, or with
// that of the enclosing config, takes the type of both names if model_types.json has it
// ("qwen2_5_vl" and "vision_config": "qwen2_5_vl_vision").
absl::StatusOr<ChosenConfig> ChooseSubConfig(nlohmann::json& file, std::string_view name);

// Finds the rope parameters in a config.json or in a fragment of one. Callers use config_json.h.
//
// Ownership:  A ConfigDocument is a view; the parsed file must outlive it.

inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";

// The parts of a file that later steps read.
struct ConfigDocument {
  explicit ConfigDocument(const JsonFields& fields) : model(fields) {}

  JsonFields model;                 // the file or the chosen sub-config, or its text_config
  std::string model_type;           // empty if absent
  const ModelType* type = nullptr;  // the entry of model_type, never null
  // rope_parameters, else rope_scaling, else the file itself if it is a bare rope_parameters
  // object.
  std::optional<JsonFields> parameters;
  bool bare = false;    // `parameters` is the file itself
  bool nested = false;  // `parameters` holds one object per layer type
  std::vector<Remark> remarks;
};

// `root` is the file, or the sub-config that is read in its place.
absl::StatusOr<ConfigDocument> LocateParameters(const JsonFields& root);

// Adds a remark for each unused key of `parameters`: a near miss of one that is read, or a note.
// After 16 notes one gives the number of the others.
void RemarkUnknownKeys(const ConfigDocument& document, const JsonFields& parameters,
                       std::vector<Remark>& remarks);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_
