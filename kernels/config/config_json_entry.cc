#include "kernels/config/config_json_entry.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/config/model_types.h"
#include "kernels/config/rope_formulas.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

// Every value has one lookup order: the parameters object, then the top level of the model (with
// its older key names), then the default of the model_type, then a general default. An assumed
// default adds a warning, because the file does not show it.

// The base of the sliding layers, as Gemma 3, ModernBERT and MiMo v2 name it.
constexpr std::string_view kLocalBases[] = {"rope_local_base_freq", "local_rope_theta",
                                            "swa_rope_theta"};

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
  if (bare && type.has_value()) return *type;  // a bare file may use `type` for something else
  ROPE_ASSIGN_OR_RETURN(const std::optional<RopeType> old, ReadTypeAt(parameters, "type"));
  if (type.has_value() && old.has_value() && *type != *old) {
    warnings.push_back(StrCat(parameters.PathOf("type"), " ", Name(*old),
                              " is not used: rope_type says ", Name(*type)));
  }
  return type.value_or(old.value_or(RopeType::kDefault));
}

// Returns the default that the model_type implies for the absent `key`, with a warning.
template <typename T>
std::optional<T> TakeDefault(const ConfigDocument& document, std::string_view key,
                             const std::optional<T>& value, std::vector<std::string>& warnings) {
  if (value.has_value()) {
    warnings.push_back(StrCat(key, " absent, taken as ", *value, ", as Hugging Face does for ",
                              document.model_type));
  }
  return value;
}

// The first of: qk_rope_head_dim (multi-head latent attention), the layer type's own key, head_dim,
// the model_type's default, hidden_size / num_attention_heads. Unset if none is there.
absl::StatusOr<std::optional<int64_t>> ReadHeadDim(const ConfigDocument& document,
                                                   std::string_view layer_type,
                                                   std::vector<std::string>& warnings) {
  const JsonFields& model = document.model;
  const std::optional<int64_t> nothing;
  const bool full = layer_type == kFullAttention;
  const bool sliding = layer_type == kSlidingAttention;
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> head_dim,
      FirstOf<int64_t>(
          {model.Integer("qk_rope_head_dim"), full ? model.Integer("global_head_dim") : nothing,
           sliding ? model.Integer("swa_head_dim") : nothing, model.Integer("head_dim")}));
  if (head_dim.has_value()) return head_dim;
  const std::optional<int64_t>& usual = DefaultsOf(document.model_type).head_dim;
  if (usual.has_value()) return TakeDefault(document, "head_dim", usual, warnings);
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

absl::StatusOr<double> ReadLocalTheta(const ConfigDocument& document,
                                      std::vector<std::string>& warnings) {
  for (const std::string_view key : kLocalBases) {
    ROPE_ASSIGN_OR_RETURN(const std::optional<double> theta, document.model.Number(key));
    if (theta.has_value()) return *theta;
  }
  const double taken = DefaultsOf(document.model_type).local_base.value_or(10000);
  warnings.push_back(StrCat(kLocalBases[0], " absent, taken as ", static_cast<int64_t>(taken)));
  return taken;
}

// rope_theta of the parameters, else of the top level. A different value at the top level is warned
// of and not used.
absl::StatusOr<double> ReadTheta(const ConfigDocument& document,
                                 const std::optional<JsonFields>& parameters,
                                 std::vector<std::string>& warnings) {
  const JsonFields& model = document.model;
  std::optional<double> theta;
  if (parameters.has_value()) {
    ROPE_ASSIGN_OR_RETURN(theta, parameters->Number("rope_theta"));
  }
  ROPE_ASSIGN_OR_RETURN(
      const std::optional<double> top,
      FirstOf<double>({model.Number("rope_theta"), model.Number("global_rope_theta"),
                       model.Number("rotary_emb_base")}));
  if (theta.has_value() && top.has_value() && *top != *theta) {
    warnings.push_back(StrCat(model.PathOf("rope_theta"), " ", *top, " is not used: ",
                              parameters->PathOf("rope_theta"), " says ", *theta));
  }
  if (theta.has_value()) return *theta;
  if (top.has_value()) return *top;
  const double taken = DefaultsOf(document.model_type).rope_theta.value_or(10000);
  warnings.push_back(StrCat("rope_theta absent, taken as ", static_cast<int64_t>(taken)));
  return taken;
}

absl::Status ReadFraction(const ConfigDocument& document, const JsonFields& scaling,
                          LayerConfig& entry) {
  const JsonFields& model = document.model;
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(config.rotary_dim, FirstOf<int64_t>({scaling.Integer("rotary_dim"),
                                                             model.Integer("rotary_dim")}));
  ROPE_ASSIGN_OR_RETURN(
      config.partial_rotary_factor,
      FirstOf<double>({scaling.Number("partial_rotary_factor"),
                       model.Number("partial_rotary_factor"), model.Number("rotary_pct")}));
  if (!config.rotary_dim.has_value() && !config.partial_rotary_factor.has_value()) {
    config.partial_rotary_factor =
        TakeDefault(document, "partial_rotary_factor",
                    DefaultsOf(document.model_type).partial_rotary_factor, entry.warnings);
  }
  return absl::OkStatus();
}

absl::Status ReadLengths(const ConfigDocument& document, const JsonFields& scaling,
                         LayerConfig& entry) {
  const JsonFields& model = document.model;
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(
      config.max_position_embeddings,
      FirstOf<int64_t>({model.Integer("max_position_embeddings"), model.Integer("n_positions")}));
  if (!config.max_position_embeddings.has_value()) {
    config.max_position_embeddings =
        TakeDefault(document, "max_position_embeddings",
                    DefaultsOf(document.model_type).max_position_embeddings, entry.warnings);
  }
  ROPE_ASSIGN_OR_RETURN(config.original_max_position_embeddings,
                        FirstOf<int64_t>({model.Integer("original_max_position_embeddings"),
                                          scaling.Integer("original_max_position_embeddings")}));
  return absl::OkStatus();
}

// Ernie 4.5 VL: h and w alternate, then t. Its files give the count of t as freq_allocation
// (Hugging Face), or all three counts in the order h, w, t (vLLM).
absl::StatusOr<std::optional<Mrope>> ReadErnieMrope(const JsonFields& parameters,
                                                    const std::vector<int64_t>& section,
                                                    std::optional<int64_t> rotary_dim) {
  Mrope mrope{.layout = Mrope::Layout::kHwInterleaved};
  if (section.size() == 3) {
    mrope.section = {section[2], section[0], section[1]};
    return std::optional<Mrope>(mrope);
  }
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> time, parameters.Integer("freq_allocation"));
  if (!section.empty() || !time.has_value() || !rotary_dim.has_value()) {
    return absl::InvalidArgumentError(
        StrCat(parameters.PathOf("freq_allocation"), ": got ",
               time.has_value() ? StrCat(*time, " without a head_dim") : "nothing",
               ", want the count of t, or mrope_section with three counts (h, w, t)"));
  }
  const int64_t rest = *rotary_dim / 2 - *time;
  mrope.section = {*time, rest / 2, rest - rest / 2};
  return std::optional<Mrope>(mrope);
}

// Returns nothing for a config with one axis. Ernie files are recognised by the type ernie_3d or by
// the model_type.
absl::StatusOr<std::optional<Mrope>> ReadMrope(const ConfigDocument& document,
                                               const JsonFields& parameters,
                                               std::optional<int64_t> rotary_dim) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> section, parameters.Integers("mrope_section"));
  const Json* const type = parameters.Find(parameters.Has("rope_type") ? "rope_type" : "type");
  const auto is_type = [&](std::string_view name) { return type != nullptr && *type == name; };
  const bool has_counts = parameters.Has("mrope_section") || parameters.Has("freq_allocation");
  if (is_type("ernie_3d") || (has_counts && DefaultsOf(document.model_type).mrope_hw_interleaved)) {
    return ReadErnieMrope(parameters, section, rotary_dim);
  }
  if (!parameters.Has("mrope_section") && !is_type("mrope")) return std::optional<Mrope>();
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

// Reads the fields that occur in a parameters object only.
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
  ROPE_ASSIGN_OR_RETURN(config.attn_factor, parameters.Number("attn_factor"));
  ROPE_ASSIGN_OR_RETURN(config.alpha, parameters.Number("alpha"));
  ROPE_ASSIGN_OR_RETURN(config.mixed_b, parameters.Number("mixed_b"));
  ROPE_ASSIGN_OR_RETURN(config.inv_freq, parameters.Numbers("inv_freq"));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Pairing>> ReadPairing(const ConfigDocument& document) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<bool> interleave,
                        document.model.Bool("rope_interleave"));
  if (!interleave.has_value()) return PairingOf(document.model_type);
  return std::optional<Pairing>(*interleave ? Pairing::kInterleaved : Pairing::kHalf);
}

}  // namespace

bool HasLocalBase(const ConfigDocument& document) {
  return DefaultsOf(document.model_type).local_base.has_value() ||
         std::any_of(std::begin(kLocalBases), std::end(kLocalBases),
                     [&](std::string_view key) { return document.model.Has(key); });
}

// For kLocal, `scaling` is the top level, because the parameters belong to the other layers. Only
// kScaled reads the type, the scaling and mrope. rotary_dim is needed before mrope, since Ernie's
// counts depend on it.
absl::StatusOr<LayerConfig> ReadEntry(const ConfigDocument& document,
                                      const std::optional<JsonFields>& parameters,
                                      std::string_view layer_type, EntryKind kind) {
  LayerConfig entry;
  entry.layer_type = layer_type;
  entry.warnings = document.warnings;
  RopeConfig& config = entry.config;
  const bool local = kind == EntryKind::kLocal;
  const JsonFields& scaling = parameters.has_value() && !local ? *parameters : document.model;
  if (parameters.has_value() && kind == EntryKind::kScaled) {
    ROPE_RETURN_IF_ERROR(ReadScaling(*parameters, document.bare && !document.nested, entry));
    WarnUnknownKeys(document, *parameters, entry.warnings);
  }
  ROPE_ASSIGN_OR_RETURN(config.rope_theta, local ? ReadLocalTheta(document, entry.warnings)
                                                 : ReadTheta(document, parameters, entry.warnings));
  ROPE_ASSIGN_OR_RETURN(config.head_dim, ReadHeadDim(document, layer_type, entry.warnings));
  ROPE_RETURN_IF_ERROR(ReadFraction(document, scaling, entry));
  ROPE_ASSIGN_OR_RETURN(config.rotary_offset,
                        FirstOf<int64_t>({scaling.Integer("rotary_offset"),
                                          document.model.Integer("rotary_offset")}));
  if (kind == EntryKind::kScaled) {
    ROPE_ASSIGN_OR_RETURN(config.mrope, ReadMrope(document, parameters.value_or(document.model),
                                                  RotaryDim(config, config.head_dim)));
  }
  ROPE_RETURN_IF_ERROR(ReadLengths(document, scaling, entry));
  ROPE_ASSIGN_OR_RETURN(entry.pairing, ReadPairing(document));
  return entry;
}

}  // namespace rope::kernels
