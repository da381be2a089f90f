#include "kernels/config/config_json_layers.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {

absl::StatusOr<PerLayerConfig> ReadPerLayerConfig(const JsonFields& model,
                                                  const LayerTypes& types) {
  PerLayerConfig read;
  ROPE_ASSIGN_OR_RETURN(const auto layers, model.Object("per_layer_config"));
  if (!layers.has_value()) return read;
  for (const auto& [key, own] : layers->json().items()) {
    int64_t index = 0;
    if (!absl::SimpleAtoi(key, &index) || index < 0) continue;
    if (index >= static_cast<int64_t>(types.size()) || !own.is_object()) continue;
    const std::string& type = types[static_cast<size_t>(index)];
    if (type.empty()) continue;
    read[type].emplace_back(own, StrCat(layers->path(), ".", index));
  }
  return read;
}

Field<int64_t> IntegerOf(const PerLayerConfig& per_layer, std::string_view layer_type,
                         std::string_view key) {
  const auto found = per_layer.find(layer_type);
  if (found == per_layer.end()) return std::optional<int64_t>();
  for (const JsonFields& layer : found->second) {
    if (layer.Has(key)) return layer.Integer(key);
  }
  return std::optional<int64_t>();
}

namespace {

// ReadLayerList first reads the number of layers, then the types (a list or a rule), then the
// layers that do not rotate. A list must have one entry per layer. A list also gives the number of
// layers if the file has no num_hidden_layers.
static_assert(kLayersMax <= JsonFields::kListMax);

constexpr std::string_view kLinearAttention = "linear_attention";

absl::Status CheckCount(const JsonFields& model, std::string_view key,
                        std::optional<int64_t> count) {
  if (!count.has_value() || (*count >= 1 && *count <= kLayersMax)) return absl::OkStatus();
  return InvalidField(model.PathOf(key), *count, StrCat("1 to ", kLayersMax));
}

Field<int64_t> ReadCount(const ConfigDocument& document) {
  const JsonFields& model = document.model;
  const nlohmann::json& repeats = document.type->repeats;
  const std::string_view key = model.Has("num_hidden_layers") ? "num_hidden_layers" : "n_layer";
  ROPE_ASSIGN_OR_RETURN(std::optional<int64_t> count, model.Integer(key));
  ROPE_RETURN_IF_ERROR(CheckCount(model, key, count));
  if (repeats.is_null() || model.Has(repeats.at("unless").get<std::string>())) return count;
  const auto of = repeats.at("of").get<std::string>();
  ROPE_ASSIGN_OR_RETURN(count, model.Integer(of));
  for (const auto& [factor, rule] : repeats.at("by").items()) {
    ROPE_ASSIGN_OR_RETURN(const auto times, model.Integer(factor));
    ROPE_RETURN_IF_ERROR(CheckCount(model, factor, times));
    ROPE_RETURN_IF_ERROR(CheckCount(model, of, count));
    if (!count.has_value()) break;
    count = *count * (times.value_or(rule[0].get<int64_t>()) + rule[1].get<int64_t>());
  }
  ROPE_RETURN_IF_ERROR(CheckCount(model, of, count));
  return count;
}

// Checks that `list` has one entry per layer. In repositories it may also have those of the layers
// that draft tokens (multi-token prediction), which are dropped.
template <typename T>
absl::Status KeepOnePerLayer(const JsonFields& model, std::string_view key,
                             std::optional<int64_t> layers, std::vector<T>& list) {
  const auto entries = static_cast<int64_t>(list.size());
  if (entries == 0 || !layers.has_value() || entries == *layers) return absl::OkStatus();
  int64_t drafts = 0;
  for (const std::string_view each :
       {"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"}) {
    ROPE_ASSIGN_OR_RETURN(const auto count, model.Integer(each));
    drafts = std::max(drafts, count.value_or(0));
  }
  if (key == "hybrid_layer_pattern") drafts = std::max(drafts, int64_t{1});
  if (entries < *layers || entries - *layers > drafts) {
    return InvalidField(model.PathOf(key), StrCat(entries, " entries"),
                        StrCat("num_hidden_layers, ", *layers));
  }
  list.resize(static_cast<size_t>(*layers));
  return absl::OkStatus();
}

// Reads a list with 0 or 1 per layer; empty if the key is absent.
absl::StatusOr<std::vector<bool>> ReadFlags(const JsonFields& model, std::string_view key,
                                            std::optional<int64_t> count) {
  ROPE_ASSIGN_OR_RETURN(std::vector<int64_t> numbers, model.Integers(key));
  ROPE_RETURN_IF_ERROR(KeepOnePerLayer(model, key, count, numbers));
  std::vector<bool> flags;
  for (const int64_t number : numbers) {
    if (number != 0 && number != 1) {
      return InvalidField(model.PathOf(key), number, "0 or 1");
    }
    flags.push_back(number == 1);
  }
  return flags;
}

absl::Status BadType(const std::string& path, const std::string& name) {
  return InvalidField(
      path, Show(name),
      StrCat("at most ", kLayerTypesMax, " types, of at most ", kLayerTypeBytesMax, " bytes each"));
}

// Reads a period >= 1; unset if the key is absent.
Field<int64_t> ReadPeriod(const JsonFields& model, std::string_view key) {
  ROPE_ASSIGN_OR_RETURN(const auto period, model.Integer(key));
  if (period.has_value() && *period < 1) {
    return InvalidField(model.PathOf(key), *period, "at least 1");
  }
  return period;
}

// Repeats the letters: L is a local (sliding) layer, G a global (full attention) layer.
absl::StatusOr<LayerTypes> FromLetters(const std::string& path, const std::string& letters,
                                       int64_t count) {
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
    return InvalidField(path, Show(letters), "a number, or letters L and G");
  }
  LayerTypes types;
  for (int64_t i = 0; i < count; ++i) {
    const char letter = letters[static_cast<size_t>(i) % letters.size()];
    types.Add(letter == 'G' ? kFullAttention : kSlidingAttention);
  }
  return types;
}

// Layer types from a rule. Keys are tried in the order that config_json_layers.h gives.
absl::StatusOr<LayerTypes> TypesByRule(const JsonFields& model, int64_t count) {
  const std::string_view pattern =
      model.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  if (const nlohmann::json* text = model.Find(pattern); text != nullptr && text->is_string()) {
    return FromLetters(model.PathOf(pattern), text->get<std::string>(), count);
  }
  LayerTypes types;
  for (const auto& [key, full_is_first, others] :
       {std::tuple(pattern, false, kSlidingAttention),
        std::tuple(std::string_view("global_attn_every_n_layers"), true, kSlidingAttention),
        std::tuple(std::string_view("full_attention_interval"), false, kLinearAttention)}) {
    ROPE_ASSIGN_OR_RETURN(const auto period, ReadPeriod(model, key));
    if (!period.has_value()) continue;
    const int64_t full = full_is_first ? 0 : *period - 1;
    for (int64_t i = 0; i < count; ++i) types.Add(i % *period == full ? kFullAttention : others);
    break;
  }
  return types;
}

// A list that the types of the layers repeat: recurrent_gemma's block_types.
absl::StatusOr<LayerTypes> TypesByBlocks(const JsonFields& model, int64_t count) {
  LayerTypes types;
  ROPE_ASSIGN_OR_RETURN(const auto blocks, model.Strings("block_types"));
  for (int64_t i = 0; !blocks.empty() && i < count; ++i) {
    const std::string& name = blocks[static_cast<size_t>(i) % blocks.size()];
    if (!types.Add(name)) return BadType(model.PathOf("block_types"), name);
  }
  return types;
}

// A list of the layers that have full attention; the others have none.
absl::StatusOr<LayerTypes> TypesByIndices(const JsonFields& model, int64_t count) {
  LayerTypes types;
  for (const std::string_view key : {"attn_layer_indices", "full_attn_idxs"}) {
    ROPE_ASSIGN_OR_RETURN(const auto full, model.Integers(key));
    if (full.empty()) continue;
    const std::set<int64_t> indices(full.begin(), full.end());
    for (int64_t i = 0; i < count; ++i) {
      types.Add(indices.contains(i) ? kFullAttention : kLinearAttention);
    }
    break;
  }
  return types;
}

absl::StatusOr<LayerTypes> ReadTypes(const ConfigDocument& document, std::optional<int64_t> count) {
  const JsonFields& model = document.model;
  const std::string_view key = model.Has("layer_types") ? "layer_types" : "layers_block_type";
  ROPE_ASSIGN_OR_RETURN(std::vector<std::string> names, model.Strings(key));
  ROPE_RETURN_IF_ERROR(KeepOnePerLayer(model, key, count, names));
  LayerTypes types;
  for (const std::string& name : names) {
    if (!types.Add(name)) return BadType(model.PathOf(key), name);
  }
  if (!types.empty()) return types;
  ROPE_ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                        ReadFlags(model, "hybrid_layer_pattern", count));
  for (const bool slides : sliding) types.Add(slides ? kSlidingAttention : kFullAttention);
  if (!types.empty() || !count.has_value()) return types;
  for (const auto read : {TypesByBlocks, TypesByIndices, TypesByRule}) {
    ROPE_ASSIGN_OR_RETURN(types, read(model, *count));
    if (!types.empty()) return types;
  }
  const LayerRule& rule = document.type->layers;
  for (int64_t i = 0; !rule.empty() && i < *count; ++i) types.Add(rule(i, *count));
  return types;
}

bool RotatesByType(const ConfigDocument& document, const std::string& type) {
  if (type == kLinearAttention || type == "mamba" || type == "conv" || type == "recurrent") {
    return false;
  }
  const ModelType& model = *document.type;
  if (!model.no_rope_needs.empty() && !document.model.Has(model.no_rope_needs)) return true;
  return !absl::c_linear_search(model.no_rope_layer_types, type);
}

// The base of each layer, 0 for a layer that does not rotate; empty if the file has no such list.
absl::StatusOr<std::vector<double>> ReadThetas(const JsonFields& model,
                                               std::optional<int64_t> count) {
  ROPE_ASSIGN_OR_RETURN(std::vector<double> thetas, model.Numbers("layer_rope_theta"));
  ROPE_RETURN_IF_ERROR(KeepOnePerLayer(model, "layer_rope_theta", count, thetas));
  for (const double theta : thetas) {
    if (theta != 0 && !(theta > 0)) {
      return InvalidField(model.PathOf("layer_rope_theta"), theta, "0, or a base greater than 0");
    }
  }
  return thetas;
}

// REQUIRES: the other fields of `layers` are set. An explicit list comes before the interval.
// Layers that their type excludes are added to both.
absl::StatusOr<std::vector<bool>> ReadNoRope(const ConfigDocument& document,
                                             const LayerList& layers) {
  // Despite the key's name, 1 means that the layer rotates.
  ROPE_ASSIGN_OR_RETURN(std::vector<bool> no_rope,
                        ReadFlags(document.model, "no_rope_layers", layers.count));
  no_rope.flip();
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> period,
                        ReadPeriod(document.model, "no_rope_layer_interval"));
  const int64_t count = layers.count.value_or(0);
  no_rope.resize(std::max(no_rope.size(), layers.thetas.size()));
  for (size_t i = 0; i < layers.thetas.size(); ++i) {
    if (layers.thetas[i] == 0) no_rope[i] = true;
  }
  if (no_rope.empty() && period.has_value()) {
    for (int64_t i = 0; i < count; ++i) no_rope.push_back(i % *period == *period - 1);
  }
  if (const LayerRule& rule = document.type->rope_layers; no_rope.empty() && !rule.empty()) {
    for (int64_t i = 0; i < count; ++i) no_rope.push_back(rule(i, count) == "none");
  }
  ROPE_ASSIGN_OR_RETURN(const auto crossed, document.model.Integers("cross_attention_layers"));
  no_rope.resize(std::max(
      {no_rope.size(), layers.types.size(), static_cast<size_t>(crossed.empty() ? 0 : count)}));
  for (const int64_t layer : crossed) {
    if (layer >= 0 && layer < static_cast<int64_t>(no_rope.size())) {
      no_rope[static_cast<size_t>(layer)] = true;
    }
  }
  std::vector<bool> rotates;  // by type
  for (const std::string& type : layers.types.names()) {
    rotates.push_back(RotatesByType(document, type));
  }
  for (size_t i = 0; i < layers.types.size(); ++i) {
    if (!rotates[layers.types.NumberOf(i)]) no_rope[i] = true;
  }
  return no_rope;
}

}  // namespace

absl::StatusOr<LayerList> ReadLayerList(const ConfigDocument& document) {
  LayerList layers;
  ROPE_ASSIGN_OR_RETURN(layers.count, ReadCount(document));
  ROPE_ASSIGN_OR_RETURN(layers.types, ReadTypes(document, layers.count));
  if (!layers.types.empty()) layers.count = static_cast<int64_t>(layers.types.size());
  ROPE_ASSIGN_OR_RETURN(layers.thetas, ReadThetas(document.model, layers.count));
  if (!layers.thetas.empty()) layers.count = static_cast<int64_t>(layers.thetas.size());
  ROPE_ASSIGN_OR_RETURN(layers.no_rope, ReadNoRope(document, layers));
  if (!layers.no_rope.empty()) layers.count = static_cast<int64_t>(layers.no_rope.size());
  return layers;
}

}  // namespace rope::kernels
