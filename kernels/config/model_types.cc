#include "kernels/config/model_types.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "kernels/check.h"
#include "kernels/config/embedded_data.h"
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
using WordFor = std::pair<std::string_view, T>;
constexpr WordFor<Pairing> kPairings[] = {{"half", Pairing::kHalf},
                                          {"interleaved", Pairing::kInterleaved}};
constexpr WordFor<AxialGrid> kGrids[] = {{"h_w", AxialGrid::kHW},
                                         {"w_h", AxialGrid::kWH},
                                         {"wh_alternating", AxialGrid::kWHAlternating},
                                         {"hw_alternating", AxialGrid::kHWAlternating},
                                         {"hw_frequencies", AxialGrid::kHWFrequencies},
                                         {"t_h_w", AxialGrid::kTHW}};
constexpr WordFor<Mrope::Layout> kLayouts[] = {{"sections", Mrope::Layout::kSections},
                                               {"interleaved", Mrope::Layout::kInterleaved},
                                               {"hw_interleaved", Mrope::Layout::kHwInterleaved}};
constexpr WordFor<LongropeBranch> kBranches[] = {{"short", LongropeBranch::kShort},
                                                 {"long", LongropeBranch::kLong}};
constexpr WordFor<BlockRule> kBlockRules[] = {{"as_is", BlockRule::kAsIs},
                                              {"parameters_only", BlockRule::kParametersOnly},
                                              {"filled", BlockRule::kFilled},
                                              {"on_full", BlockRule::kOnFull},
                                              {"on_both", BlockRule::kOnBoth},
                                              {"by_layer", BlockRule::kByLayer},
                                              {"main_and_compress", BlockRule::kMainAndCompress}};
constexpr WordFor<bool> kWindows[] = {{"tail", true}};

// Takes `key` out of `entry`, and its value. An absent key leaves `value` as it is.
template <typename T>
void Pop(Json& entry, const char* key, T& value) {
  const auto found = entry.find(key);
  if (found == entry.end()) return;
  found->get_to(value);
  entry.erase(found);
}

template <typename T>
void Pop(Json& entry, const char* key, std::optional<T>& value) {
  if (entry.contains(key)) Pop(entry, key, value.emplace());
}

template <typename T, size_t kWords, typename Value>
void PopWord(Json& entry, const char* key, const WordFor<T> (&words)[kWords], Value& value) {
  std::string word;
  Pop(entry, key, word);
  if (word.empty()) return;
  const auto* const found = std::ranges::find(words, std::string_view(word), &WordFor<T>::first);
  ROPE_CHECK(found != std::end(words));
  value = found->second;
}

void PopRule(Json& entry, const char* key, LayerRule& read) {
  Json rule;
  Pop(entry, key, rule);
  if (rule.is_null()) return;
  Pop(rule, "first", read.first);
  Pop(rule, "repeat", read.repeat);
  Pop(rule, "last", read.last);
  Pop(rule, "backward", read.backward);
  ROPE_CHECK(rule.empty() && !read.empty());
}

void ReadLayers(Json& entry, ModelType& type) {
  PopRule(entry, "layers", type.layers);
  PopRule(entry, "rope_layers", type.rope_layers);
  Pop(entry, "thetas_only_mark", type.thetas_only_mark);
  Pop(entry, "repeats", type.repeats);
  Pop(entry, "attention_and_mlp", type.attention_and_mlp);
  Pop(entry, "parameters_of", type.parameters_of);
  Json condition;
  Pop(entry, "rotates_if", condition);
  for (const auto& [key, value] : condition.items()) type.rotates_if = {key, value};
  Pop(entry, "no_rope_layer_types", type.no_rope_layer_types);
  Pop(entry, "no_rope_needs", type.no_rope_needs);
  Pop(entry, "sliding_layers_unscaled", type.sliding_layers_unscaled);
}

// REQUIRES: `source` is read.
void ReadPlaces(Json& entry, ModelType& type) {
  type.of_transformers = type.source.starts_with(kOfTransformers);
  Pop(entry, "whole_heads", type.whole_heads);
  Pop(entry, "rope_types", type.rope_types);
  Pop(entry, "needs", type.needs);
  Pop(entry, "reads", type.reads);
  PopWord(entry, "blocks", kBlockRules, type.blocks);
  Pop(entry, "theta_4", type.theta_4);
  Pop(entry, "defaults", type.defaults);
  Pop(entry, "by_layer_type", type.by_layer_type);
  type.by_layer_type = type.by_layer_type || type.blocks >= BlockRule::kOnFull ||
                       HasObjects(type.defaults.value("rope_parameters", Json()));
}

ModelType ReadModelType(Json entry) {
  ModelType type;
  Pop(entry, "positions", type.positions);
  PopWord(entry, "pairing", kPairings, type.pairing);
  Pop(entry, "source", type.source);
  PopWord(entry, "channel_order", kPairings, type.channel_order);
  Pop(entry, "reverse", type.reverse);
  PopWord(entry, "window", kWindows, type.trailing_window);
  PopWord(entry, "axial", kGrids, type.axial);
  Json mrope;
  Pop(entry, "mrope", mrope);
  Pop(mrope, "unsupported", type.mrope_unsupported);
  PopWord(mrope, "layout", kLayouts, type.mrope_layout);
  Pop(mrope, "section", type.mrope_section);
  Pop(entry, "names", type.names);
  Pop(entry, "width", type.width);
  Pop(entry, "rope_in_head", type.rope_in_head);
  ReadLayers(entry, type);
  PopWord(entry, "longrope_branch", kBranches, type.longrope_branch);
  Pop(entry, "partial_rotary_factor_of", type.partial_rotary_factor_of);
  Pop(entry, "theta_ratio", type.theta_ratio);
  Pop(entry, "unsupported", type.unsupported);
  Pop(entry, "unsupported_if", type.unsupported_if);
  ReadPlaces(entry, type);
  ROPE_CHECK(entry.empty() && mrope.empty());  // no unknown key
  ROPE_CHECK(type.positions.empty() == type.pairing.has_value() && !type.source.empty());
  return type;
}

using ModelTypes = std::map<std::string, ModelType, std::less<>>;

const ModelTypes& Table() {
  static const ModelTypes table = [] {
    ModelTypes read;
    const Json data = Json::parse(kModelTypesJson);
    for (const auto& [name, entry] : data.items()) read.emplace(name, ReadModelType(entry));
    return read;
  }();
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

// What keys.json has.
struct KeyData {
  std::map<std::string, std::vector<std::string>> lists;
  std::map<std::string, std::map<std::string, std::string, std::less<>>> words;
};

const KeyData& KnownKeys() {
  static const KeyData data = [] {
    KeyData read;
    const Json file = Json::parse(kKeysJson);
    for (const auto& [name, entry] : file.items()) {
      if (entry.contains("keys")) entry.at("keys").get_to(read.lists[name]);
      if (entry.contains("words")) entry.at("words").get_to(read.words[name]);
    }
    return read;
  }();
  return data;
}

}  // namespace

const std::vector<std::string>& KeyList(std::string_view name) {
  return KnownKeys().lists.at(std::string(name));
}

const std::map<std::string, std::string, std::less<>>& WordsOf(std::string_view name) {
  return KnownKeys().words.at(std::string(name));
}

bool HasValue(const Json& object, std::string_view key) {
  return JsonFields(object).Has(key);
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

// What may help with an unknown name, as the end of a sentence: the code's place, or the known name
// that is one or two letters away. A longer or shorter name is another model's.
std::string Hint(std::string_view model_type, const JsonFields& model) {
  constexpr size_t kEditsMax = 2;
  if (model.Has("auto_map")) return ": its code is in the model's repository (auto_map)";
  std::vector<std::string> names;  // of all entries, and of their composite models
  for (const auto& [name, type] : Table()) {
    names.push_back(name);
    if (name.ends_with(kText)) names.push_back(name.substr(0, name.size() - kText.size()));
  }
  const std::vector<std::string> nearest = proto::NearestModels(model_type, names);
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
    AddRemark(remarks, RemarkKind::kRemoteCode, "rope_ratio ", Show(*ratio),
              " multiplies the base, as in ChatGLM3-6B-32k and in engines: the code of "
              "ChatGLM2-6B-32k divides positions by it");
  }
  const nlohmann::json* const original = model.Find("original_rope");
  if (original != nullptr && *original == false) {
    AddRemark(remarks, RemarkKind::kRemoteCode,
              "original_rope false: half pairs turn, as in the model's code and in vLLM; "
              "SGLang and llama.cpp do not read it, and turn interleaved ones");
  }
}

}  // namespace

std::string_view PositionsInsteadOfRope(std::string_view model_type, const JsonFields& model) {
  const std::string_view positions = ModelTypeOf(model_type).positions;
  // Code of a repository may rotate where that of its model_type does not: Jina's BERT.
  const bool of_class = !model.Has("auto_map") || !StatesParameters(model.json());
  if (!positions.empty() && (of_class || positions.starts_with("no "))) return positions;
  const nlohmann::json* const alibi = model.Find("alibi");
  const bool is_true = alibi != nullptr && *alibi == true;
  if (!is_true || StatesParameters(model.json())) return "";
  return "ALiBi, a bias on the attention scores";
}

void RemarkModel(std::string_view model_type, const JsonFields& model,
                 std::vector<Remark>& remarks) {
  const std::string shown = Show(std::string(model_type));
  const auto& facts = WordsOf("remote_code");
  if (const auto fact = facts.find(model_type); fact != facts.end()) {
    AddRemark(
        remarks, RemarkKind::kRemoteCode, "model_type ", shown,
        " has its code in the model's repository, which is not followed here: ", fact->second);
  } else if (!model_type.empty() && FindOfModel(model_type) == nullptr &&
             PositionsInsteadOfRope(model_type, model).empty()) {
    AddRemark(remarks, RemarkKind::kUnknownModelType, "model_type ", shown,
              " is not known, so neither are its pairing and its defaults",
              Hint(model_type, model));
  }
  const std::string& read = ModelTypeOf(model_type).theta_ratio;
  if (!read.empty()) RemarkChatGlm(model, remarks);
  for (const std::string_view key : KeyList("other_code")) {
    const nlohmann::json* const value = model.Find(key);
    if (value == nullptr || !Changes(*value) || key == read) continue;
    if (key == "alibi" && !PositionsInsteadOfRope(model_type, model).empty()) continue;
    AddRemark(remarks, RemarkKind::kRemoteCode, model.PathOf(key), " is not read");
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
