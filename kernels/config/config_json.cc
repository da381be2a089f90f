#include "kernels/config/config_json.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/config_json_entry.h"
#include "kernels/config/config_json_layers.h"
#include "kernels/config/json_fields.h"
#include "kernels/config/model_types.h"
#include "kernels/config/placement.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"

namespace rope::kernels {
namespace {

// Bytes that all layer types keep. Two with every list at its longest need 1.6 MiB.
constexpr int64_t kEntriesBytesMax = 2 << 20;

absl::StatusOr<std::vector<LayerConfig>> ReadNestedEntries(const ConfigDocument& document,
                                                           const PerLayerConfig& per_layer) {
  std::vector<LayerConfig> entries;
  int64_t kept = 0;
  const std::string& path = document.parameters->path();
  const std::string field = path.empty() ? "config_json" : path;
  for (const auto& [key, value] : document.parameters->json().items()) {
    if (document.bare && !key.ends_with("_attention")) continue;
    if (!value.is_null() && !value.is_object()) continue;
    if (entries.size() == kLayerTypesMax) {
      return InvalidField(field, "more layer types", StrCat("at most ", kLayerTypesMax));
    }
    if (key.size() > kLayerTypeBytesMax) {
      return InvalidField(field, StrCat("layer type ", Show(key)),
                          StrCat("names of at most ", kLayerTypeBytesMax, " bytes"));
    }
    if (value.is_null()) {  // layers of this type have no rotary embedding
      LayerConfig& still = entries.emplace_back();
      still.layer_type = key;
      still.rotates = false;
      continue;
    }
    const JsonFields parameters(value, document.parameters->PathOf(key));
    ROPE_ASSIGN_OR_RETURN(LayerConfig entry,
                          ReadEntry(document, per_layer, parameters, key, EntryKind::kScaled));
    kept += entry.KeptBytes();
    if (kept > kEntriesBytesMax) {
      return InvalidField(parameters.path(), StrCat("more than ", kEntriesBytesMax, " bytes"),
                          "layer types whose lists take less");
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

// One entry per layer type with its own embedding, or a single entry. A nested file names the
// types. In other files only full and sliding attention can differ: by the base, by the scaling, or
// by the head_dim (global_head_dim).
absl::StatusOr<std::vector<LayerConfig>> ReadEntries(const ConfigDocument& document,
                                                     const PerLayerConfig& per_layer) {
  if (document.nested) return ReadNestedEntries(document, per_layer);
  EntryKind sliding_kind = EntryKind::kScaled;
  if (HasLocalBase(document)) {
    sliding_kind = EntryKind::kLocal;
  } else if (document.parameters.has_value() && document.type->sliding_layers_unscaled) {
    sliding_kind = EntryKind::kUnscaled;
  }
  std::vector<std::pair<std::string_view, EntryKind>> kinds = {{kFullAttention, EntryKind::kScaled},
                                                               {kSlidingAttention, sliding_kind}};
  if (sliding_kind == EntryKind::kScaled && !document.model.Has("global_head_dim")) {
    kinds = {{"", EntryKind::kScaled}};
  }
  std::vector<LayerConfig> entries;
  for (const auto& [type, kind] : kinds) {
    ROPE_ASSIGN_OR_RETURN(entries.emplace_back(),
                          ReadEntry(document, per_layer, document.parameters, type, kind));
  }
  return entries;
}

// Marks every entry as one without a rotation if the model has none: the value of a key says so.
absl::Status MarkStill(const ConfigDocument& document, std::vector<LayerConfig>& entries) {
  const auto& [key, value] = document.type->rotates_if;
  if (key.empty()) return absl::OkStatus();
  const nlohmann::json* const stated = document.model.Find(key);
  const nlohmann::json none;
  const nlohmann::json& got = stated == nullptr ? none : *stated;
  if (got == value) return absl::OkStatus();
  if (got.is_structured()) {
    return InvalidField(document.model.PathOf(key), Show(got), Show(value));
  }
  for (LayerConfig& entry : entries) {
    entry.rotates = false;
    AddRemark(entry.remarks, RemarkKind::kNoRotation, document.model.PathOf(key), " ", Show(got),
              ", want ", Show(value), ": no layer rotates; tensors come back unchanged");
  }
  return absl::OkStatus();
}

Field<int64_t> ReadKvHeads(const JsonFields& model, std::optional<int64_t> heads) {
  if (model.Has("qk_rope_head_dim")) return std::optional<int64_t>(1);
  ROPE_ASSIGN_OR_RETURN(const auto kv_heads, FirstOf<int64_t>({model.Integer("num_key_value_heads"),
                                                               model.Integer("num_kv_heads")}));
  ROPE_ASSIGN_OR_RETURN(const auto multi_query, model.Bool("multi_query"));
  if (kv_heads.has_value()) return kv_heads;
  return multi_query.value_or(false) ? std::optional<int64_t>(1) : heads;
}

// The file's, else those of text_config. Every entry keeps a copy, so their sizes are bounded.
absl::StatusOr<std::vector<std::string>> ReadArchitectures(const JsonFields& root,
                                                           const JsonFields& model) {
  constexpr size_t kNamesMax = 16;
  constexpr size_t kNameMax = 128;
  const JsonFields& fields = root.Has("architectures") ? root : model;
  ROPE_ASSIGN_OR_RETURN(std::vector<std::string> names, fields.Strings("architectures"));
  if (names.size() > kNamesMax) {
    return InvalidField(fields.PathOf("architectures"), StrCat(names.size(), " names"),
                        StrCat("at most ", kNamesMax));
  }
  for (const std::string& name : names) {
    if (name.size() <= kNameMax) continue;
    return InvalidField(fields.PathOf("architectures"), Show(name),
                        StrCat("names of at most ", kNameMax, " characters"));
  }
  return names;
}

// A layer type that nearly spells one that the model has, but is none.
void RemarkLayerTypes(const ConfigDocument& document, const LayerTypes& layers,
                      std::vector<LayerConfig>& entries) {
  if (!document.nested) return;
  std::vector<std::string> known = layers.names();
  for (const std::string_view type : {kFullAttention, kSlidingAttention}) known.emplace_back(type);
  if (const auto usual = document.type->defaults.find("rope_parameters");
      usual != document.type->defaults.end()) {
    for (const auto& [type, parameters] : usual->items()) known.push_back(type);
  }
  std::vector<Remark> remarks;
  for (const LayerConfig& entry : entries) {
    const std::string& type = entry.layer_type;
    if (absl::c_linear_search(known, type)) continue;
    const std::string nearest = proto::NearestName(type, known);
    if (nearest.empty()) continue;
    AddRemark(remarks, RemarkKind::kUnknownLayerType, document.parameters->path(), ": layer type ",
              Show(type), " is none of the model's", proto::DidYouMean(nearest));
  }
  for (LayerConfig& entry : entries) {
    entry.remarks.insert(entry.remarks.end(), remarks.begin(), remarks.end());
  }
}

// Whether an entry has the value by another key, or no use for it.
bool AgreesWith(const LayerConfig& entry, const UnreadKey& unread) {
  const RopeConfig& config = entry.config;
  if (unread.key == "original_max_position_embeddings") {
    return config.rope_type == RopeType::kDefault || config.rope_type == RopeType::kLinear ||
           config.rope_type == RopeType::kDynamic ||
           unread.value == config.original_max_position_embeddings.value_or(0);
  }
  if (unread.key == "rotary_dim") {
    return unread.value == RotaryDim(config, config.head_dim).value_or(0);
  }
  if (unread.key == "rotary_pct" || unread.key == "partial_rotary_factor") {
    return unread.value == config.partial_rotary_factor.value_or(1);
  }
  return unread.value == config.rope_theta;
}

// Keys that the config class does not read, and whose values no entry has.
void RemarkUnread(const ConfigDocument& document, const std::vector<UnreadKey>& keys,
                  std::vector<LayerConfig>& entries) {
  for (const UnreadKey& unread : keys) {
    const auto agrees = [&](const LayerConfig& entry) { return AgreesWith(entry, unread); };
    if (absl::c_any_of(entries, agrees)) continue;
    const std::string path = document.model.PathOf(unread.key);
    for (LayerConfig& entry : entries) {
      entry.remarks.push_back(
          {RemarkKind::kOverriddenValue,
           StrCat(path, " ", Show(unread.value), " is not used: the config class of ",
                  document.model_type, " does not read it"),
           path});
      if (unread.key == "rotary_dim" && unread.value.is_number_integer()) {
        entry.names.stated_channels = unread.value.get<int64_t>();
      }
    }
  }
}

// What code that prefers rope_parameters makes of a file with both blocks.
void ReadReplaced(std::string_view json, std::string_view sub_config,
                  std::vector<LayerConfig>& entries) {
  nlohmann::json file = *ParseJsonObject(json);
  const auto chosen = ChooseSubConfig(file, sub_config);
  if (!chosen.ok()) return;
  size_t erased = chosen->config->erase("rope_scaling");
  const auto text = chosen->config->find("text_config");
  if (text != chosen->config->end() && text->is_object()) erased += text->erase("rope_scaling");
  if (erased == 0) return;  // Parse would come back here without end
  const auto other = ModelConfig::Parse(file.dump(), sub_config);
  if (!other.ok()) return;
  for (LayerConfig& entry : entries) {
    const auto read = other->Layer({.layer_type = entry.layer_type});
    if (read.ok()) entry.names.replaced = std::make_shared<const RopeConfig>(read->config);
  }
}

// ", whatever rope_theta and qk_rope_head_dim say": keys of a rotation in a file without one.
std::string UnusedKeys(const JsonFields& model) {
  std::vector<std::string> keys;
  for (const std::string_view key : {"rope_theta", "rope_parameters", "rope_scaling",
                                     "partial_rotary_factor", "rotary_dim", "qk_rope_head_dim"}) {
    if (model.Has(key)) keys.emplace_back(key);
  }
  return keys.empty() ? "" : StrCat(", whatever ", absl::StrJoin(keys, ", "), " say");
}

// The model's code has other positions in place of a rotary embedding.
void MarkUnrotated(std::string_view positions, std::string_view unused, LayerConfig& entry) {
  entry.rotates = false;
  std::erase_if(entry.remarks,
                [](const Remark& remark) { return remark.kind == RemarkKind::kDefaultAssumed; });
  AddRemark(entry.remarks, RemarkKind::kNoRotation, "the model has no rotary embedding",
            positions.starts_with("no ") ? " and " : ", but ", positions, unused,
            "; tensors come back unchanged");
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view json, std::string_view sub_config) {
  ROPE_ASSIGN_OR_RETURN(nlohmann::json file, ParseJsonObject(json));
  ROPE_ASSIGN_OR_RETURN(std::vector<Remark> assumed, ReadForeignFormat(file));
  ROPE_ASSIGN_OR_RETURN(const ChosenConfig chosen, ChooseSubConfig(file, sub_config));
  Completed completed = CompleteModel(*chosen.config, chosen.path);
  std::move(completed.remarks.begin(), completed.remarks.end(), std::back_inserter(assumed));
  const JsonFields root(*chosen.config, chosen.path);
  ROPE_ASSIGN_OR_RETURN(ConfigDocument document, LocateParameters(root));
  std::move(assumed.begin(), assumed.end(), std::back_inserter(document.remarks));
  ModelConfig model;
  model.has_sub_configs_ = chosen.has_sub_configs;
  if (const auto why = WhyUnsupported(*document.type, document.model.json()); !why.empty()) {
    return InvalidField(document.model.PathOf("model_type"), document.model_type,
                        StrCat("another one: ", why));
  }
  ROPE_ASSIGN_OR_RETURN(LayerList layers, ReadLayerList(document));
  ROPE_ASSIGN_OR_RETURN(const PerLayerConfig per_layer,
                        ReadPerLayerConfig(document.model, layers.types));
  ROPE_ASSIGN_OR_RETURN(model.entries_, ReadEntries(document, per_layer));
  ROPE_ASSIGN_OR_RETURN(const std::vector<std::string> architectures,
                        ReadArchitectures(root, document.model));
  RemarkLayerTypes(document, layers.types, model.entries_);
  const std::string_view positions = PositionsInsteadOfRope(document.model_type, document.model);
  const std::string unused = positions.empty() ? "" : UnusedKeys(document.model);
  for (LayerConfig& entry : model.entries_) {
    entry.names.model_type = document.model_type;
    entry.names.architectures = architectures;
    if (!positions.empty()) MarkUnrotated(positions, unused, entry);
  }
  if (positions.empty()) RemarkUnread(document, completed.unread, model.entries_);
  if (completed.both_blocks) ReadReplaced(json, sub_config, model.entries_);
  for (const LayerConfig& entry : model.entries_) {
    const bool alone = model.entries_.size() == 1 && entry.layer_type.empty();
    if (!alone) model.layer_types_.push_back(entry.layer_type);
  }
  model.num_layers_ = layers.count;
  model.layers_ = std::move(layers.types);
  model.no_rope_ = std::move(layers.no_rope);
  if (!document.type->thetas_only_mark) model.thetas_ = std::move(layers.thetas);
  model.type_ = document.type;
  ROPE_RETURN_IF_ERROR(MarkStill(document, model.entries_));
  ROPE_ASSIGN_OR_RETURN(model.num_heads_,
                        FirstOf<int64_t>({document.model.Integer("num_attention_heads"),
                                          document.model.Integer("n_head")}));
  ROPE_ASSIGN_OR_RETURN(model.num_kv_heads_, ReadKvHeads(document.model, model.num_heads_));
  return model;
}

absl::StatusOr<LayerConfig> ModelConfig::Layer(const LayerChoice& choice) const {
  if (choice.layer.has_value() && !choice.layer_type.empty()) {
    return InvalidField("layer", "layer and layer_type", "one of them");
  }
  std::string type = choice.layer_type;
  if (choice.layer.has_value()) {
    if (*choice.layer < 0 || *choice.layer >= num_layers_.value_or(kLayersMax)) {
      return InvalidField("layer", *choice.layer,
                          StrCat("0 to ", num_layers_.value_or(kLayersMax) - 1));
    }
    if (!layers_.empty()) type = layers_[static_cast<size_t>(*choice.layer)];
  }
  ROPE_ASSIGN_OR_RETURN(LayerConfig entry, EntryOf(choice, type));
  if (!entry.rotates) return entry;
  ROPE_RETURN_IF_ERROR(SetTheta(choice, entry));
  MarkRotation(choice, entry);
  return entry;
}

bool ModelConfig::SameLayers(int64_t a, int64_t b) const {
  if (std::min(a, b) < 0 || std::max(a, b) >= num_layers_.value_or(kLayersMax)) return false;
  const auto rotates = [&](int64_t layer) {
    return static_cast<size_t>(layer) >= no_rope_.size() || !no_rope_[static_cast<size_t>(layer)];
  };
  if (rotates(a) != rotates(b)) return false;
  if (!thetas_.empty() && thetas_[static_cast<size_t>(a)] != thetas_[static_cast<size_t>(b)]) {
    return false;
  }
  return layers_.empty() ||
         layers_.NumberOf(static_cast<size_t>(a)) == layers_.NumberOf(static_cast<size_t>(b));
}

std::optional<int64_t> ModelConfig::numbered_layers() const {
  const bool differ = !no_rope_.empty() || !thetas_.empty();
  return !layers_.empty() || differ ? num_layers_ : std::nullopt;
}

int64_t ModelConfig::KeptBytes() const {
  using kernels::KeptBytes;
  return static_cast<int64_t>(sizeof(*this)) + KeptBytes(layer_types_) + layers_.KeptBytes() +
         KeptBytes(no_rope_) + KeptBytes(thetas_) + KeptBytes(entries_);
}

std::vector<size_t> ModelConfig::ChosenLayers(const LayerChoice& choice) const {
  const auto chosen = static_cast<size_t>(choice.layer.value_or(0));
  const bool by_type = !choice.layer_type.empty() && !layers_.empty();
  std::vector<bool> types;  // by number
  for (const std::string& name : layers_.names()) {
    types.push_back(name == choice.layer_type || EntryName(name) == choice.layer_type);
  }
  std::vector<size_t> layers;
  for (size_t i = 0; i < std::max(no_rope_.size(), thetas_.size()); ++i) {
    if (choice.layer.has_value() ? i == chosen : !by_type || types[layers_.NumberOf(i)]) {
      layers.push_back(i);
    }
  }
  return layers;
}

absl::Status ModelConfig::SetTheta(const LayerChoice& choice, LayerConfig& entry) const {
  std::optional<double> base;
  if (thetas_.empty()) return absl::OkStatus();
  for (const size_t i : ChosenLayers(choice)) {
    if (thetas_[i] == 0) continue;
    if (base.has_value() && *base != thetas_[i]) {
      return InvalidField("layer", "nothing",
                          StrCat("a layer: layer_rope_theta has ", *base, " and ", thetas_[i]));
    }
    base = thetas_[i];
  }
  if (base.has_value()) entry.config.rope_theta = *base;
  return absl::OkStatus();
}

void ModelConfig::MarkRotation(const LayerChoice& choice, LayerConfig& entry) const {
  const std::vector<size_t> layers = ChosenLayers(choice);
  const auto is_still = [this](size_t i) { return no_rope_[i]; };
  const auto still = absl::c_find_if(layers, is_still);
  if (still == layers.end()) return;
  if (!absl::c_all_of(layers, is_still)) {
    AddRemark(entry.remarks, RemarkKind::kUnrotatedLayers,
              "some layers do not rotate, the first is layer ", *still,
              "; pick a layer to tell them apart");
    return;
  }
  entry.rotates = false;
  const std::string which =
      choice.layer.has_value()
          ? StrCat("layer ", *choice.layer, " does")
          : StrCat(choice.layer_type, choice.layer_type.empty() ? "" : " ", "layers do");
  AddRemark(entry.remarks, RemarkKind::kUnrotatedLayers, which,
            " not rotate; tensors come back unchanged");
}

std::string_view ModelConfig::EntryName(std::string_view type) const {
  const auto found = type_->parameters_of.find(type);
  return found == type_->parameters_of.end() ? type : std::string_view(found->second);
}

bool ModelConfig::AllStill(std::string_view type) const {
  const std::optional<size_t> number = layers_.Find(type);
  if (!number.has_value() || no_rope_.empty()) return false;
  for (size_t i = 0; i < no_rope_.size(); ++i) {
    if (layers_.NumberOf(i) == *number && !no_rope_[i]) return false;
  }
  return true;
}

absl::StatusOr<LayerConfig> ModelConfig::EntryOf(const LayerChoice& choice,
                                                 const std::string& type) const {
  if (layer_types_.empty()) {
    if (choice.layer_type.empty() || layers_.Find(type).has_value()) return entries_.front();
    return InvalidField("layer_type", Show(type), "no layer_type: this config has no such layers");
  }
  if (type.empty()) {
    return InvalidField("layer_type", choice.layer.has_value() ? "only a layer index" : "nothing",
                        StrCat("one of ", absl::StrJoin(layer_types_, ", ")));
  }
  for (const LayerConfig& entry : entries_) {
    if (entry.layer_type == EntryName(type)) return entry;
  }
  if (AllStill(type)) {  // needs no parameters
    LayerConfig still;
    still.layer_type = type;
    return still;
  }
  return InvalidField("layer_type", Show(type),
                      StrCat("one of ", absl::StrJoin(layer_types_, ", ")));
}

}  // namespace rope::kernels
