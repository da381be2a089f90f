#include "kernels/config/model_types.h"

#include <algorithm>
#include <map>

#include "kernels/check.h"
#include "kernels/config/embedded_data.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kText = "_text";

// The entries are part of the program: a word that is not in these tables ends it, at the first
// use, and every test that reads a config sees that.
template <typename T>
T WordOf(const Json& word, std::initializer_list<std::pair<std::string_view, T>> words) {
  for (const auto& [name, value] : words) {
    if (word == name) return value;
  }
  ROPE_CHECK(false);
  return words.begin()->second;
}

Pairing PairingOf(const Json& word) {
  return WordOf<Pairing>(word, {{"half", Pairing::kHalf}, {"interleaved", Pairing::kInterleaved}});
}

AxialGrid GridOf(const Json& word) {
  return WordOf<AxialGrid>(word, {{"h_w", AxialGrid::kHW},
                                  {"w_h", AxialGrid::kWH},
                                  {"wh_alternating", AxialGrid::kWHAlternating},
                                  {"hw_alternating", AxialGrid::kHWAlternating},
                                  {"hw_frequencies", AxialGrid::kHWFrequencies},
                                  {"t_h_w", AxialGrid::kTHW}});
}

Mrope::Layout LayoutOf(const Json& word) {
  return WordOf<Mrope::Layout>(word, {{"sections", Mrope::Layout::kSections},
                                      {"interleaved", Mrope::Layout::kInterleaved},
                                      {"hw_interleaved", Mrope::Layout::kHwInterleaved}});
}

// Takes `key` out of `entry`; null if it is absent.
Json Pop(Json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end()) return nullptr;
  Json value = std::move(*found);
  entry.erase(found);
  return value;
}

std::vector<std::string> PopStrings(Json& entry, const char* key) {
  const Json list = Pop(entry, key);
  return list.is_null() ? std::vector<std::string>() : list.get<std::vector<std::string>>();
}

LayerRule PopRule(Json& entry, const char* key) {
  Json rule = Pop(entry, key);
  if (rule.is_null()) return {};
  LayerRule read{.first = PopStrings(rule, "first"),
                 .repeat = PopStrings(rule, "repeat"),
                 .last = PopStrings(rule, "last"),
                 .backward = Pop(rule, "backward") == true};
  ROPE_CHECK(rule.empty() && !read.empty());
  return read;
}

std::string PopString(Json& entry, const char* key) {
  const Json word = Pop(entry, key);
  return word.is_null() ? std::string() : word.get<std::string>();
}

// {"of one": "of another"}, or null.
std::vector<std::pair<std::string, std::string>> PopPairs(Json& entry, const char* key) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const Json object = Pop(entry, key);
  for (const auto& [name, value] : object.items()) pairs.emplace_back(name, value);
  return pairs;
}

void ReadLayers(Json& entry, ModelType& type) {
  type.layers = PopRule(entry, "layers");
  type.rope_layers = PopRule(entry, "rope_layers");
  type.thetas_only_mark = Pop(entry, "thetas_only_mark") == true;
  type.parameters_of = PopPairs(entry, "parameters_of");
  const Json condition = Pop(entry, "rotates_if");
  for (const auto& [key, value] : condition.items()) type.rotates_if = {key, value};
  type.no_rope_layer_types = PopStrings(entry, "no_rope_layer_types");
  type.no_rope_needs = PopString(entry, "no_rope_needs");
  type.sliding_layers_unscaled = Pop(entry, "sliding_layers_unscaled") == true;
}

void ReadMrope(Json mrope, ModelType& type) {
  if (mrope.is_null()) return;
  type.mrope_unsupported = PopString(mrope, "unsupported");
  if (!type.mrope_unsupported.empty()) return;
  type.mrope_layout = LayoutOf(mrope.at("layout"));
  if (mrope.contains("section")) mrope.at("section").get_to(type.mrope_section.emplace());
}

ModelType ReadModelType(Json entry) {
  ModelType type;
  type.pairing = PairingOf(Pop(entry, "pairing"));
  type.source = Pop(entry, "source").get<std::string>();
  if (const Json word = Pop(entry, "channel_order"); !word.is_null()) {
    type.channel_order = PairingOf(word);
  }
  type.reverse = Pop(entry, "reverse") == true;
  type.trailing_window = Pop(entry, "window") == "tail";
  if (const Json word = Pop(entry, "axial"); !word.is_null()) {
    type.axial = GridOf(word);
  }
  ReadMrope(Pop(entry, "mrope"), type);
  type.names = PopPairs(entry, "names");
  type.width = PopString(entry, "width");
  type.rope_in_head = Pop(entry, "rope_in_head") == true;
  ReadLayers(entry, type);
  if (const Json word = Pop(entry, "longrope_branch"); !word.is_null()) {
    type.longrope_branch = WordOf<LongropeBranch>(
        word, {{"short", LongropeBranch::kShort}, {"long", LongropeBranch::kLong}});
  }
  type.partial_rotary_factor_of = PopStrings(entry, "partial_rotary_factor_of");
  type.unsupported = PopString(entry, "unsupported");
  type.hf_ignores = PopStrings(entry, "hf_ignores");
  if (Json defaults = Pop(entry, "defaults"); !defaults.is_null()) {
    type.defaults = std::move(defaults);
  }
  ROPE_CHECK(entry.empty());  // no unknown key
  return type;
}

std::map<std::string, ModelType, std::less<>> ReadTable() {
  std::map<std::string, ModelType, std::less<>> table;
  const Json data = Json::parse(kModelTypesJson);
  for (const auto& [name, entry] : data.items()) table.emplace(name, ReadModelType(entry));
  return table;
}

const std::map<std::string, ModelType, std::less<>>& Table() {
  static const auto table = ReadTable();
  return table;
}

const ModelType* Find(std::string_view name) {
  const auto found = Table().find(name);
  return found == Table().end() ? nullptr : &found->second;
}

// The entry of `model_type`; null: there is none.
const ModelType* FindOfModel(std::string_view model_type) {
  if (const ModelType* type = Find(model_type)) return type;
  const std::string_view stem = model_type.substr(0, model_type.size() - kText.size());
  return model_type.size() > kText.size() && model_type.ends_with(kText)
             ? Find(stem)
             : Find(std::string(model_type) + std::string(kText));
}

}  // namespace

const std::string& LayerRule::operator()(int64_t layer, int64_t count) const {
  const auto from_end = static_cast<size_t>(count - 1 - layer);
  const auto i = static_cast<size_t>(layer);
  if (from_end < last.size()) return last[last.size() - 1 - from_end];
  if (i < first.size()) return first[i];
  return repeat[(backward ? from_end : i) % repeat.size()];
}

bool HasModelType(std::string_view model_type) {
  return Find(model_type) != nullptr;
}

const ModelType& ModelTypeOf(std::string_view model_type) {
  static const ModelType unknown;
  const ModelType* const type = FindOfModel(model_type);
  return type == nullptr ? unknown : *type;
}

bool IsKnownModelType(std::string_view model_type) {
  return FindOfModel(model_type) != nullptr;
}

std::vector<std::string> ModelTypeNames() {
  std::vector<std::string> names;
  for (const auto& [name, type] : Table()) {
    names.push_back(name);
    if (name.ends_with(kText)) names.push_back(name.substr(0, name.size() - kText.size()));
  }
  return names;
}

}  // namespace rope::kernels
