#include "kernels/config/sub_configs.h"

#include <algorithm>
#include <iterator>

#include "kernels/config/config_json_document.h"
#include "kernels/config/json_fields.h"
#include "kernels/config/model_defaults.h"
#include "kernels/config/model_types.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr size_t kConfigsMax = 64;
constexpr int kDepthMax = 4;
constexpr size_t kNameBytesMax = 128;
constexpr std::string_view kSuffix = "_config";
constexpr std::string_view kTextConfig = "text_config";
constexpr std::string_view kOthers[] = {"per_layer_config", "quantization_config"};
// A file with one of these keys describes a model by itself.
constexpr std::string_view kHeadKeys[] = {"d_model", "embed_dim", "head_dim", "hidden_size",
                                          "n_embd"};

// Empty if absent, or if no model has so long a name.
std::string_view TypeOf(const Json& config) {
  const auto found = config.find("model_type");
  if (found == config.end() || !found->is_string()) return "";
  const auto& name = found->get_ref<const std::string&>();
  return name.size() > kModelTypeBytesMax ? std::string_view() : name;
}

bool IsSubConfig(std::string_view key, const Json& value) {
  if (!value.is_object()) return false;
  if (std::find(std::begin(kOthers), std::end(kOthers), key) != std::end(kOthers)) return false;
  return key.ends_with(kSuffix) || !TypeOf(value).empty();
}

// The model_type by which the sub-config at `key` of a file of type `around` is read.
std::string TypeOfSub(std::string_view around, std::string_view key, const Json& config) {
  const std::string own(TypeOf(config));
  if (around.empty() || !key.ends_with(kSuffix) || (!own.empty() && own != around)) return own;
  const std::string tower = StrCat(around, "_", key.substr(0, key.size() - kSuffix.size()));
  return HasModelType(tower) ? tower : own;
}

// Visits the sub-configs below `config`; ends where `visit` returns false. `left` bounds them.
template <typename Node, typename Visit>
bool Walk(Node& config, const std::string& path, int depth, size_t& left, const Visit& visit) {
  for (auto entry = config.begin(); entry != config.end(); ++entry) {
    const std::string& key = entry.key();
    if (!IsSubConfig(key, entry.value())) continue;
    const std::string name = path.empty() ? key : StrCat(path, ".", key);
    if (name.size() > kNameBytesMax || left == 0) continue;
    --left;
    if (!visit(name, key, config, entry.value())) return false;
    if (depth < kDepthMax && !Walk(entry.value(), name, depth + 1, left, visit)) return false;
  }
  return true;
}

bool HasTextConfig(const Json& config) {
  const auto text = config.find(kTextConfig);
  return text != config.end() && text->is_object();
}

bool DescribesAModel(const Json& file) {
  if (HasTextConfig(file) || StatesParameters(file) || IsBareParameters(file)) return true;
  return std::any_of(std::begin(kHeadKeys), std::end(kHeadKeys),
                     [&](std::string_view key) { return file.contains(key); });
}

absl::Status Unknown(std::string_view name, const SubConfigs& found) {
  std::string names;
  for (const SubConfig& config : found.configs) {
    names += StrCat(names.empty() ? "" : ", ", config.name);
  }
  const std::string got = name.empty() ? "nothing" : Show(std::string(name));
  if (names.empty()) {
    return InvalidField("sub_config", got, "no sub_config: this file has none");
  }
  return InvalidField("sub_config", got, StrCat("one of ", names));
}

}  // namespace

SubConfigs FindSubConfigs(const Json& file) {
  SubConfigs found;
  bool any_states_rope = false;
  size_t left = kConfigsMax;
  Walk(
      file, "", 1, left,
      [&](const std::string& name, const std::string& key, const Json& around, const Json& config) {
        SubConfig& sub = found.configs.emplace_back();
        sub.name = name;
        sub.states_rope = StatesParameters(config);
        sub.unsupported = ModelTypeOf(TypeOfSub(TypeOf(around), key, config)).unsupported;
        any_states_rope |= sub.states_rope;
        return true;
      });
  found.readable_without_choice = !any_states_rope || DescribesAModel(file);
  return found;
}

absl::StatusOr<SubConfigs> FindSubConfigs(std::string_view json) {
  ROPE_ASSIGN_OR_RETURN(const Json file, ParseJsonObject(json));
  return FindSubConfigs(file);
}

absl::StatusOr<ChosenConfig> ChooseSubConfig(Json& file, std::string_view name) {
  ChosenConfig chosen;
  if (name.empty()) {
    const SubConfigs found = FindSubConfigs(file);
    if (!found.readable_without_choice) return Unknown(name, found);
    chosen.config = &file;
    chosen.has_sub_configs = !found.configs.empty();
    return chosen;
  }
  size_t left = kConfigsMax;
  Walk(file, "", 1, left,
       [&](const std::string& path, const std::string& key, Json& around, Json& config) {
         if (path != name) return true;
         const bool text = key == kTextConfig;
         chosen.config = text ? &around : &config;
         chosen.path =
             text ? path.substr(0, path.size() - std::min(path.size(), key.size() + 1)) : path;
         if (text) return false;
         if (std::string type = TypeOfSub(TypeOf(around), key, config); !type.empty()) {
           config["model_type"] = std::move(type);
         }
         return false;
       });
  if (chosen.config == nullptr) return Unknown(name, FindSubConfigs(file));
  return chosen;
}

}  // namespace rope::kernels
