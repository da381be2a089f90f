#include "kernels/config/model_defaults.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "kernels/config/json_fields.h"
#include "kernels/config/model_types.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

// A file with one of these keys states its rope parameters, so a default rope_parameters object
// does not apply.
constexpr std::string_view kParameterKeys[] = {
    "global_rope_theta", "local_rope_theta", "rope_local_base_freq", "rope_parameters",
    "rope_scaling",      "rope_theta",       "rotary_emb_base",      "swa_rope_theta"};

// Sizes of the model.
constexpr std::string_view kSizeKeys[] = {"attention_head_dim",
                                          "d_model",
                                          "embed_dim",
                                          "head_dim",
                                          "hidden_size",
                                          "kv_channels",
                                          "max_position_embeddings",
                                          "num_attention_heads",
                                          "num_heads",
                                          "num_key_value_heads",
                                          "original_max_position_embeddings",
                                          "qk_nope_head_dim",
                                          "qk_rope_head_dim"};

// Defaults that have their place in the order of lookups of config_json_entry.cc.
constexpr std::string_view kReadByEntry[] = {"partial_rotary_factor", "rope_local_base_freq",
                                             "rope_theta", "rotary_dim"};

// Defaults that deserve a note where a file relies on them.
constexpr std::string_view kNotedKeys[] = {"head_dim", "max_position_embeddings",
                                           "rope_parameters"};

template <size_t size>
bool Contains(const std::string_view (&keys)[size], std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

bool Has(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

std::string_view TypeOf(const Json& object) {
  const auto found = object.find("model_type");
  if (found == object.end() || !found->is_string()) return "";
  return found->get_ref<const std::string&>();
}

}  // namespace

bool StatesParameters(const Json& config) {
  return std::any_of(std::begin(kParameterKeys), std::end(kParameterKeys),
                     [&](std::string_view key) { return Has(config, key); });
}

std::vector<Remark> CompleteModel(Json& file, bool is_sub_config) {
  std::vector<Remark> remarks;
  const auto text = file.find("text_config");
  const bool nested = text != file.end() && text->is_object();
  Json& model = nested ? *text : file;
  const std::string name(TypeOf(model).empty() ? TypeOf(file) : TypeOf(model));
  const ModelType& type = ModelTypeOf(name);
  for (const auto& [key, spelt] : type.names) {
    if (Has(model, key) || !Has(model, spelt)) continue;
    // A list or an object is an error later on. It is not copied, because a copy recurses.
    Json& value = model[spelt];
    model[key] = value.is_structured() ? std::move(value) : value;
  }
  const bool complete =
      is_sub_config || nested || Has(file, "architectures") || Has(file, "transformers_version");
  const bool states_parameters = StatesParameters(model);
  for (const auto& [key, value] : type.defaults.items()) {
    if (Has(model, key) || Contains(kReadByEntry, key)) continue;
    if (key == "rope_parameters" && states_parameters) continue;
    if (!complete && Contains(kSizeKeys, key)) continue;
    model[key] = value;
    if (!Contains(kNotedKeys, key)) continue;
    remarks.push_back({RemarkKind::kDefaultAssumed, StrCat(key, " absent, taken as ", Show(value),
                                                           ", as Hugging Face does for ", name)});
  }
  return remarks;
}

}  // namespace rope::kernels
