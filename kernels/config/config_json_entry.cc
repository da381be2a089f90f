#include "kernels/config/config_json_entry.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "kernels/config/model_types.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/quad.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

// Hugging Face's rope_type of image patches. It is default with two axes.
constexpr std::string_view kAxialType = "axial";

constexpr int8_t kH = 1;
constexpr int8_t kW = 2;

// Whether the parameters name `type` as their rope_type (or type).
bool IsType(const JsonFields& parameters, std::string_view type) {
  const nlohmann::json* const name =
      parameters.Find(parameters.Has("rope_type") ? "rope_type" : "type");
  return name != nullptr && *name == type;
}

// Ernie 4.5 VL: h and w alternate, then t. Its files give the count of t as freq_allocation
// (Hugging Face's first version), or all three counts in the order h, w, t. Without either the
// class has 22, 22 and 20.
absl::StatusOr<Mrope> ReadErnieMrope(const JsonFields& parameters,
                                     const std::vector<int64_t>& section,
                                     std::optional<int64_t> rotary_dim) {
  Mrope mrope{.layout = Mrope::Layout::kHwInterleaved};
  if (section.size() == 3) {
    mrope.section = {section[2], section[0], section[1]};
    return mrope;
  }
  ROPE_ASSIGN_OR_RETURN(const auto time, parameters.Integer("freq_allocation"));
  if (!section.empty() || !time.has_value() || !rotary_dim.has_value()) {
    return InvalidField(parameters.PathOf("freq_allocation"),
                        time.has_value() ? StrCat(*time, " without a head_dim") : "nothing",
                        "the count of t, or mrope_section with three counts (h, w, t)");
  }
  if (*time < 0 || *time > kHeadDimMax) {
    return InvalidField(parameters.PathOf("freq_allocation"), *time, StrCat("0 to ", kHeadDimMax));
  }
  const int64_t rest = *rotary_dim / 2 - *time;
  mrope.section = {*time, rest / 2, rest - rest / 2};
  return mrope;
}

// The counts that the model's code uses without mrope_section, fitted to `columns` frequencies.
std::optional<Mrope> UsualMrope(const ModelType& type, std::optional<int64_t> rotary_dim) {
  if (!type.mrope_section.has_value() || !rotary_dim.has_value()) return std::nullopt;
  Mrope mrope{.section = *type.mrope_section, .layout = *type.mrope_layout};
  const int64_t columns = *rotary_dim / 2;
  if (mrope.layout == Mrope::Layout::kInterleaved) {
    // Counts past the end of the head have no effect.
    mrope.section[1] = std::min(mrope.section[1], (columns + 1) / 3);
    mrope.section[2] = std::min(mrope.section[2], columns / 3);
    mrope.section[0] = columns - mrope.section[1] - mrope.section[2];
  }
  if (mrope.section[0] + mrope.section[1] + mrope.section[2] != columns) return std::nullopt;
  return mrope;
}

Field<Mrope> ReadMrope(const ConfigDocument& document, const JsonFields& parameters,
                       std::optional<int64_t> rotary_dim) {
  const ModelType& type = *document.type;
  ROPE_ASSIGN_OR_RETURN(const auto section, parameters.Integers("mrope_section"));
  if (parameters.Has("mrope_section") && !type.mrope_unsupported.empty()) {
    return InvalidField(parameters.PathOf("mrope_section"), StrCat(section.size(), " numbers"),
                        StrCat("no mrope_section: ", type.mrope_unsupported));
  }
  const bool has_counts = parameters.Has("mrope_section") || parameters.Has("freq_allocation");
  if (IsType(parameters, "ernie_3d") ||
      (has_counts && type.mrope_layout == Mrope::Layout::kHwInterleaved)) {
    ROPE_ASSIGN_OR_RETURN(const Mrope mrope, ReadErnieMrope(parameters, section, rotary_dim));
    return std::optional<Mrope>(mrope);
  }
  if (!parameters.Has("mrope_section") && !IsType(parameters, "mrope")) {
    return UsualMrope(type, rotary_dim);
  }
  if (section.size() != 3) {
    return InvalidField(
        parameters.PathOf("mrope_section"),
        parameters.Has("mrope_section") ? StrCat(section.size(), " numbers") : "nothing",
        "three counts of frequencies (t, h, w)");
  }
  Mrope mrope{.layout = type.mrope_layout.value_or(Mrope::Layout::kSections)};
  std::copy(section.begin(), section.end(), mrope.section.begin());
  ROPE_ASSIGN_OR_RETURN(const auto interleaved, parameters.Bool("mrope_interleaved"));
  if (interleaved.value_or(false)) mrope.layout = Mrope::Layout::kInterleaved;
  return std::optional<Mrope>(mrope);
}

absl::Status ReadGrid(AxialGrid grid, RopeConfig& config) {
  if (!config.head_dim.has_value()) {
    return InvalidField("head_dim", "nothing", "the channels of an axial head");
  }
  const int64_t head_dim = *config.head_dim;
  if (grid == AxialGrid::kTHW) {
    const int64_t n = head_dim / 6;
    config.rotary_dim = 6 * n;
    config.mrope = Mrope{.section = {n, n, n}, .layout = Mrope::Layout::kAxial};
    return absl::OkStatus();
  }
  if (head_dim % 4 != 0 || head_dim > kHeadDimMax) {
    return InvalidField("head_dim", head_dim, "a multiple of 4 for an axial grid");
  }
  const int64_t n = head_dim / 4;
  if (grid == AxialGrid::kHW) {
    config.mrope = Mrope{.section = {0, n, n}, .layout = Mrope::Layout::kAxial};
    return absl::OkStatus();
  }
  config.mrope.emplace();
  const auto add = [&](int8_t axis, int64_t numerator) {
    const Quad exponent = -static_cast<Quad>(numerator) / static_cast<Quad>(4 * n);
    config.mrope->axes.push_back(axis);
    config.inv_freq.push_back(static_cast<double>(QuadPow(config.rope_theta, exponent)));
  };
  const bool alternates = grid == AxialGrid::kWHAlternating;
  for (int64_t j = 0; j < 2 * n; ++j) {
    const int64_t i = alternates ? j / 2 : j % n;
    const bool second = alternates ? j % 2 == 1 : j >= n;
    if (grid == AxialGrid::kHWFrequencies) {  // h has the even of the head's, w the odd ones
      add(second ? kW : kH, 4 * i + (second ? 2 : 0));
    } else {
      add(second ? kH : kW, 4 * i);
    }
  }
  return absl::OkStatus();
}

// Sets config.mrope, and the frequencies of an axial grid. Leaves them unset for one axis.
// REQUIRES: theta, head_dim and rotary_dim of `config` are read.
absl::Status ReadAxes(const ConfigDocument& document, const JsonFields& parameters,
                      RopeConfig& config) {
  const std::optional<int64_t> rotary_dim = RotaryDim(config, config.head_dim);
  if (document.type->axial == AxialGrid::kHWAlternating) {
    config.mrope.emplace();
    for (int64_t i = 0; i < rotary_dim.value_or(0) / 2; ++i) {
      config.mrope->axes.push_back(i % 2 == 0 ? kH : kW);
    }
    return absl::OkStatus();
  }
  // The code of a vision tower has its grid whatever the file says; published files say nothing.
  const bool of_code = document.type->axial.has_value() && config.rope_type == RopeType::kDefault &&
                       !parameters.Has("mrope_section");
  if (of_code || IsType(parameters, kAxialType)) {
    return ReadGrid(document.type->axial.value_or(AxialGrid::kHW), config);
  }
  ROPE_ASSIGN_OR_RETURN(config.mrope, ReadMrope(document, parameters, rotary_dim));
  return absl::OkStatus();
}

// Every value has one lookup order: the parameters object, then the top level of the model (with
// its older key names), then the default of the model_type, then a general default. An assumed
// default adds a note, because the file does not show it.

// The base of the sliding layers, as Gemma 3, ModernBERT and MiMo v2 name it.
constexpr std::string_view kLocalBases[] = {"rope_local_base_freq", "local_rope_theta",
                                            "swa_rope_theta"};

Field<RopeType> ReadTypeAt(const JsonFields& parameters, std::string_view key) {
  ROPE_ASSIGN_OR_RETURN(const auto name, parameters.String(key));
  if (!name.has_value()) return std::optional<RopeType>();
  if (*name == kAxialType) return std::optional<RopeType>(RopeType::kDefault);
  const absl::StatusOr<RopeType> type = ParseRopeType(*name);
  if (type.ok()) return std::optional<RopeType>(*type);
  return proto::WithField(parameters.PathOf(key), type.status());
}

absl::StatusOr<RopeType> ReadType(const JsonFields& parameters, bool bare,
                                  std::vector<Remark>& remarks) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<RopeType> type, ReadTypeAt(parameters, "rope_type"));
  if (bare && type.has_value()) return *type;  // a bare file may use `type` for something else
  ROPE_ASSIGN_OR_RETURN(const std::optional<RopeType> old, ReadTypeAt(parameters, "type"));
  if (type.has_value() && old.has_value() && *type != *old) {
    AddRemark(remarks, RemarkKind::kOverriddenValue, parameters.PathOf("type"), " ", Name(*old),
              " is not used: rope_type says ", Name(*type));
  }
  return type.value_or(old.value_or(RopeType::kDefault));
}

// The number that the model_type implies for the absent `key`, with a note; unset if it implies
// none.
std::optional<double> AssumedNumber(const ConfigDocument& document, std::string_view key,
                                    std::vector<Remark>& remarks) {
  const auto found = document.type->defaults.find(key);
  if (found == document.type->defaults.end()) return std::nullopt;
  const auto number = found->get<double>();
  const auto whole = static_cast<int64_t>(number);
  const std::string shown = static_cast<double>(whole) == number ? StrCat(whole) : StrCat(number);
  AddRemark(remarks, RemarkKind::kDefaultAssumed, key, " absent, taken as ", shown, ", as ",
            document.type->of_transformers ? "Hugging Face" : "its code", " does for ",
            document.model_type);
  return number;
}

// The first of: qk_rope_head_dim (multi-head latent attention), the layer type's own key,
// per_layer_config, head_dim, hidden_size / num_attention_heads. Unset if none is there.
Field<int64_t> ReadHeadDim(const ConfigDocument& document, const PerLayerConfig& per_layer,
                           std::string_view layer_type, std::vector<Remark>& remarks) {
  const JsonFields& model = document.model;
  const std::optional<int64_t> nothing;
  const bool full = layer_type == kFullAttention;
  const bool sliding = layer_type == kSlidingAttention;
  const bool alone = !document.type->rope_in_head;
  ROPE_ASSIGN_OR_RETURN(
      const auto head_dim,
      FirstOf<int64_t>({alone ? IntegerOf(per_layer, layer_type, "qk_rope_head_dim") : nothing,
                        alone ? model.Integer("qk_rope_head_dim") : nothing,
                        full ? model.Integer("global_head_dim") : nothing,
                        sliding ? model.Integer("swa_head_dim") : nothing,
                        IntegerOf(per_layer, layer_type, "head_dim"), model.Integer("head_dim")}));
  if (head_dim.has_value()) return head_dim;
  ROPE_ASSIGN_OR_RETURN(
      const auto hidden,
      FirstOf<int64_t>(
          {document.type->width.empty() ? nothing : model.Integer(document.type->width),
           model.Integer("hidden_size"), model.Integer("n_embd")}));
  ROPE_ASSIGN_OR_RETURN(const auto heads, FirstOf<int64_t>({model.Integer("num_attention_heads"),
                                                            model.Integer("n_head")}));
  if (!hidden.has_value() || !heads.has_value()) return std::optional<int64_t>();
  if (*heads < 1) {
    return InvalidField(model.PathOf("num_attention_heads"), *heads, "at least 1");
  }
  if (*hidden % *heads != 0) {
    AddRemark(remarks, RemarkKind::kSizesDoNotDivide, "num_attention_heads ", *heads,
              " does not divide hidden_size ", *hidden, ": head_dim is taken as ",
              *hidden / *heads);
  }
  return std::optional<int64_t>(*hidden / *heads);
}

absl::StatusOr<double> ReadLocalTheta(const ConfigDocument& document,
                                      std::vector<Remark>& remarks) {
  for (const std::string_view key : kLocalBases) {
    ROPE_ASSIGN_OR_RETURN(const auto theta, document.model.Number(key));
    if (theta.has_value()) return *theta;
  }
  if (const auto usual = AssumedNumber(document, kLocalBases[0], remarks)) return *usual;
  AddRemark(remarks, RemarkKind::kDefaultAssumed, kLocalBases[0], " absent, taken as 10000");
  return 10000;
}

// 10000 times the key of theta_ratio. REQUIRES: the type has one.
absl::StatusOr<double> ReadThetaRatio(const ConfigDocument& document,
                                      std::vector<Remark>& remarks) {
  constexpr double kBase = 10000;
  const JsonFields& model = document.model;
  const std::string& key = document.type->theta_ratio;
  ROPE_ASSIGN_OR_RETURN(const auto ratio, model.Number(key));
  if (ratio.has_value() && !(*ratio > 0)) {
    return InvalidField(model.PathOf(key), *ratio, "a number above 0");
  }
  if (model.Has("rope_theta")) {
    AddRemark(remarks, RemarkKind::kOverriddenValue, model.PathOf("rope_theta"),
              " is not used: the code of ", document.model_type, " takes 10000 * ", key);
  }
  return kBase * ratio.value_or(1);
}

// Whether a base was probably lost: every published block that scales in these ways has one. Files
// of 2023 have dynamic or linear in rope_scaling, and no base.
bool LostBase(const ConfigDocument& document, const std::optional<JsonFields>& parameters) {
  if (!parameters.has_value() || document.bare || IsType(*parameters, "default")) return false;
  const bool of_2023 = IsType(*parameters, "linear") || IsType(*parameters, "dynamic");
  return parameters->Has("factor") && (document.model.Has("rope_parameters") || !of_2023);
}

// rope_theta of the parameters, else of the top level. A different value at the top level is warned
// of and not used.
absl::StatusOr<double> ReadTheta(const ConfigDocument& document,
                                 const std::optional<JsonFields>& parameters,
                                 std::vector<Remark>& remarks) {
  if (!document.type->theta_ratio.empty()) return ReadThetaRatio(document, remarks);
  const JsonFields& model = document.model;
  std::optional<double> theta;
  if (parameters.has_value()) {
    ROPE_ASSIGN_OR_RETURN(theta, parameters->Number("rope_theta"));
  }
  ROPE_ASSIGN_OR_RETURN(const auto top, FirstOf<double>({model.Number("rope_theta"),
                                                         model.Number("global_rope_theta"),
                                                         model.Number("rotary_emb_base")}));
  if (theta.has_value() && top.has_value() && *top != *theta) {
    AddRemark(remarks, RemarkKind::kOverriddenValue, model.PathOf("rope_theta"), " ", *top,
              " is not used: ", parameters->PathOf("rope_theta"), " says ", *theta);
  }
  if (theta.has_value()) return *theta;
  if (top.has_value()) return *top;
  const size_t said = remarks.size();
  const std::optional<double> usual = AssumedNumber(document, "rope_theta", remarks);
  if (!usual.has_value()) {
    AddRemark(remarks, RemarkKind::kDefaultAssumed, "rope_theta absent, taken as 10000");
  }
  if (LostBase(document, parameters)) remarks[said].kind = RemarkKind::kNoBase;
  return usual.value_or(10000);
}

// The channels that partial_rotary_factor is a fraction of, if they are not head_dim: the sum of
// the model_type's keys.
Field<int64_t> ReadFractionOf(const ConfigDocument& document, const PerLayerConfig& per_layer,
                              std::string_view layer_type) {
  std::optional<int64_t> sum;
  for (const std::string& key : document.type->partial_rotary_factor_of) {
    ROPE_ASSIGN_OR_RETURN(
        const auto channels,
        FirstOf<int64_t>({IntegerOf(per_layer, layer_type, key), document.model.Integer(key)}));
    if (!channels.has_value()) return std::optional<int64_t>();
    if (*channels < 0 || *channels > kHeadDimMax) {
      return InvalidField(document.model.PathOf(key), *channels, StrCat("0 to ", kHeadDimMax));
    }
    sum = sum.value_or(0) + *channels;
  }
  return sum;
}

absl::Status ReadFraction(const ConfigDocument& document, const PerLayerConfig& per_layer,
                          const JsonFields& scaling, LayerConfig& entry) {
  const JsonFields& model = document.model;
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(config.rotary_dim, scaling.Integer("rotary_dim"));
  ROPE_ASSIGN_OR_RETURN(
      config.partial_rotary_factor,
      FirstOf<double>({scaling.Number("partial_rotary_factor"),
                       model.Number("partial_rotary_factor"), model.Number("rotary_pct")}));
  entry.names.fraction_in_parameters =
      scaling.Has("partial_rotary_factor") && !model.Has("partial_rotary_factor");
  // partial_rotary_factor in the parameters object takes precedence over a rotary_dim next to it.
  if (!config.rotary_dim.has_value() && !config.partial_rotary_factor.has_value()) {
    ROPE_ASSIGN_OR_RETURN(config.rotary_dim, model.Integer("rotary_dim"));
  }
  if (document.type->rope_in_head && !config.partial_rotary_factor.has_value()) {
    ROPE_ASSIGN_OR_RETURN(config.rotary_dim, model.Integer("qk_rope_head_dim"));
  }
  if (config.rotary_dim.has_value()) return absl::OkStatus();
  if (document.type->whole_heads && config.partial_rotary_factor.value_or(1) != 1 &&
      (config.rope_type == RopeType::kDefault || config.alpha.has_value())) {
    entry.remarks.push_back(
        {RemarkKind::kOverriddenValue,
         StrCat("partial_rotary_factor ", *config.partial_rotary_factor,
                " is not used: the code of ", document.model_type, " turns whole heads"),
         "partial_rotary_factor"});
    entry.names.stated_channels = RotaryDim(config, config.head_dim);
    config.partial_rotary_factor.reset();
  }
  if (!config.partial_rotary_factor.has_value()) {
    config.partial_rotary_factor = AssumedNumber(document, "partial_rotary_factor", entry.remarks);
  }
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> whole,
                        ReadFractionOf(document, per_layer, entry.layer_type));
  if (whole.has_value() && config.partial_rotary_factor.has_value()) {
    RopeConfig fraction{.head_dim = whole, .partial_rotary_factor = config.partial_rotary_factor};
    config.rotary_dim = RotaryDim(fraction, whole);
    config.partial_rotary_factor.reset();
  }
  return absl::OkStatus();
}

// ReadAxes makes lists of these lengths, so they are bounded first. Validate has the other rules.
absl::Status CheckDims(const RopeConfig& config) {
  const auto is_bounded = [](int64_t dim) { return dim >= 0 && dim <= kHeadDimMax; };
  if (config.head_dim.has_value() && !is_bounded(*config.head_dim)) {
    return InvalidField("head_dim", *config.head_dim, StrCat("2 to ", kHeadDimMax));
  }
  if (config.rotary_dim.has_value() && !is_bounded(*config.rotary_dim)) {
    return InvalidField("rotary_dim", *config.rotary_dim,
                        StrCat("an even number, 2 to ", kHeadDimMax));
  }
  if (!is_bounded(RotaryDim(config, config.head_dim).value_or(0))) {
    return InvalidField("partial_rotary_factor", *config.partial_rotary_factor,
                        "a number in (0, 1]");
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
  // Phi's classes have a field of that name; the others do not look beside the block.
  const bool beside = !document.type->of_transformers ||
                      document.type->defaults.contains("original_max_position_embeddings");
  ROPE_ASSIGN_OR_RETURN(config.original_max_position_embeddings,
                        FirstOf<int64_t>({beside ? model.Integer("original_max_position_embeddings")
                                                 : std::optional<int64_t>(),
                                          scaling.Integer("original_max_position_embeddings")}));
  entry.names.length_in_parameters = scaling.Has("original_max_position_embeddings");
  return absl::OkStatus();
}

// Hugging Face reads truncate next to the layer types, and not from the parameters of a layer type.
// Source: transformers 5.23.0, modeling_rope_utils.py, _compute_yarn_parameters.
absl::Status ReadTruncate(const ConfigDocument& document, const JsonFields& parameters,
                          LayerConfig& entry) {
  ROPE_ASSIGN_OR_RETURN(entry.config.truncate, document.parameters->Bool("truncate"));
  if (!document.nested) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(const auto own, parameters.Bool("truncate"));
  if (own.has_value() && *own != entry.config.truncate.value_or(true)) {
    AddRemark(entry.remarks, RemarkKind::kOverriddenValue, parameters.PathOf("truncate"),
              " is not used: Hugging Face reads it next to the layer types");
  }
  return absl::OkStatus();
}

// PhiMoE's factors on cos and sin, for short and for long sequences. Its files have one for both.
absl::Status ReadLongropeMagnitudes(const JsonFields& parameters, RopeConfig& config) {
  ROPE_ASSIGN_OR_RETURN(const auto for_short, parameters.Number("short_mscale"));
  ROPE_ASSIGN_OR_RETURN(const auto for_long, parameters.Number("long_mscale"));
  if (!for_short.has_value() && !for_long.has_value()) return absl::OkStatus();
  if (for_short != for_long) {
    return InvalidField(
        parameters.PathOf("long_mscale"), for_long.has_value() ? StrCat(*for_long) : "nothing",
        StrCat("short_mscale, ", for_short.has_value() ? StrCat(*for_short) : "which is absent",
               ": an attention factor that follows the length is not supported"));
  }
  config.attention_factor = for_short;
  return absl::OkStatus();
}

// Reads the fields that occur in a parameters object only.
absl::Status ReadScaling(const JsonFields& parameters, bool bare, LayerConfig& entry) {
  RopeConfig& config = entry.config;
  ROPE_ASSIGN_OR_RETURN(config.rope_type, ReadType(parameters, bare, entry.remarks));
  entry.names.is_su = IsType(parameters, "su");
  ROPE_ASSIGN_OR_RETURN(config.factor, parameters.Number("factor"));
  ROPE_ASSIGN_OR_RETURN(config.attention_factor, parameters.Number("attention_factor"));
  ROPE_ASSIGN_OR_RETURN(config.mscale, parameters.Number("mscale"));
  ROPE_ASSIGN_OR_RETURN(config.mscale_all_dim, parameters.Number("mscale_all_dim"));
  ROPE_ASSIGN_OR_RETURN(config.beta_fast, parameters.Number("beta_fast"));
  ROPE_ASSIGN_OR_RETURN(config.beta_slow, parameters.Number("beta_slow"));
  ROPE_ASSIGN_OR_RETURN(config.low_freq_factor, parameters.Number("low_freq_factor"));
  ROPE_ASSIGN_OR_RETURN(config.high_freq_factor, parameters.Number("high_freq_factor"));
  ROPE_ASSIGN_OR_RETURN(config.short_factor, parameters.Numbers("short_factor"));
  ROPE_ASSIGN_OR_RETURN(config.long_factor, parameters.Numbers("long_factor"));
  ROPE_RETURN_IF_ERROR(ReadLongropeMagnitudes(parameters, config));
  ROPE_ASSIGN_OR_RETURN(config.attn_factor, parameters.Number("attn_factor"));
  ROPE_ASSIGN_OR_RETURN(config.alpha, parameters.Number("alpha"));
  ROPE_ASSIGN_OR_RETURN(config.mixed_b, parameters.Number("mixed_b"));
  ROPE_ASSIGN_OR_RETURN(config.inv_freq, parameters.Numbers("inv_freq"));
  return absl::OkStatus();
}

// rope_interleave false means that the code expects half pairs and leaves them so.
absl::Status ReadPairs(const ConfigDocument& document, LayerConfig& entry) {
  ROPE_ASSIGN_OR_RETURN(const auto interleave, document.model.Bool("rope_interleave"));
  entry.pairing = document.type->pairing;
  entry.channel_order = document.type->channel_order;
  entry.config.reverse = document.type->reverse;
  if (!interleave.has_value()) return absl::OkStatus();
  entry.pairing = *interleave ? Pairing::kInterleaved : Pairing::kHalf;
  if (!*interleave) entry.channel_order.reset();
  return absl::OkStatus();
}

// No kernel uses the keys below, so a value of the wrong type is as good as none. As in Python, a
// number other than 0 is true.
std::optional<bool> Truth(const JsonFields& fields, std::string_view key) {
  const nlohmann::json* const value = fields.Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  return !value->is_number() || value->get<double>() != 0;
}

std::optional<double> AnyNumber(const JsonFields& fields, std::string_view key) {
  const auto number = fields.Number(key);
  return number.ok() ? *number : std::nullopt;
}

std::optional<int64_t> AnyLength(const JsonFields& fields, std::string_view key) {
  const auto number = fields.Integer(key);
  return number.ok() && number->value_or(0) > 0 ? *number : std::nullopt;
}

// The keys of the scale of attention; null: there is none. `parameters`: the rope parameters, else
// the file.
std::shared_ptr<const ScaleKeys> ReadScale(const JsonFields& model, const JsonFields& parameters) {
  const bool given = absl::c_any_of(KeyList("scale"), [&](std::string_view key) {
    return model.Has(key) || parameters.Has(key);
  });
  if (!given) return nullptr;
  auto keys = std::make_shared<ScaleKeys>();
  keys->apply_yarn_scaling = Truth(parameters, "apply_yarn_scaling");
  keys->apply_scale = Truth(parameters, "apply_scale");
  keys->beta = AnyNumber(parameters, "llama_4_scaling_beta");
  keys->top_length = AnyLength(model, "original_max_position_embeddings");
  keys->attn_temperature_tuning = Truth(model, "attn_temperature_tuning");
  keys->attn_scale = AnyNumber(model, "attn_scale");
  keys->floor_scale = AnyLength(model, "floor_scale");
  const nlohmann::json* const mistral = model.Find("llama_4_scaling");
  if (mistral == nullptr || !mistral->is_object()) return keys;
  const JsonFields scaling(*mistral);
  keys->mistral_beta = AnyNumber(scaling, "beta");
  keys->mistral_length = AnyLength(scaling, "original_max_position_embeddings");
  return keys;
}

// What transformers 4 makes of the file: it does not know rope_parameters.
absl::Status ReadForOlder(const ConfigDocument& document, bool local, LayerConfig& entry) {
  entry.names.newer_keys = document.parameters.has_value() && document.model.Has("rope_parameters");
  entry.names.by_layer_type = document.nested;
  if (!document.type->theta_4.has_value()) return absl::OkStatus();
  local |= entry.layer_type == kSlidingAttention && HasLocalBase(document);
  if (local) {
    entry.names.older_theta = document.type->defaults.value(std::string(kLocalBases[0]), 10000.0);
    return absl::OkStatus();
  }
  ROPE_ASSIGN_OR_RETURN(entry.names.older_theta, document.model.Number("rope_theta"));
  if (!entry.names.older_theta.has_value()) entry.names.older_theta = document.type->theta_4;
  return absl::OkStatus();
}

}  // namespace

bool HasLocalBase(const ConfigDocument& document) {
  return document.type->defaults.contains(kLocalBases[0]) ||
         std::any_of(std::begin(kLocalBases), std::end(kLocalBases),
                     [&](std::string_view key) { return document.model.Has(key); });
}

// For kLocal, `scaling` is the top level, because the parameters belong to the other layers. Only
// kScaled reads the type, the scaling and mrope. rotary_dim is needed before mrope, since Ernie's
// counts depend on it.
absl::StatusOr<LayerConfig> ReadEntry(const ConfigDocument& document,
                                      const PerLayerConfig& per_layer,
                                      const std::optional<JsonFields>& parameters,
                                      std::string_view layer_type, EntryKind kind) {
  LayerConfig entry;
  entry.layer_type = layer_type;
  entry.remarks = document.remarks;
  RopeConfig& config = entry.config;
  const bool local = kind == EntryKind::kLocal;
  const JsonFields& scaling = parameters.has_value() && !local ? *parameters : document.model;
  if (parameters.has_value() && kind == EntryKind::kScaled) {
    ROPE_RETURN_IF_ERROR(ReadScaling(*parameters, document.bare && !document.nested, entry));
    ROPE_RETURN_IF_ERROR(ReadTruncate(document, *parameters, entry));
    if (config.rope_type == RopeType::kLongrope) {
      config.longrope_branch = document.type->longrope_branch;
    }
    RemarkUnknownKeys(document, *parameters, entry.remarks);
  }
  ROPE_ASSIGN_OR_RETURN(config.rope_theta, local ? ReadLocalTheta(document, entry.remarks)
                                                 : ReadTheta(document, parameters, entry.remarks));
  ROPE_ASSIGN_OR_RETURN(config.head_dim,
                        ReadHeadDim(document, per_layer, layer_type, entry.remarks));
  ROPE_RETURN_IF_ERROR(ReadFraction(document, per_layer, scaling, entry));
  ROPE_RETURN_IF_ERROR(CheckDims(config));
  ROPE_ASSIGN_OR_RETURN(config.rotary_offset,
                        FirstOf<int64_t>({scaling.Integer("rotary_offset"),
                                          document.model.Integer("rotary_offset")}));
  if (kind == EntryKind::kScaled) {
    ROPE_RETURN_IF_ERROR(ReadAxes(document, parameters.value_or(document.model), config));
  }
  if (document.type->trailing_window && !config.rotary_offset && config.head_dim) {
    const int64_t behind = *config.head_dim - *RotaryDim(config, config.head_dim);
    if (behind > 0) config.rotary_offset = behind;
  }
  ROPE_RETURN_IF_ERROR(ReadLengths(document, scaling, entry));
  ROPE_RETURN_IF_ERROR(ReadPairs(document, entry));
  entry.scale = ReadScale(document.model, parameters.value_or(document.model));
  ROPE_RETURN_IF_ERROR(ReadForOlder(document, local, entry));
  return entry;
}

}  // namespace rope::kernels
