#include "kernels/config/presets.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/config/embedded_data.h"
#include "kernels/config/model_types.h"

namespace rope::kernels {

namespace {

std::vector<Preset> ReadPresets() {
  std::vector<Preset> presets;
  const nlohmann::json data = nlohmann::json::parse(kPresetsJson);
  for (const auto& [name, entry] : data.items()) {
    const nlohmann::json& config = entry.at("config");
    const std::optional<Pairing> pairing =
        ModelTypeOf(config.at("model_type").get<std::string>()).pairing;
    ROPE_CHECK(pairing.has_value());
    presets.push_back({name, config.dump(), *pairing, entry.at("source")});
  }
  return presets;
}

}  // namespace

absl::Span<const Preset> Presets() {
  static const std::vector<Preset> presets = ReadPresets();
  return presets;
}

}  // namespace rope::kernels
