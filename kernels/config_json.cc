#include "kernels/config_json.h"

#include <algorithm>
#include <utility>

#include "kernels/config_json_entry.h"
#include "kernels/json_fields.h"
#include "kernels/model_types.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

constexpr int64_t kLayersMax = 65536;
constexpr size_t kLayerTypesMax = 64;

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += StrCat(text.empty() ? "" : ", ", name);
  return text;
}

absl::StatusOr<std::optional<int64_t>> ReadEither(const JsonFields& model, std::string_view key,
                                                  std::string_view old_key) {
  return model.Has(key) ? model.Integer(key) : model.Integer(old_key);
}

absl::StatusOr<std::optional<int64_t>> ReadLayerCount(const JsonFields& model) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> count,
                        ReadEither(model, "num_hidden_layers", "n_layer"));
  if (count.has_value() && (*count < 1 || *count > kLayersMax)) {
    return absl::InvalidArgumentError(
        StrCat(model.PathOf("num_hidden_layers"), ": got ", *count, ", want 1 to ", kLayersMax));
  }
  return count;
}

absl::Status CheckOnePerLayer(const std::string& path, size_t entries,
                              std::optional<int64_t> layers) {
  if (entries == 0 || !layers.has_value() || static_cast<int64_t>(entries) == *layers) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(path, ": got ", entries, " entries, want num_hidden_layers, ", *layers));
}

// Of each `period` layers the last is of another kind than those before it.
bool IsLastOfPeriod(int64_t layer, int64_t period) {
  return (layer + 1) % period == 0;
}

absl::StatusOr<std::optional<int64_t>> ReadPeriod(const JsonFields& model, std::string_view key) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> period, model.Integer(key));
  if (period.has_value() && *period < 1) {
    return absl::InvalidArgumentError(
        StrCat(model.PathOf(key), ": got ", *period, ", want at least 1"));
  }
  return period;
}

// The kind of each layer; empty where the file does not say.
absl::StatusOr<std::vector<std::string>> ReadLayers(const ConfigDocument& document,
                                                    std::optional<int64_t> count) {
  const JsonFields& model = document.model;
  ROPE_ASSIGN_OR_RETURN(std::vector<std::string> layers, model.Strings("layer_types"));
  ROPE_RETURN_IF_ERROR(CheckOnePerLayer(model.PathOf("layer_types"), layers.size(), count));
  if (!layers.empty() || !count.has_value()) return layers;
  const std::string_view key =
      model.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const nlohmann::json* pattern = model.Find(key);
  // EXAONE writes a string of letters there; its layers share one embedding.
  if (pattern != nullptr && pattern->is_string()) return layers;
  ROPE_ASSIGN_OR_RETURN(std::optional<int64_t> period, ReadPeriod(model, key));
  const ModelDefaults* defaults = DefaultsOf(document.model_type);
  if (!period.has_value() && defaults != nullptr) period = defaults->sliding_window_pattern;
  if (!period.has_value()) return layers;
  for (int64_t i = 0; i < *count; ++i) {
    layers.emplace_back(IsLastOfPeriod(i, *period) ? kFullAttention : kSlidingAttention);
  }
  return layers;
}

// True for each layer that does not rotate; empty where all do.
absl::StatusOr<std::vector<bool>> ReadNoRope(const ConfigDocument& document,
                                             std::optional<int64_t> count) {
  const JsonFields& model = document.model;
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> rotating, model.Integers("no_rope_layers"));
  ROPE_RETURN_IF_ERROR(CheckOnePerLayer(model.PathOf("no_rope_layers"), rotating.size(), count));
  std::vector<bool> no_rope;
  // Despite the key's name, 1 is a layer that rotates.
  for (const int64_t rotates : rotating) {
    if (rotates != 0 && rotates != 1) {
      return absl::InvalidArgumentError(
          StrCat(model.PathOf("no_rope_layers"), ": got ", rotates, ", want 0 or 1"));
    }
    no_rope.push_back(rotates == 0);
  }
  if (!no_rope.empty() || !count.has_value()) return no_rope;
  ROPE_ASSIGN_OR_RETURN(std::optional<int64_t> period, ReadPeriod(model, "no_rope_layer_interval"));
  // Llama 4 leaves the list empty, which Hugging Face reads as every fourth layer.
  if (!period.has_value() && document.model_type == "llama4_text") period = 4;
  if (!period.has_value()) return no_rope;
  for (int64_t i = 0; i < *count; ++i) no_rope.push_back(IsLastOfPeriod(i, *period));
  return no_rope;
}

// Cohere 2 rotates its sliding layers only, without a key that says so.
void AddCohere2(const ConfigDocument& document, const std::vector<std::string>& layers,
                std::vector<bool>& no_rope) {
  if (document.model_type != "cohere2" || !no_rope.empty()) return;
  for (const std::string& layer : layers) no_rope.push_back(layer == kFullAttention);
}

absl::StatusOr<std::vector<LayerConfig>> ReadNestedEntries(const ConfigDocument& document) {
  std::vector<LayerConfig> entries;
  for (const auto& [key, value] : document.parameters->json().items()) {
    if (!value.is_object()) continue;
    if (document.bare && !key.ends_with("_attention")) continue;
    if (entries.size() == kLayerTypesMax) {
      return absl::InvalidArgumentError(StrCat(
          document.parameters->path(), ": got more layer types, want at most ", kLayerTypesMax));
    }
    const JsonFields parameters(value, document.parameters->PathOf(key));
    ROPE_ASSIGN_OR_RETURN(LayerConfig entry, ReadEntry(document, parameters, key, false));
    entries.push_back(std::move(entry));
  }
  return entries;
}

// One entry for each kind of layer that differs, or a single one.
absl::StatusOr<std::vector<LayerConfig>> ReadEntries(const ConfigDocument& document) {
  if (document.nested) return ReadNestedEntries(document);
  const bool local =
      document.model.Has("rope_local_base_freq") || DefaultsOf(document.model_type) != nullptr;
  std::vector<LayerConfig> entries;
  if (!local && !document.model.Has("global_head_dim")) {
    ROPE_ASSIGN_OR_RETURN(LayerConfig entry,
                          ReadEntry(document, document.parameters, "", /*local=*/false));
    entries.push_back(std::move(entry));
    return entries;
  }
  ROPE_ASSIGN_OR_RETURN(LayerConfig full, ReadEntry(document, document.parameters, kFullAttention,
                                                    /*local=*/false));
  // The local base comes without scaling.
  ROPE_ASSIGN_OR_RETURN(
      LayerConfig sliding,
      ReadEntry(document, local ? std::nullopt : document.parameters, kSlidingAttention, local));
  entries.push_back(std::move(full));
  entries.push_back(std::move(sliding));
  return entries;
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view json) {
  ROPE_ASSIGN_OR_RETURN(const nlohmann::json file, ParseJsonObject(json));
  ROPE_ASSIGN_OR_RETURN(const ConfigDocument document, LocateParameters(file));
  ModelConfig model;
  ROPE_ASSIGN_OR_RETURN(model.entries_, ReadEntries(document));
  if (model.entries_.size() > 1 || !model.entries_.front().layer_type.empty()) {
    for (const LayerConfig& entry : model.entries_) model.layer_types_.push_back(entry.layer_type);
  }
  ROPE_ASSIGN_OR_RETURN(model.num_layers_, ReadLayerCount(document.model));
  ROPE_ASSIGN_OR_RETURN(model.layers_, ReadLayers(document, model.num_layers_));
  if (!model.layers_.empty()) model.num_layers_ = static_cast<int64_t>(model.layers_.size());
  ROPE_ASSIGN_OR_RETURN(model.no_rope_, ReadNoRope(document, model.num_layers_));
  AddCohere2(document, model.layers_, model.no_rope_);
  if (!model.no_rope_.empty()) model.num_layers_ = static_cast<int64_t>(model.no_rope_.size());
  ROPE_ASSIGN_OR_RETURN(model.num_heads_,
                        ReadEither(document.model, "num_attention_heads", "n_head"));
  ROPE_ASSIGN_OR_RETURN(model.num_kv_heads_, document.model.Integer("num_key_value_heads"));
  if (const ModelDefaults* defaults = DefaultsOf(document.model_type); defaults != nullptr) {
    model.num_heads_ = model.num_heads_.value_or(defaults->num_attention_heads);
    model.num_kv_heads_ = model.num_kv_heads_.value_or(defaults->num_key_value_heads);
  }
  return model;
}

absl::StatusOr<LayerConfig> ModelConfig::Layer(const LayerChoice& choice) const {
  if (choice.layer.has_value() && !choice.layer_type.empty()) {
    return absl::InvalidArgumentError("layer: got layer and layer_type, want one of them");
  }
  std::string type = choice.layer_type;
  if (choice.layer.has_value()) {
    if (*choice.layer < 0 || *choice.layer >= num_layers_.value_or(kLayersMax)) {
      return absl::InvalidArgumentError(StrCat("layer: got ", *choice.layer, ", want 0 to ",
                                               num_layers_.value_or(kLayersMax) - 1));
    }
    if (!layers_.empty()) type = layers_[static_cast<size_t>(*choice.layer)];
  }
  ROPE_ASSIGN_OR_RETURN(LayerConfig entry, EntryOf(choice, type));
  const auto first = std::find(no_rope_.begin(), no_rope_.end(), true);
  if (first == no_rope_.end()) return entry;
  if (!choice.layer.has_value()) {
    entry.warnings.push_back(StrCat("some layers do not rotate, the first is layer ",
                                    first - no_rope_.begin(), "; pick a layer to tell them apart"));
  } else if (no_rope_[static_cast<size_t>(*choice.layer)]) {
    entry.rotates = false;
    entry.warnings.push_back(
        StrCat("layer ", *choice.layer, " does not rotate; tensors come back unchanged"));
  }
  return entry;
}

absl::StatusOr<LayerConfig> ModelConfig::EntryOf(const LayerChoice& choice,
                                                 const std::string& type) const {
  if (layer_types_.empty()) {
    if (choice.layer_type.empty() || Contains(layers_, type)) return entries_.front();
    return absl::InvalidArgumentError(StrCat("layer_type: got ", Show(type), ", want ",
                                             "nothing, as this config has no such layers"));
  }
  if (type.empty()) {
    return absl::InvalidArgumentError(
        StrCat("layer_type: got ", choice.layer.has_value() ? "only a layer index" : "nothing",
               ", want one of ", Join(layer_types_)));
  }
  for (const LayerConfig& entry : entries_) {
    if (entry.layer_type == type) return entry;
  }
  return absl::InvalidArgumentError(
      StrCat("layer_type: got ", Show(type), ", want one of ", Join(layer_types_)));
}

}  // namespace rope::kernels
