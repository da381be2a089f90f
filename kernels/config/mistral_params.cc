#include "kernels/config/mistral_params.h"

#include <string>
#include <string_view>
#include <utility>

#include "kernels/config/model_types.h"
#include "kernels/error.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

// Null and 0 count as absent, as in Python.
bool Given(const Json& file, const std::string& key) {
  const auto found = file.find(key);
  return found != file.end() && !found->is_null() && *found != 0;
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
