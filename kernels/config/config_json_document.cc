#include "kernels/config/config_json_document.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/config/rope_config.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kParameterKeys[] = {
    "alpha",
    "attention_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "freq_allocation",
    "high_freq_factor",
    "inv_freq",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mixed_b",
    "mrope_interleaved",
    "mrope_section",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "rotary_dim",
    "rotary_offset",
    "short_factor",
    "short_mscale",
    "truncate",
    "type",
};

// Keys of kParameterKeys that have no other meaning at the top level of a config.json. If the top
// level has one of them, the file is a bare rope_parameters object.
constexpr std::string_view kBareKeys[] = {
    "attention_factor", "attn_factor",    "beta_fast",   "beta_slow",       "factor",
    "high_freq_factor", "inv_freq",       "long_factor", "low_freq_factor", "mixed_b",
    "mrope_section",    "mscale_all_dim", "rope_type",   "short_factor",
};

// Other keys that are read at the top level of a fragment.
constexpr std::string_view kTopKeys[] = {
    "_sliding_window_pattern",
    "architectures",
    "full_attention_interval",
    "global_attn_every_n_layers",
    "global_head_dim",
    "global_rope_theta",
    "head_dim",
    "hidden_size",
    "hybrid_layer_pattern",
    "layer_types",
    "local_rope_theta",
    "max_position_embeddings",
    "model_type",
    "multi_query",
    "n_embd",
    "n_head",
    "n_layer",
    "n_positions",
    "no_rope_layer_interval",
    "no_rope_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_heads",
    "qk_rope_head_dim",
    "rope_interleave",
    "rope_local_base_freq",
    "rotary_emb_base",
    "rotary_pct",
    "sliding_window",
    "sliding_window_pattern",
    "swa_head_dim",
    "swa_rope_theta",
};

// Rotation keys of older model code that this reader does not support.
constexpr std::string_view kUnreadKeys[] = {"rope_pct", "rope_percent", "rope_ratio",
                                            "rotary_emb_fraction", "rotary_percent"};

// Unused keys with an effect elsewhere, and that effect as a note for the warning.
constexpr std::pair<std::string_view, std::string_view> kNotes[] = {
    {"extrapolation_factor", " (vLLM multiplies yarn's ramp by it; the default is 1)"},
    {"llama_4_scaling_beta", " (it scales q by position, in addition to the rotation)"},
};

template <size_t size>
bool Contains(const std::string_view (&keys)[size], std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

std::string_view NoteOn(std::string_view key) {
  for (const auto& [noted, note] : kNotes) {
    if (noted == key) return note;
  }
  return "";
}

bool HasObject(const JsonFields& fields, std::string_view key) {
  const Json* value = fields.Find(key);
  return value != nullptr && value->is_object();
}

bool HasLayerTypes(const JsonFields& fields) {
  return HasObject(fields, kFullAttention) || HasObject(fields, kSlidingAttention);
}

bool IsBare(const JsonFields& model) {
  if (const Json* type = model.Find("type"); type != nullptr && type->is_string()) {
    if (ParseRopeType(type->get_ref<const std::string&>()).ok()) return true;
  }
  return HasLayerTypes(model) || std::any_of(std::begin(kBareKeys), std::end(kBareKeys),
                                             [&](std::string_view key) { return model.Has(key); });
}

bool IsNested(const ConfigDocument& document) {
  const Json& parameters = document.parameters->json();
  if (document.bare) return HasLayerTypes(document.model);
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Json& value) { return value.is_object(); });
}

}  // namespace

bool IsBareParameters(const Json& file) {
  return IsBare(JsonFields(file));
}

absl::StatusOr<ConfigDocument> LocateParameters(const JsonFields& root) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<JsonFields> text, root.Object("text_config"));
  ConfigDocument document(text.value_or(root));
  const JsonFields& model = document.model;
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<std::string> model_type,
      FirstOf<std::string>({model.String("model_type"), root.String("model_type")}));
  document.model_type = model_type.value_or("");
  if (document.model_type.size() > kModelTypeBytesMax) {
    return InvalidField((model.Has("model_type") ? model : root).PathOf("model_type"),
                        Show(document.model_type),
                        StrCat("a name of at most ", kModelTypeBytesMax, " bytes"));
  }
  document.type = &ModelTypeOf(document.model_type);
  ROPE_ASSIGN_OR_RETURN(document.parameters, FirstOf<JsonFields>({model.Object("rope_parameters"),
                                                                  model.Object("rope_scaling")}));
  if (model.Has("rope_parameters") && model.Has("rope_scaling")) {
    document.warnings.push_back(
        StrCat(model.PathOf("rope_scaling"), " is not used: rope_parameters is there"));
  }
  for (const std::string_view key : {"rope_parameters", "rope_scaling", "rope_theta"}) {
    if (text.has_value() && root.Has(key) && !text->Has(key)) {
      document.warnings.push_back(
          StrCat(root.PathOf(key), " is not used: text_config is read instead"));
    }
  }
  for (const std::string_view key : kUnreadKeys) {
    if (model.Has(key)) document.warnings.push_back(StrCat(model.PathOf(key), " is not read"));
  }
  if (!document.parameters.has_value() && IsBare(model)) {
    document.bare = true;
    document.parameters = model;
    document.warnings.push_back(
        StrCat("rope parameters are read from the top level of ",
               model.path().empty() ? std::string("the file") : model.path()));
  }
  document.nested = document.parameters.has_value() && IsNested(document);
  if (document.nested) {
    WarnUnknownKeys(document, *document.parameters, document.warnings);
  }
  return document;
}

void WarnUnknownKeys(const ConfigDocument& document, const JsonFields& parameters,
                     std::vector<std::string>& warnings) {
  // A complete config.json has many other keys at the top level, so they are no reason to warn.
  if (document.bare && (document.model.Has("model_type") || document.model.Has("hidden_size"))) {
    return;
  }
  constexpr int kNamed = 16;
  int unknown = 0;
  // At the level of the layer types only their objects are read; every other key is unused.
  const bool around = document.nested && &parameters.json() == &document.parameters->json();
  for (const auto& [key, value] : parameters.json().items()) {
    if (value.is_null() || (around && (value.is_object() || key == "truncate"))) continue;
    if (document.bare && (Contains(kTopKeys, key) || key == "rope_theta")) continue;
    if (!around && Contains(kParameterKeys, key)) continue;
    if (++unknown > kNamed) continue;
    const std::string path =
        parameters.path().empty() ? std::string() : StrCat(parameters.path(), ": ");
    warnings.push_back(StrCat(
        path, "key ", Show(key),
        around ? " next to the layer types has no effect" : " is not known and has no effect",
        NoteOn(key)));
  }
  if (unknown > kNamed) warnings.push_back(StrCat(unknown - kNamed, " more keys have no effect"));
}

}  // namespace rope::kernels
