#include "kernels/config/config_json_document.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "kernels/config/rope_config.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr size_t kConfigsMax = 64;
constexpr int kDepthMax = 4;
constexpr size_t kNameBytesMax = 128;
constexpr std::string_view kSuffix = "_config";
constexpr std::string_view kTextConfig = "text_config";
constexpr std::string_view kOthers[] = {"per_layer_config", "quantization_config"};
bool IsSubConfig(std::string_view key, const Json& value) {
  if (!value.is_object()) return false;
  if (absl::c_linear_search(kOthers, key)) return false;
  return key.ends_with(kSuffix) || !OwnTypeOf(value).empty();
}

// The model_type by which the sub-config at `key` of a file of type `around` is read.
std::string TypeOfSub(std::string_view around, std::string_view key, const Json& config) {
  const std::string own(OwnTypeOf(config));
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

bool HasObject(const JsonFields& fields, std::string_view key) {
  const Json* value = fields.Find(key);
  return value != nullptr && value->is_object();
}

bool HasLayerTypes(const JsonFields& fields) {
  return HasObject(fields, kFullAttention) || HasObject(fields, kSlidingAttention);
}

// Whether `model` is a rope_parameters object, or one with other keys around.
bool IsBare(const JsonFields& model) {
  if (const Json* type = model.Find("type"); type != nullptr && type->is_string()) {
    if (ParseRopeType(type->get_ref<const std::string&>()).ok()) return true;
  }
  return HasLayerTypes(model) ||
         absl::c_any_of(KeyList("bare"), [&](std::string_view key) { return model.Has(key); });
}

bool DescribesAModel(const Json& file) {
  const JsonFields fields(file);
  if (HasObject(fields, kTextConfig) || StatesParameters(file) || IsBare(fields)) return true;
  return absl::c_any_of(KeyList("head"), [&](std::string_view key) { return file.contains(key); });
}

absl::Status Unknown(std::string_view name, const SubConfigs& found) {
  const auto append = [](std::string* out, const SubConfig& each) { out->append(each.name); };
  const std::string names = absl::StrJoin(found.configs, ", ", append);
  return InvalidField(
      "sub_config", name.empty() ? "nothing" : Show(std::string(name)),
      names.empty() ? "no sub_config: this file has none" : StrCat("one of ", names));
}

SubConfigs SubConfigsOf(const Json& file) {
  SubConfigs found;
  bool any_states_rope = false;
  size_t left = kConfigsMax;
  Walk(
      file, "", 1, left,
      [&](const std::string& name, const std::string& key, const Json& around, const Json& config) {
        SubConfig& sub = found.configs.emplace_back();
        sub.name = name;
        sub.states_rope = StatesParameters(config);
        sub.unsupported =
            WhyUnsupported(ModelTypeOf(TypeOfSub(OwnTypeOf(around), key, config)), config);
        any_states_rope |= sub.states_rope;
        return true;
      });
  found.readable_without_choice = !any_states_rope || DescribesAModel(file);
  return found;
}

}  // namespace

absl::StatusOr<SubConfigs> FindSubConfigs(std::string_view json) {
  ROPE_ASSIGN_OR_RETURN(const Json file, ParseJsonObject(json));
  return SubConfigsOf(file);
}

absl::StatusOr<ChosenConfig> ChooseSubConfig(Json& file, std::string_view name) {
  ChosenConfig chosen;
  if (name.empty()) {
    const SubConfigs found = SubConfigsOf(file);
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
         if (std::string type = TypeOfSub(OwnTypeOf(around), key, config); !type.empty()) {
           config["model_type"] = std::move(type);
         }
         return false;
       });
  if (chosen.config == nullptr) return Unknown(name, SubConfigsOf(file));
  return chosen;
}

namespace {

// What an unused key does elsewhere, as the end of a sentence; empty: nothing is known.
std::string NoteOn(std::string_view key) {
  const auto& notes = WordsOf("notes");
  const auto note = notes.find(key);
  return note == notes.end() ? "" : note->second;
}

// The first of `targets`, a list of keys.json, that `key` is with a letter too many, too few or
// another one; two letters where the word is long. Empty: none.
std::string_view NearMissOf(std::string_view key, const std::vector<std::string>& targets) {
  constexpr size_t kShort = 5;
  constexpr size_t kLong = 9;
  if (absl::c_linear_search(KeyList("neighbours"), key)) return "";
  for (const std::string& target : targets) {
    const size_t edits = target.size() < kLong ? 1 : 2;
    if (target.size() < kShort || target.size() > key.size() + 2) continue;
    if (key.size() > target.size() + 2) continue;
    if (proto::Edits(absl::AsciiStrToLower(ToAbsl(key)), target) <= edits) return target;
  }
  return "";
}

// Whether a key that is not read may be the base or the scaling of code of its own.
bool LooksLikeRope(std::string_view key, const Json& value) {
  const auto has = [key](std::string_view part) {
    return key.find(part) != std::string_view::npos;
  };
  if (value == false || (!has("rope") && !has("rotary"))) return false;
  return has("theta") || has("base") || has("scal") || has("factor") || has("freq");
}

// Whether the model's class has another name for the key, or a rule of its own.
bool IsReadAs(const ModelType& type, std::string_view key) {
  if (type.theta_ratio == key || absl::c_linear_search(type.reads, key)) return true;
  return absl::c_any_of(type.names, [key](const auto& name) { return name.second == key; });
}

// Keys of the model that nearly spell one that is read.
void RemarkNearMisses(const ConfigDocument& document, std::vector<Remark>& remarks) {
  constexpr int kKeysMax = 4096;
  const JsonFields& model = document.model;
  int keys = 0;
  for (const auto& [key, value] : model.json().items()) {
    if (++keys > kKeysMax) return;
    if (value.is_null() || absl::c_linear_search(KeyList("top"), key) ||
        absl::c_linear_search(KeyList("around"), key)) {
      continue;
    }
    if (document.bare && absl::c_linear_search(KeyList("parameters"), key)) continue;
    std::string_view meant = NearMissOf(key, KeyList("around"));
    if (meant.empty()) meant = NearMissOf(key, KeyList("top"));
    if (meant.empty() && LooksLikeRope(key, value) && !IsReadAs(*document.type, key)) {
      remarks.push_back({RemarkKind::kRemoteCode,
                         StrCat(model.PathOf(key), " ", Show(value),
                                " is not read, and looks like a base or a scaling"),
                         model.PathOf(key)});
    }
    if (meant.empty()) continue;
    remarks.push_back({RemarkKind::kNearMissKey,
                       StrCat(model.path(), model.path().empty() ? "" : ": ", "key ", Show(key),
                              " is not read; did you mean ", meant, "?"),
                       model.PathOf(key)});
  }
}

}  // namespace

absl::StatusOr<ConfigDocument> LocateParameters(const JsonFields& root) {
  ROPE_ASSIGN_OR_RETURN(const auto text, root.Object("text_config"));
  ConfigDocument document(text.value_or(root));
  const JsonFields& model = document.model;
  ROPE_ASSIGN_OR_RETURN(const auto model_type, FirstOf<std::string>({model.String("model_type"),
                                                                     root.String("model_type")}));
  document.model_type = model_type.value_or("");
  if (document.model_type.size() > kModelTypeBytesMax) {
    return InvalidField((model.Has("model_type") ? model : root).PathOf("model_type"),
                        Show(document.model_type),
                        StrCat("a name of at most ", kModelTypeBytesMax, " bytes"));
  }
  document.type = &ModelTypeOf(document.model_type);
  ROPE_ASSIGN_OR_RETURN(document.parameters, FirstOf<JsonFields>({model.Object("rope_parameters"),
                                                                  model.Object("rope_scaling")}));
  const bool scales = document.type->theta_ratio.empty();
  if (!scales && document.parameters.has_value()) {
    AddRemark(document.remarks, RemarkKind::kOverriddenValue, document.parameters->path(),
              " is not used: the code of ", document.model_type, " has no scaling");
    document.parameters.reset();
  }
  for (const std::string_view key : {"rope_parameters", "rope_scaling", "rope_theta"}) {
    const Json* const around = root.Find(key);
    if (!text.has_value() || around == nullptr || around->empty()) continue;
    if (const Json* const own = text->Find(key); own == nullptr || *own != *around) {
      AddRemark(document.remarks, RemarkKind::kOverriddenValue, root.PathOf(key),
                " is not used: text_config is read instead");
    }
  }
  const bool loose = scales && !document.parameters.has_value() && IsBare(model);
  const std::string where = model.path().empty() ? "the file" : model.path();
  if (loose && document.type->of_transformers) {
    AddRemark(document.remarks, RemarkKind::kOverriddenValue,
              "rope parameters at the top level of ", where, " are not used: the class of ",
              document.model_type, " reads rope_parameters");
  } else if (loose) {
    document.bare = true;
    document.parameters = model;
    AddRemark(document.remarks, RemarkKind::kTopLevelParameters,
              "rope parameters are read from the top level of ", where);
  }
  RemarkModel(document.model_type, model, document.remarks);
  RemarkNearMisses(document, document.remarks);
  if (document.bare) {
    document.nested = HasLayerTypes(model);
  } else if (document.parameters.has_value()) {
    document.nested = HasObjects(document.parameters->json());
  }
  if (document.nested) {
    RemarkUnknownKeys(document, *document.parameters, document.remarks);
  }
  return document;
}

void RemarkUnknownKeys(const ConfigDocument& document, const JsonFields& parameters,
                       std::vector<Remark>& remarks) {
  // A complete config.json has many other keys at the top level, so they are no reason to speak.
  if (document.bare && (document.model.Has("model_type") || document.model.Has("hidden_size"))) {
    return;
  }
  constexpr int kNamed = 16;
  int unknown = 0;
  // At the level of the layer types only their objects are read; every other key is unused.
  const bool around = document.nested && &parameters.json() == &document.parameters->json();
  for (const auto& [key, value] : parameters.json().items()) {
    if (value.is_null() || (around && (value.is_object() || key == "truncate"))) continue;
    if (document.bare && (absl::c_linear_search(KeyList("top"), key) || key == "rope_theta"))
      continue;
    if (!around && absl::c_linear_search(KeyList("parameters"), key)) continue;
    if (++unknown > kNamed) continue;
    const std::string_view meant = around ? "" : NearMissOf(key, KeyList("parameters"));
    const std::string end = meant.empty() ? NoteOn(key) : StrCat("; did you mean ", meant, "?");
    const std::string_view why = around ? " next to the layer types" : " is not known and";
    remarks.push_back({meant.empty() ? RemarkKind::kUnknownKey : RemarkKind::kNearMissKey,
                       StrCat(parameters.path(), parameters.path().empty() ? "" : ": ", "key ",
                              Show(key), why, " has no effect", end),
                       parameters.PathOf(key)});
  }
  if (unknown > kNamed) {
    AddRemark(remarks, RemarkKind::kUnknownKey, unknown - kNamed, " more keys have no effect");
  }
}

}  // namespace rope::kernels
