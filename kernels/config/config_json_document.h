// Finds the rope parameters in a config.json, whole or a fragment; config_json.h is the way in.
//
// Threading:  Pure functions; any thread.
// Ownership:  A ConfigDocument is a view; the parsed file must outlive it.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/json_fields.h"

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

// Adds a line for each key of `parameters` that nobody reads, 16 at most and then their number.
void WarnUnknownKeys(const ConfigDocument& document, const JsonFields& parameters,
                     std::vector<std::string>& warnings);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_
