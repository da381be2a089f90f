// Finds the rope parameters in a config.json or in a fragment of one. Callers use config_json.h.
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
#include "kernels/config/model_types.h"
#include "kernels/config/remark.h"

namespace rope::kernels {

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

// Whether `file` is a rope_parameters object, or one with other keys around.
bool IsBareParameters(const nlohmann::json& file);

// Adds a remark for each unused key of `parameters`: a near miss of one that is read, or a note.
// After 16 notes one gives the number of the others.
void RemarkUnknownKeys(const ConfigDocument& document, const JsonFields& parameters,
                       std::vector<Remark>& remarks);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_DOCUMENT_H_
