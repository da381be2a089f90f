#include "kernels/config/placement.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/model_types.h"
#include "kernels/config/rope_config.h"
#include "kernels/error.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr char kParameters[] = "rope_parameters";
constexpr char kScaling[] = "rope_scaling";
constexpr const char* kTheta = "rope_theta";
constexpr char kOriginalLength[] = "original_max_position_embeddings";

// Whether `config` has such an object, neither null nor empty.
bool HasBlock(const Json& config, std::string_view key) {
  return HasValue(config, key) && !config.at(key).empty();
}

Json* Find(Json& object, std::string_view key) {
  return HasValue(object, key) ? &object.at(key) : nullptr;
}

// The type of each layer that the file, or its class, lists.
std::vector<std::string> LayerTypesOf(const ModelType& type, Json& model) {
  std::vector<std::string> types;
  const Json* const count = Find(model, "num_hidden_layers");
  const Json* const list = Find(model, "layer_types");
  const size_t layers = count != nullptr && count->is_number_unsigned() ? count->get<size_t>() : 0;
  if (list != nullptr && list->is_array()) {
    for (const Json& each : *list) {
      if (types.size() < std::max(layers, size_t{1})) types.push_back(each.is_string() ? each : "");
    }
    return types;
  }
  constexpr size_t kLayersMax = 4096;
  for (size_t i = 0; i < std::min(layers, kLayersMax); ++i) {
    types.push_back(type.layers.empty()
                        ? "full_attention"
                        : type.layers(static_cast<int64_t>(i), static_cast<int64_t>(layers)));
  }
  return types;
}

// Places the parameters of one model.
class Placer {
 public:
  Placer(const ModelType& type, std::string_view name, std::string_view path, Json& model)
      : type_(type), name_(name), path_(path), model_(model) {}

  Completed Place() {
    DropEmptyScaling();
    if (type_.attention_and_mlp) KeepAttention();
    if (!type_.positions.empty()) return std::move(placed_);  // nothing is read
    if (type_.of_transformers) TakeUnread();
    if (type_.blocks == BlockRule::kByLayer) {
      SpreadLists();
    } else if (type_.blocks == BlockRule::kMainAndCompress) {
      SpreadMain();
    } else {
      ChooseBlock();
    }
    if (type_.of_transformers) CheckBlock();
    return std::move(placed_);
  }

 private:
  std::string PathOf(std::string_view key) const {
    return path_.empty() ? std::string(key) : StrCat(path_, ".", key);
  }
  template <typename... Parts>
  void Say(RemarkKind kind, std::string_view key, const Parts&... parts) {
    placed_.remarks.push_back({kind, StrCat(PathOf(key), parts...), PathOf(key)});
  }
  // What the class makes of a place where its code fails.
  template <typename... Parts>
  void Fail(std::string_view key, const Parts&... parts) {
    Say(RemarkKind::kUnusableParameters, key, parts..., ": Hugging Face's ", name_, " fails");
  }

  // To Python, {} and [] are no block. As attributes of the other classes they replace one.
  void DropEmptyScaling() {
    const auto found = model_.find(kScaling);
    if (found == model_.end() || HasBlock(model_, kScaling)) return;
    if (!found->is_null() && !found->empty()) return;  // a value of a wrong type
    if (type_.blocks == BlockRule::kAsIs ||
        (type_.blocks == BlockRule::kParametersOnly && found->is_array())) {
      Fail(kScaling, " has no parameters");
    }
    model_.erase(found);
  }

  // Dory's files list attention and mlp as two layers; the code's caches count one.
  void KeepAttention() {
    Json* const types = Find(model_, "layer_types");
    Json* const count = Find(model_, "num_hidden_layers");
    if (types == nullptr || !types->is_array() || !absl::c_linear_search(*types, Json("mlp"))) {
      return;
    }
    Json kept = Json::array();
    for (size_t i = 0; i < types->size(); i += 2) kept.push_back((*types)[i]);
    *types = std::move(kept);
    if (count != nullptr && count->is_number_integer()) *count = count->get<int64_t>() / 2;
  }

  void TakeUnread() {
    for (const std::string& key : KeyList("bases")) {
      if (absl::c_linear_search(type_.reads, key) || Find(model_, key) == nullptr) continue;
      placed_.unread.push_back({key, std::move(model_[key])});
      model_.erase(key);
    }
    // The scale of attention has a use for this one.
    const Json* const length = Find(model_, kOriginalLength);
    if (length != nullptr && !type_.defaults.contains(kOriginalLength)) {
      placed_.unread.push_back({kOriginalLength, *length});
    }
  }

  void ChooseBlock() {
    Json* const parameters = Find(model_, kParameters);
    const bool nested = parameters != nullptr && HasObjects(*parameters);
    if (merges_ && parameters != nullptr && !nested && HasBlock(model_, kScaling)) {
      Fail(kParameters, " has no objects by layer type, which the model reads");
    }
    if (merges_ && HasBlock(model_, kScaling) && model_[kScaling].is_object()) {
      KeepType(model_[kScaling]);
      const bool joins = parameters == nullptr || parameters->is_object();
      if (nested || (joins && type_.blocks == BlockRule::kOnBoth)) Merge();
    }
    if (merges_ && Find(model_, kParameters) != nullptr && HasObjects(model_[kParameters]))
      FillBases();
    if (merges_ && !nested && !type_.defaults.contains("rope_local_base_freq")) CheckOneBase();
    if (!HasBlock(model_, kScaling)) return;
    if (type_.blocks == BlockRule::kParametersOnly) {
      Say(RemarkKind::kOverriddenValue, kScaling, " is not used: the config class of ", name_,
          " reads rope_parameters alone");
      model_.erase(kScaling);
      return;
    }
    if (HasBlock(model_, kParameters) && !merges_) {
      placed_.both_blocks = true;
      Say(RemarkKind::kOverriddenValue, kScaling, " replaces ", kParameters, LostBase(*parameters),
          ": so do Hugging Face, vLLM and SGLang, but llama.cpp reads ", kParameters,
          "; state one of them");
    }
    model_.erase(kParameters);
  }

  // OLMo 3's class gives rope_theta to full attention, and its default to sliding attention.
  void CheckOneBase() {
    const Json usual = type_.defaults.value(kTheta, Json(10000.0));
    for (const Json* const from : {&model_, Find(model_, kScaling)}) {
      if (from == nullptr || !HasValue(*from, kTheta) || from->at(kTheta) == usual) continue;
      Say(RemarkKind::kOverriddenValue, kTheta, " ", Show(from->at(kTheta)),
          " is that of full attention alone in the config class of ", name_,
          ": sliding attention has ", Show(usual));
    }
  }

  // ", whose rope_theta 1000000 is lost".
  std::string LostBase(Json& parameters) {
    if (!parameters.is_object()) return "";
    const Json* const base = Find(parameters, kTheta);
    if (base == nullptr || Find(model_[kScaling], kTheta) != nullptr) return "";
    return StrCat(", whose rope_theta ", Show(*base), " is lost");
  }

  // What joins has the rope_type default already, so the old name `type` says nothing.
  void KeepType(Json& scaling) {
    if (HasValue(scaling, "rope_type") || !HasValue(scaling, "type")) return;
    Say(RemarkKind::kOverriddenValue, kScaling, ".type ", Show(scaling["type"]),
        " is not used: the config class of ", name_, " reads rope_type");
    scaling["rope_type"] = "default";
  }

  // Gemma 3, OLMo 3: rope_scaling joins the parameters of full attention; ModernBERT: all.
  void Merge() {
    const Json scaling = std::move(model_[kScaling]);
    model_.erase(kScaling);
    Json& parameters = model_[kParameters];
    if (HasBlock(model_, kParameters)) {
      Say(RemarkKind::kOverriddenValue, kScaling, " changes ", kParameters,
          ": the config class of ", name_, " joins them");
    }
    for (const std::string_view label : {kFullAttention, kSlidingAttention}) {
      Json& block = parameters[label];
      if (block.is_null()) block = Json::object();
      const bool joins = label == kFullAttention || type_.blocks == BlockRule::kOnBoth;
      if (joins && block.is_object()) block.update(scaling);
    }
  }

  // Each layer type has a base of its own beside the block.
  void FillBases() {
    for (const std::string_view label : {kFullAttention, kSlidingAttention}) {
      Json& block = model_[kParameters][label];
      if (block.is_null()) block = {{"rope_type", "default"}};
      if (!block.is_object() || block.contains(kTheta)) continue;
      const bool full = label == kFullAttention;
      const char* const usual = full ? kTheta : "rope_local_base_freq";
      for (const char* const key :
           full ? std::array{kTheta, "global_rope_theta"} : std::array{usual, "local_rope_theta"}) {
        if (HasValue(model_, key)) block[kTheta] = model_[key];
      }
      if (!block.contains(kTheta)) block[kTheta] = type_.defaults.value(usual, Json(10000.0));
    }
  }

  // Step 3.5 and Ultrabert state the base and the fraction of each layer. A scaling is of full
  // attention.
  void SpreadLists() {
    const std::vector<std::string> types = LayerTypesOf(type_, model_);
    Json* const stated = Find(model_, kParameters);
    const bool complete = stated != nullptr && absl::c_all_of(types, [&](const std::string& label) {
                            const auto found = stated->find(label);
                            return found != stated->end() && found->is_object();
                          });
    Json* const bases = Find(model_, kTheta);
    if (complete || types.empty()) return;
    if (stated == nullptr && bases == nullptr && !HasBlock(model_, kScaling)) return;
    if (stated != nullptr && !stated->empty()) {
      Say(RemarkKind::kOverriddenValue, kParameters, " is not used: it lacks a layer type of ",
          name_);
    }
    Json nested = Json::object();
    const auto at = [](const Json* list, size_t i) {
      if (list == nullptr) return Json();
      return list->is_array() ? (i < list->size() ? (*list)[i] : Json()) : *list;
    };
    for (size_t i = 0; i < types.size(); ++i) {
      if (nested.contains(types[i])) continue;
      Json& block = nested[types[i]] = {{"rope_type", "default"}};
      const Json fraction = at(Find(model_, "partial_rotary_factors"), i);
      if (!fraction.is_null()) block["partial_rotary_factor"] = fraction;
      const Json base = at(bases, i);
      block[kTheta] = base.is_null() ? Json(10000.0) : base;
    }
    Json* const full = Find(nested, "full_attention");
    if (full != nullptr && HasBlock(model_, kScaling) && model_[kScaling].is_object()) {
      full->update(model_[kScaling]);
    }
    model_.erase(kScaling);
    model_.erase(kTheta);
    model_[kParameters] = std::move(nested);
  }

  // DeepSeek V4: the scaling and a base of their own for the layers that compress.
  void SpreadMain() {
    if (const Json* const ratios = Find(model_, "compress_ratios");
        ratios != nullptr && ratios->is_array() && Find(model_, "layer_types") == nullptr) {
      Json types = Json::array();
      for (const Json& ratio : *ratios) {
        types.push_back(ratio == 0   ? "sliding_attention"
                        : ratio == 4 ? "compressed_sparse_attention"
                                     : "heavily_compressed_attention");
      }
      model_["layer_types"] = std::move(types);
    }
    ChooseBlock();
    if (model_.contains(kTheta) && model_[kTheta].is_null()) Fail(kTheta, " is null");
    const char* const key = HasBlock(model_, kScaling) ? kScaling : kParameters;
    Json block = Find(model_, key) == nullptr ? Json::object() : model_[key];
    const Json* const own = Find(model_, "compress_rope_theta");
    const Json* const base = Find(model_, kTheta);
    if (!block.is_object() || (block.contains("main") && block.contains("compress"))) return;
    Json compress = std::move(block);
    const auto type = compress.find("rope_type");
    if (type == compress.end()) compress["rope_type"] = compress.value("type", Json("default"));
    compress[kTheta] = own == nullptr ? Json(160000.0) : *own;
    if (compress["rope_type"] == "yarn" && !compress.contains("attention_factor")) {
      compress["attention_factor"] = 1.0;
    }
    const Json main = {{"rope_type", "default"}, {kTheta, base == nullptr ? Json(10000.0) : *base}};
    model_.erase(kScaling);
    model_.erase(kTheta);
    model_[kParameters] = {{"main", main}, {"compress", std::move(compress)}};
  }

  // A block by layer type where the class has one for all layers, and the other way round.
  void CheckShape(const char* key, Json& block) {
    if (!HasObjects(block)) {
      if (!type_.by_layer_type) return;
      if (merges_ && key == kParameters) {
        Say(RemarkKind::kOverriddenValue, key, " is not used: ", name_,
            " reads objects by layer type in it");
        model_.erase(key);
      } else if (!merges_) {
        Fail(key, " has no objects by layer type, which the model reads");
      }
    } else if (type_.by_layer_type) {
      CheckLabels(key, block);
    } else if (!type_.layers.empty() || HasValue(model_, "layer_types")) {
      Fail(key, " has objects by layer type, and the model has one for all layers");
    } else {
      Say(RemarkKind::kOverriddenValue, key, ": its objects by layer type are not used: ", name_,
          " has one for all layers");
      for (auto entry = block.begin(); entry != block.end();) {
        entry = entry->is_object() ? block.erase(entry) : std::next(entry);
      }
    }
  }

  // The class has nothing for a layer type that its own block has and this one lacks.
  void CheckLabels(const char* key, Json& block) {
    const Json usual = type_.defaults.value(kParameters, Json::object());
    for (const auto& [label, own] : usual.items()) {
      if (!own.is_object()) continue;
      if (type_.blocks == BlockRule::kFilled) {
        Json filled = own;
        const Json* const stated = Find(block, label);
        if (stated != nullptr && stated->is_object()) {
          filled.update(*stated);
        } else if (stated != nullptr) {
          Fail(key, ".", label, " is no object");
        }
        block[label] = std::move(filled);
      } else if (!block.contains(label)) {
        Fail(key, " has no ", label);
      }
    }
  }

  // rope_type, else type, of one object.
  void CheckType(const char* key, const Json& block) {
    const Json type = block.value("rope_type", block.value("type", Json("default")));
    if (!type.is_string() || HasObjects(block)) return;
    const auto& name = type.get_ref<const std::string&>();
    const bool usual = name == "axial" || (ParseRopeType(name).ok() && name != "ntk" &&
                                           name != "mrope" && name != "ernie_3d");
    const bool known =
        type_.rope_types.empty() ? usual : absl::c_linear_search(type_.rope_types, name);
    // su has a reading (CheckOldName).
    if (!known && name != "su") Fail(key, " has rope_type ", name, ", which it lacks");
    for (const auto& [where, needed] : type_.needs) {
      if (where == key && !HasValue(block, needed)) Fail(key, " has no ", needed);
    }
  }

  // A null counts as stated: setdefault keeps it.
  void CheckBlock() {
    const auto is_null = [](const Json& object, const char* key) {
      const auto found = object.find(key);
      return found != object.end() && found->is_null();
    };
    const char* const key = HasBlock(model_, kScaling) ? kScaling : kParameters;
    Json* const block = Find(model_, key);
    bool has_base = false;
    if (type_.blocks == BlockRule::kParametersOnly && is_null(model_, kParameters)) {
      Fail(kParameters, " is null");
    }
    if (block != nullptr && block->is_object()) {
      has_base = block->contains(kTheta) || HasObjects(*block);
      for (const char* const inner : {kTheta, "rope_type"}) {
        if (is_null(*block, inner)) Fail(StrCat(key, ".", inner), " is null");
      }
      if (type_.blocks == BlockRule::kParametersOnly && !has_base) Fail(key, " has no rope_theta");
      CheckType(key, *block);
      CheckShape(key, *block);
    }
    for (const char* const base : {kTheta, "global_rope_theta", "rotary_emb_base"}) {
      if (!has_base && is_null(model_, base) && absl::c_linear_search(type_.reads, base)) {
        Fail(base, " is null");
      }
    }
  }

  const ModelType& type_;
  const bool merges_ = type_.blocks == BlockRule::kOnFull || type_.blocks == BlockRule::kOnBoth;
  std::string_view name_;
  std::string_view path_;
  Json& model_;
  Completed placed_;
};

}  // namespace

Completed CompleteModel(Json& file, std::string_view path) {
  const auto text = file.find("text_config");
  const bool nested = text != file.end() && text->is_object();
  Json& model = nested ? *text : file;
  const std::string name(OwnTypeOf(model).empty() ? OwnTypeOf(file) : OwnTypeOf(model));
  const ModelType& type = ModelTypeOf(name);
  for (const auto& [key, spelt] : type.names) {
    if (HasValue(model, key) || !HasValue(model, spelt)) continue;
    // A list or an object is an error later on. It is not copied, because a copy recurses.
    Json& value = model[spelt];
    model[key] = value.is_structured() ? std::move(value) : value;
  }
  const std::string within =
      StrCat(path, nested && !path.empty() ? "." : "", nested ? "text_config" : "");
  Completed completed = Placer(type, name, within, model).Place();
  const bool complete = !path.empty() || nested || HasValue(file, "architectures") ||
                        HasValue(file, "transformers_version");
  const bool has_parameters =
      type.of_transformers ? HasValue(model, "rope_parameters") || HasBlock(model, "rope_scaling")
                           : StatesParameters(model);
  for (const auto& [key, value] : type.defaults.items()) {
    if (HasValue(model, key) || absl::c_linear_search(KeyList("read_by_entry"), key)) continue;
    if (key == "rope_parameters" && has_parameters) continue;
    if (!complete && absl::c_linear_search(KeyList("sizes"), key)) continue;
    model[key] = value;
    if (!absl::c_linear_search(KeyList("noted"), key)) continue;
    if (key == "rope_parameters" && !completed.unread.empty()) continue;  // stated by other keys
    AddRemark(completed.remarks, RemarkKind::kDefaultAssumed, key, " absent, taken as ",
              Show(value), ", as Hugging Face does for ", name);
  }
  return completed;
}

namespace {

// Null and 0 count as absent, as in Python.
bool Given(const Json& file, std::string_view key) {
  return HasValue(file, key) && file.at(key) != 0;
}

void Move(Json& from, const std::string& key, Json& to, const std::string& name) {
  const auto found = from.find(key);
  if (found == from.end()) return;
  Json value = std::move(*found);
  from.erase(found);
  if (!Given(to, name)) to[name] = std::move(value);
}

// Without apply_scale the magnitude is 1 everywhere. Else it is the attention factor, or with
// latent attention the scale of the softmax.
void ReadYarn(Json& file, bool latent) {
  const auto found = file.find("yarn");
  if (found == file.end() || found->is_null()) return;
  Json yarn = std::move(*found);
  file.erase(found);
  if (!yarn.is_object()) {  // the reader refuses it
    file["rope_parameters"] = std::move(yarn);
    return;
  }
  Json parameters = {{"rope_type", "yarn"}};
  for (const auto& [key, name] : WordsOf("mistral_yarn")) Move(yarn, key, parameters, name);
  Move(file, "rope_theta", parameters, "rope_theta");
  if (parameters.value("apply_yarn_scaling", Json(true)) == false) {
    parameters["attention_factor"] = 1.0;
  }
  if (latent) {
    parameters["mscale"] = 1.0;
    parameters["mscale_all_dim"] = 1.0;
  }
  for (auto& [key, value] : yarn.items()) {  // the reader names what it does not know
    if (!parameters.contains(key)) parameters[key] = std::move(value);
  }
  file["rope_parameters"] = std::move(parameters);
}

// DistilBERT's config.json has the keys, and a model_type. Meta's params.json has multiple_of.
bool IsParams(const Json& file) {
  const auto type = file.find("model_type");
  if (type != file.end() && !type->is_null() && *type != "transformer") return false;
  for (const char* key : {"dim", "n_layers", "n_heads", "hidden_dim"}) {
    if (!Given(file, key)) return false;
  }
  return !Given(file, "hidden_size") && !file.contains("multiple_of");
}

// The format of a file that is no config.json of transformers; empty: none of those known.
std::string_view ForeignFormat(const Json& file) {
  if (Given(file, "model_type")) return "";
  if (file.contains("pretrained_config")) return "TensorRT-LLM's config.json of an engine";
  if (file.contains("multiple_of") && Given(file, "dim")) return "Meta's params.json";
  for (const char* key : {"rotary_percent", "use_rotary_position_embeddings", "kv_channels",
                          "encoder_num_layers", "tensor_model_parallel_size"}) {
    if (file.contains(key)) return "Megatron's arguments";
  }
  return "";
}

bool ReadTensorRt(Json& file) {
  const auto positions = file.find("position_embedding_type");
  const auto name = file.find("architecture");
  if (Given(file, "model_type") || name == file.end() || positions == file.end()) return false;
  for (const auto& [key, spelt] : WordsOf("tensorrt")) Move(file, key, file, spelt);
  file["architectures"] = {*name};
  if (*positions == "rope_gptj") file["rope_interleave"] = true;
  if (*positions == "rope_gpt_neox" || *positions == "long_rope") file["rope_interleave"] = false;
  file.erase(positions);
  return true;
}

std::vector<Remark> ReadMistralParams(Json& file) {
  if (!IsParams(file)) return {};
  const bool latent = Given(file, "qk_nope_head_dim");
  for (const auto& [key, name] : WordsOf("mistral_sizes")) Move(file, key, file, name);
  const bool mixture = Given(file, "moe");
  const std::string_view type = latent ? "deepseek_v3" : mixture ? "mixtral" : "mistral";
  file["model_type"] = type;
  file["architectures"] = {latent    ? "MistralLarge3ForCausalLM"
                           : mixture ? "MixtralForCausalLM"
                                     : "MistralForCausalLM"};
  file["rope_interleave"] = true;
  if (latent) file.erase("head_dim");  // qk_rope_head_dim has the rotated slice
  ReadYarn(file, latent);
  return {{RemarkKind::kDefaultAssumed,
           std::string("the file is Mistral's params.json, read as the config.json of ") +
               std::string(type) + " with interleaved pairs",
           "model_type"}};
}

}  // namespace

absl::StatusOr<std::vector<Remark>> ReadForeignFormat(Json& file) {
  if (ReadTensorRt(file)) {
    return std::vector<Remark>{{RemarkKind::kDefaultAssumed,
                                "the file is TensorRT-LLM's config.json of a checkpoint, read as "
                                "the config.json that says the same",
                                "architecture"}};
  }
  if (const std::string_view format = ForeignFormat(file); !format.empty()) {
    return InvalidField("config", format, "a config.json of transformers, or of Mistral");
  }
  return ReadMistralParams(file);
}

}  // namespace rope::kernels
