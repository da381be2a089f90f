// PerLayerConfig: what a config.json states for single layers in per_layer_config, an object by
// layer index. Internal to config_json.
//
// Threading:  Immutable; any thread.
// Ownership:  A view; the parsed file must outlive it.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_PER_LAYER_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_PER_LAYER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/json_fields.h"
#include "kernels/config/layer_types.h"

namespace rope::kernels {

class PerLayerConfig {
 public:
  // Sorts the objects by the type of their layer, in one pass. `types` are those of `model`; no
  // object is read without them.
  static absl::StatusOr<PerLayerConfig> Read(const JsonFields& model, const LayerTypes& types);

  // The first value that a layer of the type states for `key`; all of them have the same. Unset if
  // none does.
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view layer_type,
                                                 std::string_view key) const;

 private:
  struct Layer {
    int64_t index = 0;
    const nlohmann::json* fields = nullptr;
  };

  std::string path_;
  std::map<std::string, std::vector<Layer>, std::less<>> layers_;  // by type
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_PER_LAYER_H_
