#include "kernels/config/config_json_per_layer.h"

#include "absl/strings/numbers.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {

absl::StatusOr<PerLayerConfig> PerLayerConfig::Read(const JsonFields& model,
                                                    const LayerTypes& types) {
  PerLayerConfig read;
  ROPE_ASSIGN_OR_RETURN(const std::optional<JsonFields> layers, model.Object("per_layer_config"));
  if (!layers.has_value()) return read;
  read.path_ = layers->path();
  for (const auto& [key, own] : layers->json().items()) {
    int64_t index = 0;
    if (!absl::SimpleAtoi(key, &index) || index < 0) continue;
    if (index >= static_cast<int64_t>(types.size()) || !own.is_object()) continue;
    const std::string& type = types[static_cast<size_t>(index)];
    if (type.empty()) continue;
    read.layers_[type].push_back({.index = index, .fields = &own});
  }
  return read;
}

absl::StatusOr<std::optional<int64_t>> PerLayerConfig::Integer(std::string_view layer_type,
                                                               std::string_view key) const {
  const auto found = layers_.find(layer_type);
  if (found == layers_.end()) return std::optional<int64_t>();
  for (const Layer& layer : found->second) {
    const auto value = layer.fields->find(key);
    if (value == layer.fields->end() || value->is_null()) continue;
    return JsonFields(*layer.fields, StrCat(path_, ".", layer.index)).Integer(key);
  }
  return std::optional<int64_t>();
}

}  // namespace rope::kernels
