// One entry of a config.json: the parameters of one kind of layer. Internal to config_json.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_JSON_ENTRY_H_
#define ROPE_KERNELS_CONFIG_JSON_ENTRY_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config_json.h"
#include "kernels/json_fields.h"

namespace rope::kernels {

inline constexpr std::string_view kFullAttention = "full_attention";
inline constexpr std::string_view kSlidingAttention = "sliding_attention";

// Where the parts of a file are.
struct ConfigDocument {
  explicit ConfigDocument(const JsonFields& fields) : model(fields) {}

  JsonFields model;        // the file, or its text_config
  std::string model_type;  // empty where it does not say
  // rope_parameters, else rope_scaling; the file itself where it is the bare rope_parameters
  // object.
  std::optional<JsonFields> parameters;
  bool bare = false;    // parameters is the file itself
  bool nested = false;  // parameters holds an object for each kind of layer
  std::vector<std::string> warnings;
};

absl::StatusOr<ConfigDocument> LocateParameters(const nlohmann::json& file);

// Reads one entry. `parameters` is its object, if it has one; `local` takes the base of the
// sliding layers of the old flat form.
absl::StatusOr<LayerConfig> ReadEntry(const ConfigDocument& document,
                                      const std::optional<JsonFields>& parameters,
                                      std::string_view layer_type, bool local);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_JSON_ENTRY_H_
