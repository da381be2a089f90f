#include "kernels/config_json_entry.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/model_types.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kParameterKeys[] = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mrope_interleaved",
    "mrope_section",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "rotary_dim",
    "short_factor",
    "truncate",
    "type",
};

// Keys of kParameterKeys that mean nothing else at the top of a config.json, so that one of them
// there makes the file a bare rope_parameters object.
constexpr std::string_view kBareKeys[] = {
    "attention_factor", "beta_fast",   "beta_slow",       "factor",
    "high_freq_factor", "long_factor", "low_freq_factor", "mrope_section",
    "mscale_all_dim",   "rope_type",   "short_factor",
};

// What else is read at the top of a fragment.
constexpr std::string_view kTopKeys[] = {
    "global_head_dim",
    "head_dim",
    "hidden_size",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "n_embd",
    "n_head",
    "n_positions",
    "no_rope_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "qk_rope_head_dim",
    "rope_interleave",
    "rope_local_base_freq",
    "rotary_emb_base",
    "rotary_pct",
    "sliding_window_pattern",
};

// Bases under names that this reader does not know how to give to layers.
constexpr std::string_view kUnreadBases[] = {"global_rope_theta", "local_rope_theta",
                                             "swa_rope_theta"};

template <size_t size>
bool Contains(const std::string_view (&keys)[size], std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

// The first of `reads` that is there.
template <typename T>
absl::StatusOr<std::optional<T>> FirstOf(
    std::initializer_list<absl::StatusOr<std::optional<T>>> reads) {
  for (const absl::StatusOr<std::optional<T>>& read : reads) {
    if (!read.ok() || read->has_value()) return read;
  }
  return std::optional<T>();
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

// Keys that nobody reads, with a bound, because each makes a line of the answer.
void WarnUnknownKeys(const ConfigDocument& document, const JsonFields& parameters,
                     std::vector<std::string>& warnings) {
  // Keys beside the parameters are normal in a whole config.json.
  if (document.bare && (document.model.Has("model_type") || document.model.Has("hidden_size"))) {
    return;
  }
  constexpr int kNamed = 16;
  int unknown = 0;
  // Around the entries of layer types nothing else is read.
  const bool around = document.nested && &parameters.json() == &document.parameters->json();
  for (const auto& [key, value] : parameters.json().items()) {
    if (value.is_null() || (around && value.is_object())) continue;
    if (document.bare && (Contains(kTopKeys, key) || key == "rope_theta")) continue;
    if (!around && Contains(kParameterKeys, key)) continue;
    if (++unknown > kNamed) continue;
    const std::string path =
        parameters.path().empty() ? std::string() : StrCat(parameters.path(), ": ");
    warnings.push_back(
        StrCat(path, "key ", Show(key),
               around ? " beside the layer types has no effect" : " is not known and has no effect",
               key == "attn_factor" ? " (vLLM multiplies with it)" : ""));
  }
  if (unknown > kNamed) warnings.push_back(StrCat(unknown - kNamed, " more keys have no effect"));
}

absl::StatusOr<std::optional<RopeType>> ReadTypeAt(const JsonFields& parameters,
                                                   std::string_view key) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<std::string> name, parameters.String(key));
  if (!name.has_value()) return std::optional<RopeType>();
  const absl::StatusOr<RopeType> type = ParseRopeType(*name);
  if (type.ok()) return std::optional<RopeType>(*type);
  const std::string message(type.status().message());
  return absl::InvalidArgumentError(
      StrCat(parameters.PathOf(key), message.substr(message.find(':'))));
}

absl::StatusOr<RopeType> ReadType(const JsonFields& parameters, bool bare,
                                  std::vector<std::string>& warnings) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<RopeType> type, ReadTypeAt(parameters, "rope_type"));
  if (bare && type.has_value()) return *type;  // `type` may be about something else there
  ROPE_ASSIGN_OR_RETURN(const std::optional<RopeType> old, ReadTypeAt(parameters, "type"));
  if (type.has_value() && old.has_value() && *type != *old) {
    warnings.push_back(StrCat(parameters.PathOf("type"), " ", Name(*old),
                              " is not used: rope_type says ", Name(*type)));
  }
  return type.value_or(old.value_or(RopeType::kDefault));
}

absl::StatusOr<std::optional<int64_t>> ReadHeadDim(const ConfigDocument& document,
                                                   std::string_view layer_type,
                                                   std::vector<std::string>& warnings) {
  const JsonFields& model = document.model;
  const bool full = layer_type == kFullAttention;
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> head_dim,
      FirstOf<int64_t>({model.Integer("qk_rope_head_dim"),
                        full ? model.Integer("global_head_dim") : std::optional<int64_t>(),
                        model.Integer("head_dim")}));
  if (head_dim.has_value()) return head_dim;
  if (const ModelDefaults* defaults = DefaultsOf(document.model_type); defaults != nullptr) {
    warnings.push_back(StrCat("head_dim absent, taken as ", defaults->head_dim,
                              ", as Hugging Face does for ", document.model_type));
    return std::optional<int64_t>(defaults->head_dim);
  }
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> hidden,
                        FirstOf<int64_t>({model.Integer("hidden_size"), model.Integer("n_embd")}));
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> heads,
      FirstOf<int64_t>({model.Integer("num_attention_heads"), model.Integer("n_head")}));
  if (!hidden.has_value() || !heads.has_value()) return std::optional<int64_t>();
  if (*heads < 1) {
    return absl::InvalidArgumentError(
        StrCat(model.PathOf("num_attention_heads"), ": got ", *heads, ", want at least 1"));
  }
  return std::optional<int64_t>(*hidden / *heads);
}

absl::StatusOr<double> ReadTheta(const ConfigDocument& document,
                                 const std::optional<JsonFields>& parameters, bool local,
                                 std::vector<std::string>& warnings) {
  const JsonFields& model = document.model;
  const std::string_view name = local ? "rope_local_base_freq" : "rope_theta";
  const absl::StatusOr<std::optional<double>> nothing = std::optional<double>();
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<double> theta,
      FirstOf<double>({parameters.has_value() && !local ? parameters->Number(name) : nothing,
                       model.Number(name), local ? nothing : model.Number("rotary_emb_base")}));
  if (theta.has_value()) {
    ROPE_ASSIGN_OR_RETURN(const std::optional<double> top, model.Number(name));
    if (top.has_value() && *top != *theta) {
      warnings.push_back(StrCat(model.PathOf(name), " ", *top,
                                " is not used: ", parameters->PathOf(name), " says ", *theta));
    }
    return *theta;
  }
  const ModelDefaults* defaults = DefaultsOf(document.model_type);
  double taken = 10000;
  if (defaults != nullptr) taken = local ? defaults->rope_local_base_freq : defaults->rope_theta;
  warnings.push_back(StrCat(name, " absent, taken as ", static_cast<int64_t>(taken)));
  return taken;
}

absl::StatusOr<std::optional<Mrope>> ReadMrope(const JsonFields& parameters) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> section, parameters.Integers("mrope_section"));
  if (!parameters.Has("mrope_section")) {
    const Json* type = parameters.Find(parameters.Has("rope_type") ? "rope_type" : "type");
    if (type == nullptr || *type != "mrope") return std::optional<Mrope>();
  }
  if (section.size() != 3) {
    return absl::InvalidArgumentError(
        StrCat(parameters.PathOf("mrope_section"), ": got ",
               parameters.Has("mrope_section") ? StrCat(section.size(), " numbers") : "nothing",
               ", want three counts of frequencies (t, h, w)"));
  }
  Mrope mrope;
  std::copy(section.begin(), section.end(), mrope.section.begin());
  ROPE_ASSIGN_OR_RETURN(const std::optional<bool> interleaved,
                        parameters.Bool("mrope_interleaved"));
  if (interleaved.value_or(false)) mrope.layout = Mrope::Layout::kInterleaved;
  return std::optional<Mrope>(mrope);
}

// What only a parameters object holds.
absl::Status ReadScaling(const JsonFields& parameters, bool bare, LayerConfig& entry) {
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(config.rope_type, ReadType(parameters, bare, entry.warnings));
  ROPE_ASSIGN_OR_RETURN(config.factor, parameters.Number("factor"));
  ROPE_ASSIGN_OR_RETURN(config.attention_factor, parameters.Number("attention_factor"));
  ROPE_ASSIGN_OR_RETURN(config.mscale, parameters.Number("mscale"));
  ROPE_ASSIGN_OR_RETURN(config.mscale_all_dim, parameters.Number("mscale_all_dim"));
  ROPE_ASSIGN_OR_RETURN(config.beta_fast, parameters.Number("beta_fast"));
  ROPE_ASSIGN_OR_RETURN(config.beta_slow, parameters.Number("beta_slow"));
  ROPE_ASSIGN_OR_RETURN(config.truncate, parameters.Bool("truncate"));
  ROPE_ASSIGN_OR_RETURN(config.low_freq_factor, parameters.Number("low_freq_factor"));
  ROPE_ASSIGN_OR_RETURN(config.high_freq_factor, parameters.Number("high_freq_factor"));
  ROPE_ASSIGN_OR_RETURN(config.short_factor, parameters.Numbers("short_factor"));
  ROPE_ASSIGN_OR_RETURN(config.long_factor, parameters.Numbers("long_factor"));
  ROPE_ASSIGN_OR_RETURN(config.mrope, ReadMrope(parameters));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Pairing>> ReadPairing(const ConfigDocument& document) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<bool> interleave,
                        document.model.Bool("rope_interleave"));
  if (!interleave.has_value()) return PairingOf(document.model_type);
  return std::optional<Pairing>(*interleave ? Pairing::kInterleaved : Pairing::kHalf);
}

}  // namespace

absl::StatusOr<ConfigDocument> LocateParameters(const Json& file) {
  const JsonFields root(file);
  ROPE_ASSIGN_OR_RETURN(const std::optional<JsonFields> text, root.Object("text_config"));
  ConfigDocument document(text.value_or(root));
  const JsonFields& model = document.model;
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<std::string> model_type,
      FirstOf<std::string>({model.String("model_type"), root.String("model_type")}));
  document.model_type = model_type.value_or("");
  ROPE_ASSIGN_OR_RETURN(document.parameters, FirstOf<JsonFields>({model.Object("rope_parameters"),
                                                                  model.Object("rope_scaling")}));
  if (model.Has("rope_parameters") && model.Has("rope_scaling")) {
    document.warnings.push_back(
        StrCat(model.PathOf("rope_scaling"), " is not used: rope_parameters is there"));
  }
  for (const std::string_view key : {"rope_parameters", "rope_scaling", "rope_theta"}) {
    if (text.has_value() && root.Has(key) && !text->Has(key)) {
      document.warnings.push_back(StrCat(key, " is not used: text_config is read instead"));
    }
  }
  for (const std::string_view key : kUnreadBases) {
    if (model.Has(key)) document.warnings.push_back(StrCat(model.PathOf(key), " is not read"));
  }
  if (!document.parameters.has_value() && IsBare(model)) {
    document.bare = true;
    document.parameters = model;
    document.warnings.push_back("rope parameters are read from the top level of the file");
  }
  document.nested = document.parameters.has_value() && IsNested(document);
  if (document.nested) {
    WarnUnknownKeys(document, *document.parameters, document.warnings);
  }
  return document;
}

absl::StatusOr<LayerConfig> ReadEntry(const ConfigDocument& document,
                                      const std::optional<JsonFields>& parameters,
                                      std::string_view layer_type, bool local) {
  const JsonFields& model = document.model;
  LayerConfig entry;
  entry.layer_type = layer_type;
  entry.warnings = document.warnings;
  RopeConfig& config = entry.config;
  const JsonFields& scaling = parameters.has_value() ? *parameters : model;
  if (parameters.has_value()) {
    ROPE_RETURN_IF_ERROR(ReadScaling(*parameters, document.bare && !document.nested, entry));
    WarnUnknownKeys(document, *parameters, entry.warnings);
  }
  ROPE_ASSIGN_OR_RETURN(config.rope_theta, ReadTheta(document, parameters, local, entry.warnings));
  ROPE_ASSIGN_OR_RETURN(config.head_dim, ReadHeadDim(document, layer_type, entry.warnings));
  ROPE_ASSIGN_OR_RETURN(config.rotary_dim, FirstOf<int64_t>({scaling.Integer("rotary_dim"),
                                                             model.Integer("rotary_dim")}));
  ROPE_ASSIGN_OR_RETURN(
      config.partial_rotary_factor,
      FirstOf<double>({scaling.Number("partial_rotary_factor"),
                       model.Number("partial_rotary_factor"), model.Number("rotary_pct")}));
  ROPE_ASSIGN_OR_RETURN(
      config.max_position_embeddings,
      FirstOf<int64_t>({model.Integer("max_position_embeddings"), model.Integer("n_positions")}));
  ROPE_ASSIGN_OR_RETURN(config.original_max_position_embeddings,
                        FirstOf<int64_t>({model.Integer("original_max_position_embeddings"),
                                          scaling.Integer("original_max_position_embeddings")}));
  ROPE_ASSIGN_OR_RETURN(entry.pairing, ReadPairing(document));
  return entry;
}

}  // namespace rope::kernels
