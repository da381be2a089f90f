#include "server/models/rope_spec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

template <typename T>
std::optional<T> Optional(bool present, T value) {
  return present ? std::optional<T>(value) : std::nullopt;
}

using Layout = kernels::Mrope::Layout;

// Converts an enum of the schema. values[i] corresponds to the enum's number i + 1; 0 is unset.
template <typename T, size_t size>
absl::StatusOr<std::optional<T>> ReadEnum(absl::string_view field, int number,
                                          const T (&values)[size]) {
  if (number == 0) return std::nullopt;
  if (number < 0 || number > static_cast<int>(size)) {
    return InvalidField(field, number, "a value that the schema names");
  }
  return values[number - 1];
}

template <typename T, size_t size>
int WriteEnum(T value, const T (&values)[size]) {
  for (size_t i = 0; i < size; ++i) {
    if (values[i] == value) return static_cast<int>(i) + 1;
  }
  return 0;
}

// The kernels' values in the order of the schema's numbers.
constexpr kernels::YarnRamp kRamps[] = {kernels::YarnRamp::kIndex, kernels::YarnRamp::kTurns};
constexpr kernels::LongropeBranch kBranches[] = {kernels::LongropeBranch::kShort,
                                                 kernels::LongropeBranch::kLong};
constexpr kernels::SeqLenPolicy kPolicies[] = {kernels::SeqLenPolicy::kSequence,
                                               kernels::SeqLenPolicy::kBatch};
constexpr Layout kLayouts[] = {Layout::kSections, Layout::kInterleaved, Layout::kHwInterleaved,
                               Layout::kAxial};
constexpr kernels::Compat kCompats[] = {kernels::Compat::kHuggingFace, kernels::Compat::kVllm,
                                        kernels::Compat::kLlamaCpp, kernels::Compat::kDeepSeek};
constexpr kernels::Precision kPrecisions[] = {kernels::Precision::kExact,
                                              kernels::Precision::kHuggingFace};

absl::StatusOr<Layout> ReadLayout(const v1::RopeConfig& message) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<Layout> layout,
                        ReadEnum("mrope_layout", message.mrope_layout(), kLayouts));
  const bool interleaved = message.mrope_interleaved();
  if (!layout.has_value()) return interleaved ? Layout::kInterleaved : Layout::kSections;
  if (message.has_mrope_interleaved() && interleaved != (layout == Layout::kInterleaved)) {
    return InvalidField("mrope_layout", v1::MropeLayout_Name(message.mrope_layout()),
                        absl::StrCat("a layout that mrope_interleaved, ",
                                     interleaved ? "true" : "false", ", does not contradict"));
  }
  return *layout;
}

absl::StatusOr<kernels::Mrope> ReadAxes(const v1::RopeConfig& message) {
  if (message.mrope_section_size() > 0) {
    return InvalidField("mrope_axes", "axes and mrope_section", "only one of them");
  }
  kernels::Mrope mrope;
  for (const int32_t axis : message.mrope_axes()) {
    if (axis < 0 || axis > 2) return InvalidField("mrope_axes", axis, "0 (t), 1 (h) or 2 (w)");
    mrope.axes.push_back(static_cast<int8_t>(axis));
  }
  return mrope;
}

absl::StatusOr<std::optional<kernels::Mrope>> ReadMrope(const v1::RopeConfig& message) {
  if (message.mrope_axes_size() > 0) return ReadAxes(message);
  if (message.mrope_section_size() == 0) {
    if (message.mrope_interleaved()) {
      return InvalidField("mrope_interleaved", "true without mrope_section", "both");
    }
    if (message.mrope_layout() != v1::MROPE_LAYOUT_UNSPECIFIED) {
      return InvalidField("mrope_layout", "a layout without mrope_section", "both");
    }
    return std::nullopt;
  }
  if (message.mrope_section_size() != 3) {
    return InvalidField("mrope_section", absl::StrCat(message.mrope_section_size(), " counts"),
                        "three");
  }
  kernels::Mrope mrope;
  for (int i = 0; i < 3; ++i) mrope.section[static_cast<size_t>(i)] = message.mrope_section(i);
  ROPE_ASSIGN_OR_RETURN(mrope.layout, ReadLayout(message));
  return mrope;
}

// Accepts packed numbers only. They are few, and the registry looks a spec up by its serialization,
// which does not contain raw payloads.
absl::StatusOr<std::vector<double>> ReadInvFreq(const v1::RopeConfig& message) {
  std::vector<double> numbers;
  if (!message.has_inv_freq()) return numbers;
  const v1::Array& array = message.inv_freq();
  if (!array.raw().empty() || array.has_region() || array.strides_size() > 0) {
    const char* const got = array.has_region()    ? "a region"
                            : array.raw().empty() ? "strides"
                                                  : "raw bytes";
    return InvalidField("inv_freq", got, "packed numbers");
  }
  const bool narrow = array.dtype() == v1::DTYPE_FP32;
  if (!narrow && array.dtype() != v1::DTYPE_FP64 && array.dtype() != v1::DTYPE_UNSPECIFIED) {
    return InvalidField("inv_freq.dtype", v1::DType_Name(array.dtype()),
                        "DTYPE_FP64 or DTYPE_FP32");
  }
  const int count = array.numbers_size();
  if (array.shape_size() > 1 || (array.shape_size() == 1 && array.shape(0) != count)) {
    return InvalidField("inv_freq.shape",
                        absl::StrCat("[", absl::StrJoin(array.shape(), ", "), "]"),
                        absl::StrCat("one axis of its ", count, " numbers"));
  }
  if (count == 0) return InvalidField("inv_freq", "no numbers", "rotary_dim/2 of them");
  for (const double number : array.numbers()) {
    numbers.push_back(narrow ? static_cast<double>(static_cast<float>(number)) : number);
  }
  return numbers;
}

// Reads the optional fields that select a variant of a formula.
absl::Status ReadSwitches(const v1::RopeConfig& m, kernels::RopeConfig& config) {
  config.rotary_offset = Optional(m.has_rotary_offset(), int64_t{m.rotary_offset()});
  config.attn_factor = Optional(m.has_attn_factor(), m.attn_factor());
  config.alpha = Optional(m.has_alpha(), m.alpha());
  config.mixed_b = Optional(m.has_mixed_b(), m.mixed_b());
  ROPE_ASSIGN_OR_RETURN(config.ramp, ReadEnum("ramp", m.ramp(), kRamps));
  ROPE_ASSIGN_OR_RETURN(config.longrope_branch,
                        ReadEnum("longrope_branch", m.longrope_branch(), kBranches));
  ROPE_ASSIGN_OR_RETURN(config.seq_len_policy,
                        ReadEnum("seq_len_policy", m.seq_len_policy(), kPolicies));
  if (m.has_xpos()) {
    config.xpos = kernels::XPos{.scale_base = m.xpos().scale_base(), .centre = m.xpos().centre()};
  }
  ROPE_ASSIGN_OR_RETURN(config.mrope, ReadMrope(m));
  config.reverse = m.reverse();
  ROPE_ASSIGN_OR_RETURN(config.inv_freq, ReadInvFreq(m));
  return absl::OkStatus();
}

void WriteSwitches(const kernels::RopeConfig& config, v1::RopeConfig& m) {
  if (config.rotary_offset) m.set_rotary_offset(*config.rotary_offset);
  if (config.attn_factor) m.set_attn_factor(*config.attn_factor);
  if (config.alpha) m.set_alpha(*config.alpha);
  if (config.mixed_b) m.set_mixed_b(*config.mixed_b);
  if (config.ramp) m.set_ramp(static_cast<v1::YarnRamp>(WriteEnum(*config.ramp, kRamps)));
  if (config.longrope_branch) {
    m.set_longrope_branch(
        static_cast<v1::LongropeBranch>(WriteEnum(*config.longrope_branch, kBranches)));
  }
  if (config.seq_len_policy) {
    m.set_seq_len_policy(
        static_cast<v1::SeqLenPolicy>(WriteEnum(*config.seq_len_policy, kPolicies)));
  }
  if (config.xpos) {
    m.mutable_xpos()->set_scale_base(config.xpos->scale_base);
    m.mutable_xpos()->set_centre(config.xpos->centre);
  }
  if (config.reverse) m.set_reverse(true);
  if (config.mrope && !config.mrope->axes.empty()) {
    m.mutable_mrope_axes()->Add(config.mrope->axes.begin(), config.mrope->axes.end());
  } else if (config.mrope) {
    for (const int64_t count : config.mrope->section) m.add_mrope_section(count);
    m.set_mrope_interleaved(config.mrope->layout == Layout::kInterleaved);
    m.set_mrope_layout(static_cast<v1::MropeLayout>(WriteEnum(config.mrope->layout, kLayouts)));
  }
  if (!config.inv_freq.empty()) {
    v1::Array& array = *m.mutable_inv_freq();
    array.set_dtype(v1::DTYPE_FP64);
    array.add_shape(static_cast<int64_t>(config.inv_freq.size()));
    array.mutable_numbers()->Add(config.inv_freq.begin(), config.inv_freq.end());
  }
}

}  // namespace

absl::Status InField(const std::string& config_field, const absl::Status& status) {
  const std::string field = proto::PartsOf(status).field;
  const bool is_of_rope =
      field == "layer" || field == "layer_type" || field == "sub_config" || field == "config_json";
  return Prefixed(is_of_rope ? "rope." : config_field, status);
}

absl::StatusOr<kernels::RopeConfig> ReadRopeConfig(const v1::RopeConfig& m) {
  kernels::RopeConfig config;
  if (!m.rope_type().empty()) {
    ROPE_ASSIGN_OR_RETURN(config.rope_type, kernels::ParseRopeType(m.rope_type()));
  }
  if (m.has_rope_theta()) config.rope_theta = m.rope_theta();
  config.head_dim = Optional(m.has_head_dim(), int64_t{m.head_dim()});
  config.rotary_dim = Optional(m.has_rotary_dim(), int64_t{m.rotary_dim()});
  config.partial_rotary_factor = Optional(m.has_partial_rotary_factor(), m.partial_rotary_factor());
  config.max_position_embeddings =
      Optional(m.has_max_position_embeddings(), int64_t{m.max_position_embeddings()});
  config.original_max_position_embeddings = Optional(m.has_original_max_position_embeddings(),
                                                     int64_t{m.original_max_position_embeddings()});
  config.factor = Optional(m.has_factor(), m.factor());
  config.attention_factor = Optional(m.has_attention_factor(), m.attention_factor());
  config.mscale = Optional(m.has_mscale(), m.mscale());
  config.mscale_all_dim = Optional(m.has_mscale_all_dim(), m.mscale_all_dim());
  config.beta_fast = Optional(m.has_beta_fast(), m.beta_fast());
  config.beta_slow = Optional(m.has_beta_slow(), m.beta_slow());
  config.truncate = Optional(m.has_truncate(), m.truncate());
  config.low_freq_factor = Optional(m.has_low_freq_factor(), m.low_freq_factor());
  config.high_freq_factor = Optional(m.has_high_freq_factor(), m.high_freq_factor());
  config.short_factor.assign(m.short_factor().begin(), m.short_factor().end());
  config.long_factor.assign(m.long_factor().begin(), m.long_factor().end());
  ROPE_RETURN_IF_ERROR(ReadSwitches(m, config));
  return config;
}

v1::RopeConfig WriteRopeConfig(const kernels::RopeConfig& config) {
  v1::RopeConfig m;
  m.set_rope_type(std::string(kernels::Name(config.rope_type)));
  m.set_rope_theta(config.rope_theta);
  if (config.head_dim) m.set_head_dim(*config.head_dim);
  if (config.rotary_dim) m.set_rotary_dim(*config.rotary_dim);
  if (config.partial_rotary_factor) m.set_partial_rotary_factor(*config.partial_rotary_factor);
  if (config.max_position_embeddings) {
    m.set_max_position_embeddings(*config.max_position_embeddings);
  }
  if (config.original_max_position_embeddings) {
    m.set_original_max_position_embeddings(*config.original_max_position_embeddings);
  }
  if (config.factor) m.set_factor(*config.factor);
  if (config.attention_factor) m.set_attention_factor(*config.attention_factor);
  if (config.mscale) m.set_mscale(*config.mscale);
  if (config.mscale_all_dim) m.set_mscale_all_dim(*config.mscale_all_dim);
  if (config.beta_fast) m.set_beta_fast(*config.beta_fast);
  if (config.beta_slow) m.set_beta_slow(*config.beta_slow);
  if (config.truncate) m.set_truncate(*config.truncate);
  if (config.low_freq_factor) m.set_low_freq_factor(*config.low_freq_factor);
  if (config.high_freq_factor) m.set_high_freq_factor(*config.high_freq_factor);
  m.mutable_short_factor()->Add(config.short_factor.begin(), config.short_factor.end());
  m.mutable_long_factor()->Add(config.long_factor.begin(), config.long_factor.end());
  WriteSwitches(config, m);
  return m;
}

v1::Pairing WritePairing(std::optional<kernels::Pairing> pairing) {
  if (!pairing.has_value()) return v1::PAIRING_UNSPECIFIED;
  return *pairing == kernels::Pairing::kHalf ? v1::PAIRING_HALF : v1::PAIRING_INTERLEAVED;
}

absl::StatusOr<std::optional<kernels::Pairing>> ReadPairing(v1::Pairing pairing) {
  switch (pairing) {
    case v1::PAIRING_UNSPECIFIED:
      return std::nullopt;
    case v1::PAIRING_HALF:
      return kernels::Pairing::kHalf;
    case v1::PAIRING_INTERLEAVED:
      return kernels::Pairing::kInterleaved;
    default:
      return InvalidField("rope.pairing", static_cast<int>(pairing),
                          "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
}

bool TakesLongToRead(const v1::RopeSpec& spec) {
  const auto json_bytes = static_cast<int64_t>(spec.config_json().size());
  return json_bytes > limits::kConfigJsonHereBytesMax || !spec.sub_config().empty() ||
         spec.has_first_layer();
}

int64_t WidthOf(const v1::RopeConfig& message) {
  const int list = std::max({message.inv_freq().numbers_size(), message.short_factor_size(),
                             message.long_factor_size(), message.mrope_axes_size()});
  return std::max({int64_t{message.head_dim()}, int64_t{message.rotary_dim()}, int64_t{list}});
}

int64_t WidthOf(const kernels::RopeConfig& config) {
  const size_t axes = config.mrope.has_value() ? config.mrope->axes.size() : 0;
  const size_t list = std::max(
      {config.inv_freq.size(), config.short_factor.size(), config.long_factor.size(), axes});
  return std::max(
      {config.head_dim.value_or(0), config.rotary_dim.value_or(0), static_cast<int64_t>(list)});
}

absl::Status CheckModelName(absl::string_view field, absl::string_view name) {
  const bool legal = !name.empty() && name.size() <= kModelNameBytesMax &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              absl::string_view("._-/").find(c) != absl::string_view::npos;
                     });
  if (legal) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("\"", name.substr(0, kModelNameBytesMax), "\""),
                      "1 to 128 of a-z A-Z 0-9 . _ - /");
}

absl::Status CheckSpec(const v1::RopeSpec& spec) {
  if (spec.source_case() == v1::RopeSpec::SOURCE_NOT_SET) {
    return InvalidField("rope", "nothing", "exactly one of model, config_id, config, config_json");
  }
  if (spec.has_first_layer()) {
    return InvalidField("rope.first_layer", "it here", "it only in the rope of a RotateRequest");
  }
  if (spec.has_layer() && !spec.layer_type().empty()) {
    return InvalidField("rope", "layer and layer_type", "at most one of them");
  }
  if (!spec.sub_config().empty() && spec.has_config()) {
    return InvalidField("rope.sub_config", "it together with config",
                        "it with config_json or a model");
  }
  if (spec.has_config_id() &&
      (spec.has_layer() || !spec.layer_type().empty() || !spec.sub_config().empty() ||
       spec.pairing() != v1::PAIRING_UNSPECIFIED || spec.compat() != v1::COMPAT_UNSPECIFIED ||
       spec.precision() != v1::PRECISION_UNSPECIFIED)) {
    return InvalidField(
        "rope.config_id",
        "it together with layer, layer_type, sub_config, pairing, compat or precision",
        "config_id only: it includes them");
  }
  return absl::OkStatus();
}

kernels::LayerChoice ChoiceOf(const v1::RopeSpec& spec) {
  kernels::LayerChoice choice;
  if (spec.has_layer()) choice.layer = spec.layer();
  choice.layer_type = spec.layer_type();
  return choice;
}

absl::StatusOr<kernels::Compat> ReadCompat(v1::Compat compat) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<kernels::Compat> read,
                        ReadEnum("rope.compat", compat, kCompats));
  return read.value_or(kernels::Compat::kDefault);
}

absl::StatusOr<kernels::Precision> ReadPrecision(v1::Precision precision) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<kernels::Precision> read,
                        ReadEnum("rope.precision", precision, kPrecisions));
  return read.value_or(kernels::Precision::kExact);
}

v1::Precision WritePrecision(kernels::Precision precision) {
  return static_cast<v1::Precision>(WriteEnum(precision, kPrecisions));
}

}  // namespace rope::server
