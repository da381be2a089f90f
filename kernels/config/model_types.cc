#include "kernels/config/model_types.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/check.h"
#include "kernels/config/embedded_data.h"
#include "kernels/config/json_fields.h"
#include "kernels/error.h"
#include "proto/nearest_name.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kText = "_text";
constexpr std::string_view kOfTransformers = "transformers ";

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
  type.repeats = Pop(entry, "repeats");
  type.attention_and_mlp = Pop(entry, "attention_and_mlp") == true;
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

// REQUIRES: `source` and `parameters_of` are read.
void ReadPlaces(Json& entry, ModelType& type) {
  type.of_transformers = type.source.starts_with(kOfTransformers);
  type.whole_heads = Pop(entry, "whole_heads") == true;
  type.rope_types = PopStrings(entry, "rope_types");
  type.needs = PopPairs(entry, "needs");
  if (entry.contains("reads")) type.reads = PopStrings(entry, "reads");
  if (const Json word = Pop(entry, "blocks"); !word.is_null()) {
    type.blocks = WordOf<BlockRule>(word, {{"as_is", BlockRule::kAsIs},
                                           {"parameters_only", BlockRule::kParametersOnly},
                                           {"filled", BlockRule::kFilled},
                                           {"on_full", BlockRule::kOnFull},
                                           {"on_both", BlockRule::kOnBoth},
                                           {"by_layer", BlockRule::kByLayer},
                                           {"main_and_compress", BlockRule::kMainAndCompress}});
  }
  if (const Json base = Pop(entry, "theta_4"); !base.is_null()) type.theta_4 = base.get<double>();
  if (Json defaults = Pop(entry, "defaults"); !defaults.is_null()) {
    type.defaults = std::move(defaults);
  }
  const Json usual = type.defaults.value("rope_parameters", Json());
  type.by_layer_type =
      Pop(entry, "by_layer_type") == true || type.blocks >= BlockRule::kOnFull || HasObjects(usual);
}

ModelType ReadModelType(Json entry) {
  ModelType type;
  type.positions = PopString(entry, "positions");
  if (type.positions.empty()) type.pairing = PairingOf(Pop(entry, "pairing"));
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
  type.theta_ratio = PopString(entry, "theta_ratio");
  type.unsupported = PopString(entry, "unsupported");
  type.unsupported_if = PopString(entry, "unsupported_if");
  ReadPlaces(entry, type);
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

// The names of all entries, and those of their composite models.
std::vector<std::string> ModelTypeNames() {
  std::vector<std::string> names;
  for (const auto& [name, type] : Table()) {
    names.push_back(name);
    if (name.ends_with(kText)) names.push_back(name.substr(0, name.size() - kText.size()));
  }
  return names;
}

// What keys.json has.
struct KeyData {
  std::map<std::string, std::vector<std::string>, std::less<>> lists;
  std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>> words;
};

KeyData ReadKeyData() {
  KeyData read;
  const Json data = Json::parse(kKeysJson);
  for (const auto& [name, entry] : data.items()) {
    if (entry.contains("keys")) entry.at("keys").get_to(read.lists[name]);
    if (entry.contains("words")) entry.at("words").get_to(read.words[name]);
  }
  return read;
}

const KeyData& KnownKeys() {
  static const KeyData data = ReadKeyData();
  return data;
}

}  // namespace

const std::vector<std::string>& KeyList(std::string_view name) {
  const auto found = KnownKeys().lists.find(name);
  ROPE_CHECK(found != KnownKeys().lists.end());
  return found->second;
}

const std::map<std::string, std::string, std::less<>>& WordsOf(std::string_view name) {
  const auto found = KnownKeys().words.find(name);
  ROPE_CHECK(found != KnownKeys().words.end());
  return found->second;
}

bool HasValue(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

bool StatesParameters(const Json& config) {
  return absl::c_any_of(KeyList("scaling"),
                        [&](std::string_view key) { return HasValue(config, key); });
}

bool HasObjects(const Json& block) {
  return block.is_object() &&
         absl::c_any_of(block, [](const Json& each) { return each.is_object(); });
}

std::string_view OwnTypeOf(const Json& config) {
  const auto found = config.find("model_type");
  if (found == config.end() || !found->is_string()) return "";
  const auto& name = found->get_ref<const std::string&>();
  return name.size() > kModelTypeBytesMax ? std::string_view() : name;
}

namespace {

constexpr std::string_view kAlibi = "ALiBi, a bias on the attention scores";

bool IsTrue(const JsonFields& fields, std::string_view key) {
  const nlohmann::json* const value = fields.Find(key);
  return value != nullptr && *value == true;
}

// What may help with an unknown name, as the end of a sentence: the code's place, or the known name
// that is one or two letters away. A longer or shorter name is another model's.
std::string Hint(std::string_view model_type, const JsonFields& model) {
  constexpr size_t kEditsMax = 2;
  if (model.Has("auto_map")) return ": its code is in the model's repository (auto_map)";
  const std::vector<std::string> nearest = proto::NearestModels(model_type, ModelTypeNames());
  if (nearest.size() != 1 || proto::Edits(model_type, nearest[0]) > kEditsMax) return "";
  const bool begins = nearest[0].starts_with(model_type) || model_type.starts_with(nearest[0]);
  return begins ? "" : proto::DidYouMean(nearest[0]);
}

// Whether the value of a key of other code changes the rotation.
bool Changes(const nlohmann::json& value) {
  // Of attn_type_list only layers of type 0 differ.
  if (value.is_array()) return std::find(value.begin(), value.end(), 0) != value.end();
  return value != false;
}

// Keys that other code of the ChatGLM family, or an engine, reads in another way.
void RemarkChatGlm(const JsonFields& model, std::vector<Remark>& remarks) {
  constexpr int kVocabulary = 65024;  // of ChatGLM2 and ChatGLM3; that of GLM-4 is larger
  const nlohmann::json* const ratio = model.Find("rope_ratio");
  const nlohmann::json* const vocabulary = model.Find("padded_vocab_size");
  if (ratio != nullptr && *ratio != 1 && (vocabulary == nullptr || *vocabulary == kVocabulary)) {
    remarks.push_back({RemarkKind::kRemoteCode,
                       StrCat("rope_ratio ", Show(*ratio),
                              " multiplies the base, as in ChatGLM3-6B-32k and in engines: the "
                              "code of ChatGLM2-6B-32k divides positions by it")});
  }
  const nlohmann::json* const original = model.Find("original_rope");
  if (original != nullptr && *original == false) {
    remarks.push_back({RemarkKind::kRemoteCode,
                       "original_rope false: half pairs turn, as in the model's code and in vLLM; "
                       "SGLang and llama.cpp do not read it, and turn interleaved ones"});
  }
}

}  // namespace

std::string_view PositionsInsteadOfRope(std::string_view model_type, const JsonFields& model) {
  const std::string_view positions = ModelTypeOf(model_type).positions;
  // Code of a repository may rotate where that of its model_type does not: Jina's BERT.
  const bool of_class = !model.Has("auto_map") || !StatesParameters(model.json());
  if (!positions.empty() && (of_class || positions.starts_with("no "))) return positions;
  return IsTrue(model, "alibi") && !StatesParameters(model.json()) ? kAlibi : "";
}

void RemarkModel(std::string_view model_type, const JsonFields& model,
                 std::vector<Remark>& remarks) {
  const std::string shown = Show(std::string(model_type));
  const auto& facts = WordsOf("remote_code");
  if (const auto fact = facts.find(model_type); fact != facts.end()) {
    remarks.push_back({RemarkKind::kRemoteCode,
                       StrCat("model_type ", shown,
                              " has its code in the model's repository, which is not followed "
                              "here: ",
                              fact->second)});
  } else if (!model_type.empty() && FindOfModel(model_type) == nullptr &&
             PositionsInsteadOfRope(model_type, model).empty()) {
    remarks.push_back(
        {RemarkKind::kUnknownModelType,
         StrCat("model_type ", shown, " is not known, so neither are its pairing and its defaults",
                Hint(model_type, model))});
  }
  const std::string& read = ModelTypeOf(model_type).theta_ratio;
  if (!read.empty()) RemarkChatGlm(model, remarks);
  for (const std::string_view key : KeyList("other_code")) {
    const nlohmann::json* const value = model.Find(key);
    if (value == nullptr || !Changes(*value) || key == read) continue;
    if (key == "alibi" && !PositionsInsteadOfRope(model_type, model).empty()) continue;
    remarks.push_back({RemarkKind::kRemoteCode, StrCat(model.PathOf(key), " is not read")});
  }
}

const std::string& LayerRule::operator()(int64_t layer, int64_t count) const {
  const auto from_end = static_cast<size_t>(count - 1 - layer);
  const auto i = static_cast<size_t>(layer);
  if (from_end < last.size()) return last[last.size() - 1 - from_end];
  if (i < first.size()) return first[i];
  return repeat[(backward ? from_end : i) % repeat.size()];
}

std::string_view WhyUnsupported(const ModelType& type, const nlohmann::json& model) {
  if (type.unsupported_if.empty()) return type.unsupported;
  const auto found = model.find(type.unsupported_if);
  return found != model.end() && *found == true ? std::string_view(type.unsupported) : "";
}

bool HasModelType(std::string_view model_type) {
  return Find(model_type) != nullptr;
}

const ModelType& ModelTypeOf(std::string_view model_type) {
  static const ModelType unknown;
  const ModelType* const type = FindOfModel(model_type);
  return type == nullptr ? unknown : *type;
}

}  // namespace rope::kernels
