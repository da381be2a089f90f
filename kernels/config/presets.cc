#include "kernels/config/presets.h"

#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/config/embedded_data.h"
#include "kernels/config/model_types.h"
#include "kernels/error.h"
#include "proto/nearest_name.h"

namespace rope::kernels {

namespace {

using Names = std::map<std::string, const Preset*, std::less<>>;

// Every name of every preset, in lower case. A name of two presets would mean nothing.
const Names& KnownNames() {
  static const Names names = [] {
    Names read;
    const auto add = [&read](std::string_view name, const Preset& preset) {
      const std::string lower = absl::AsciiStrToLower(ToAbsl(name));
      ROPE_CHECK(read.emplace(lower, &preset).first->second == &preset);
    };
    for (const Preset& preset : Presets()) {
      add(preset.name, preset);
      for (const std::string& id : preset.hub_ids) {
        add(id, preset);
        add(std::string_view(id).substr(id.find('/') + 1), preset);
      }
    }
    return read;
  }();
  return names;
}

}  // namespace

absl::Span<const Preset> Presets() {
  static const std::vector<Preset> presets = [] {
    std::vector<Preset> read;
    const nlohmann::json data = nlohmann::json::parse(kPresetsJson);
    for (const auto& [name, entry] : data.items()) {
      const nlohmann::json& config = entry.at("config");
      const auto& pairing = ModelTypeOf(config.at("model_type").get<std::string>()).pairing;
      ROPE_CHECK(pairing.has_value() && entry.contains("source"));
      read.push_back(
          {name, config.dump(), *pairing, entry.value("hub_ids", std::vector<std::string>())});
    }
    return read;
  }();
  return presets;
}

const Preset* FindPreset(std::string_view name) {
  if (name.size() > kPresetNameBytesMax) return nullptr;
  const auto found = KnownNames().find(absl::AsciiStrToLower(ToAbsl(name)));
  return found == KnownNames().end() ? nullptr : found->second;
}

std::string NearestPreset(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(ToAbsl(name.substr(0, kPresetNameBytesMax)));
  std::vector<std::string> own;  // they come first; hub ids repeat them
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) own.push_back(preset.name);
  for (const auto& [known, preset] : KnownNames()) names.push_back(known);
  std::vector<std::string> nearest = proto::NearestModels(lower, own);
  if (nearest.empty()) nearest = proto::NearestModels(lower, names);
  std::vector<std::string> presets;
  for (const std::string& known : nearest) {
    const std::string& preset = KnownNames().find(known)->second->name;
    if (!absl::c_linear_search(presets, preset)) presets.push_back(preset);
  }
  return absl::StrJoin(presets, " or ");
}

}  // namespace rope::kernels
