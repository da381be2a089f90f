#include "proto/wire/rope_config.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/rope_type.h"

// The optional numbers that are the same in the message and in the struct. A macro, because a
// field's name occurs in several identifiers.
#define ROPE_NUMBERS(DO)               \
  DO(head_dim)                         \
  DO(rotary_dim)                       \
  DO(partial_rotary_factor)            \
  DO(max_position_embeddings)          \
  DO(original_max_position_embeddings) \
  DO(factor)                           \
  DO(attention_factor)                 \
  DO(mscale)                           \
  DO(mscale_all_dim)                   \
  DO(beta_fast)                        \
  DO(beta_slow)                        \
  DO(truncate)                         \
  DO(low_freq_factor)                  \
  DO(high_freq_factor)                 \
  DO(rotary_offset)                    \
  DO(attn_factor)                      \
  DO(alpha)                            \
  DO(mixed_b)

namespace rope::proto {
namespace {

using Layout = Mrope::Layout;

constexpr char kNamedValue[] = "a value that the schema names";

// The schema's enums have the values of ours in the same order from 1; 0 is unset. `last`: the
// largest that the schema names.
template <typename Ours>
absl::Status ReadEnum(absl::string_view field, int number, int last, std::optional<Ours>& value) {
  if (number < 0 || number > last) {
    return InvalidField(field, number, kNamedValue);
  }
  if (number > 0) value = static_cast<Ours>(number - 1);
  return absl::OkStatus();
}

template <typename Theirs, typename Ours>
Theirs WriteEnum(std::optional<Ours> value) {
  return static_cast<Theirs>(value.has_value() ? static_cast<int>(*value) + 1 : 0);
}

absl::Status ReadLayout(const v1::RopeConfig& m, Layout& layout) {
  std::optional<Layout> named;
  ROPE_RETURN_IF_ERROR(ReadEnum("mrope_layout", m.mrope_layout(), v1::MropeLayout_MAX, named));
  const bool interleaved = m.mrope_interleaved();
  layout = named.value_or(interleaved ? Layout::kInterleaved : Layout::kSections);
  if (m.has_mrope_interleaved() && interleaved != (layout == Layout::kInterleaved)) {
    return InvalidField("mrope_layout", v1::MropeLayout_Name(m.mrope_layout()),
                        absl::StrCat("a layout that mrope_interleaved, ",
                                     interleaved ? "true" : "false", ", does not contradict"));
  }
  return absl::OkStatus();
}

absl::Status ReadAxes(const v1::RopeConfig& m, std::vector<int8_t>& axes) {
  if (m.mrope_section_size() > 0) {
    return InvalidField("mrope_axes", "axes and mrope_section", "only one of them");
  }
  for (const int32_t axis : m.mrope_axes()) {
    if (axis < 0 || axis > 2) return InvalidField("mrope_axes", axis, "0 (t), 1 (h) or 2 (w)");
    axes.push_back(static_cast<int8_t>(axis));
  }
  return absl::OkStatus();
}

absl::Status ReadMrope(const v1::RopeConfig& m, std::optional<Mrope>& mrope) {
  if (m.mrope_axes_size() > 0) return ReadAxes(m, mrope.emplace().axes);
  const int counts = m.mrope_section_size();
  if (counts == 0) {
    if (m.mrope_interleaved()) {
      return InvalidField("mrope_interleaved", "true without mrope_section", "both");
    }
    if (m.mrope_layout() != v1::MROPE_LAYOUT_UNSPECIFIED) {
      return InvalidField("mrope_layout", "a layout without mrope_section", "both");
    }
    return absl::OkStatus();
  }
  if (counts != 3) {
    return InvalidField("mrope_section", absl::StrCat(counts, " counts"), "three");
  }
  mrope.emplace().section = {m.mrope_section(0), m.mrope_section(1), m.mrope_section(2)};
  return ReadLayout(m, mrope->layout);
}

// Accepts packed numbers only. They are few, and the registry looks a spec up by its serialization,
// which does not contain raw payloads.
absl::Status ReadInvFreq(const v1::RopeConfig& m, std::vector<double>& inv_freq) {
  if (!m.has_inv_freq()) return absl::OkStatus();
  const v1::Array& array = m.inv_freq();
  if (!array.raw().empty() || array.has_region() || array.strides_size() > 0) {
    const char* const got = array.has_region()    ? "a region"
                            : array.raw().empty() ? "strides"
                                                  : "raw bytes";
    return InvalidField("inv_freq", got, "packed numbers");
  }
  const bool narrow = array.dtype() == v1::DTYPE_FP32;
  if (!narrow && array.dtype() != v1::DTYPE_FP64 && array.dtype() != v1::DTYPE_UNSPECIFIED) {
    return InvalidField("inv_freq.dtype", DTypeName(array.dtype()), "DTYPE_FP64 or DTYPE_FP32");
  }
  const int count = array.numbers_size();
  if (array.shape_size() > 1 || (array.shape_size() == 1 && array.shape(0) != count)) {
    return InvalidField("inv_freq.shape",
                        absl::StrCat("[", absl::StrJoin(array.shape(), ", "), "]"),
                        absl::StrCat("one axis of its ", count, " numbers"));
  }
  if (count == 0) return InvalidField("inv_freq", "no numbers", "rotary_dim/2 of them");
  for (const double number : array.numbers()) {
    inv_freq.push_back(narrow ? static_cast<double>(static_cast<float>(number)) : number);
  }
  return absl::OkStatus();
}

void WriteMrope(const Mrope& mrope, v1::RopeConfig& m) {
  m.mutable_mrope_axes()->Add(mrope.axes.begin(), mrope.axes.end());
  if (!mrope.axes.empty()) return;
  m.mutable_mrope_section()->Add(mrope.section.begin(), mrope.section.end());
  m.set_mrope_interleaved(mrope.layout == Layout::kInterleaved);
  m.set_mrope_layout(WriteEnum<v1::MropeLayout>(std::optional(mrope.layout)));
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRopeConfig(const v1::RopeConfig& m) {
  RopeConfig config;
  if (!m.rope_type().empty()) {
    ROPE_ASSIGN_OR_RETURN(config.rope_type, ParseRopeType(m.rope_type()));
  }
  if (m.has_rope_theta()) config.rope_theta = m.rope_theta();
#define ROPE_READ(field) \
  if (m.has_##field()) config.field = m.field();
  ROPE_NUMBERS(ROPE_READ)
#undef ROPE_READ
  config.short_factor.assign(m.short_factor().begin(), m.short_factor().end());
  config.long_factor.assign(m.long_factor().begin(), m.long_factor().end());
  if (m.has_xpos()) config.xpos = {m.xpos().scale_base(), m.xpos().centre()};
  config.reverse = m.reverse();
  ROPE_RETURN_IF_ERROR(ReadEnum("ramp", m.ramp(), v1::YarnRamp_MAX, config.ramp));
  ROPE_RETURN_IF_ERROR(ReadEnum("longrope_branch", m.longrope_branch(), v1::LongropeBranch_MAX,
                                config.longrope_branch));
  ROPE_RETURN_IF_ERROR(
      ReadEnum("seq_len_policy", m.seq_len_policy(), v1::SeqLenPolicy_MAX, config.seq_len_policy));
  ROPE_RETURN_IF_ERROR(ReadMrope(m, config.mrope));
  ROPE_RETURN_IF_ERROR(ReadInvFreq(m, config.inv_freq));
  return config;
}

v1::RopeConfig WriteRopeConfig(const RopeConfig& config) {
  v1::RopeConfig m;
  m.set_rope_type(std::string(Name(config.rope_type)));
  m.set_rope_theta(config.rope_theta);
#define ROPE_WRITE(field) \
  if (config.field.has_value()) m.set_##field(*config.field);
  ROPE_NUMBERS(ROPE_WRITE)
#undef ROPE_WRITE
  m.mutable_short_factor()->Add(config.short_factor.begin(), config.short_factor.end());
  m.mutable_long_factor()->Add(config.long_factor.begin(), config.long_factor.end());
  if (config.xpos.has_value()) {
    m.mutable_xpos()->set_scale_base(config.xpos->scale_base);
    m.mutable_xpos()->set_centre(config.xpos->centre);
  }
  if (config.reverse) m.set_reverse(true);
  if (config.ramp) m.set_ramp(WriteEnum<v1::YarnRamp>(config.ramp));
  if (config.longrope_branch) {
    m.set_longrope_branch(WriteEnum<v1::LongropeBranch>(config.longrope_branch));
  }
  if (config.seq_len_policy) {
    m.set_seq_len_policy(WriteEnum<v1::SeqLenPolicy>(config.seq_len_policy));
  }
  if (config.mrope) WriteMrope(*config.mrope, m);
  if (!config.inv_freq.empty()) {
    v1::Array& array = *m.mutable_inv_freq();
    array.set_dtype(v1::DTYPE_FP64);
    array.add_shape(static_cast<int64_t>(config.inv_freq.size()));
    array.mutable_numbers()->Add(config.inv_freq.begin(), config.inv_freq.end());
  }
  return m;
}

absl::StatusOr<std::optional<Pairing>> ReadPairing(v1::Pairing pairing) {
  if (!v1::Pairing_IsValid(pairing)) {
    return InvalidField("rope.pairing", static_cast<int>(pairing),
                        "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
  std::optional<Pairing> read;
  if (pairing != v1::PAIRING_UNSPECIFIED) read = static_cast<Pairing>(pairing - 1);
  return read;
}

absl::StatusOr<Compat> ReadCompat(v1::Compat compat) {
  if (v1::Compat_IsValid(compat)) return static_cast<Compat>(compat);
  return InvalidField("rope.compat", static_cast<int>(compat), kNamedValue);
}

absl::StatusOr<Precision> ReadPrecision(v1::Precision precision) {
  std::optional<Precision> read;
  ROPE_RETURN_IF_ERROR(ReadEnum("rope.precision", precision, v1::Precision_MAX, read));
  return read.value_or(Precision::kExact);
}

std::string DTypeName(v1::DType dtype) {
  return v1::DType_IsValid(dtype) ? v1::DType_Name(dtype)
                                  : absl::StrCat("number ", static_cast<int>(dtype));
}

v1::Pairing WritePairing(std::optional<Pairing> pairing) {
  return WriteEnum<v1::Pairing>(pairing);
}

v1::Compat WriteCompat(Compat compat) {
  return static_cast<v1::Compat>(compat);
}

v1::Precision WritePrecision(std::optional<Precision> precision) {
  return WriteEnum<v1::Precision>(precision);
}

namespace {

v1::AttentionScale WriteScale(const AttentionScale& scale) {
  v1::AttentionScale message;
  message.set_softmax(scale.softmax);
  message.set_logits(scale.logits);
  message.set_temperature_beta(scale.temperature_beta);
  message.set_temperature_length(scale.temperature_length);
  message.set_temperature_offset(scale.temperature_offset);
  return message;
}

}  // namespace

v1::DescribeResponse WriteDescribeReply(const DescribeReply& reply) {
  v1::DescribeResponse message;
  message.set_config_id(reply.config_id);
  // A layer that does not rotate has no config.
  if (reply.rotates) {
    *message.mutable_config() = WriteRopeConfig(reply.config);
    message.set_precision(WritePrecision(reply.config.precision));
  }
  message.set_pairing(WritePairing(reply.pairing));
  message.set_channel_order(WritePairing(reply.channel_order));
  message.set_layer_type(reply.layer_type);
  message.set_rotates(reply.rotates);
  message.set_seq_len(reply.seq_len);
  message.set_depends_on_seq_len(reply.depends_on_seq_len);
  message.set_attention_factor(reply.attention_factor);
  message.mutable_inv_freq()->Add(reply.inv_freq.begin(), reply.inv_freq.end());
  message.mutable_wavelengths()->Add(reply.wavelengths.begin(), reply.wavelengths.end());
  for (const std::string& warning : reply.warnings) message.add_warnings(warning);
  for (const Reading& reading : reply.readings) {
    v1::Reading& item = *message.add_readings();
    item.set_implementation(reading.engine);
    item.set_version(reading.version);
    item.set_difference(reading.difference);
    item.set_attention_factor(reading.attention_factor);
    item.set_inv_freq_max_relative(reading.inv_freq_max_relative);
    item.set_executed(reading.executed);
  }
  if (reply.scale.has_value()) *message.mutable_scale() = WriteScale(*reply.scale);
  for (const ScaleReading& reading : reply.scale_readings) {
    v1::ScaleReading& item = *message.add_scale_readings();
    item.set_implementation(reading.engine);
    item.set_version(reading.version);
    item.set_difference(reading.difference);
    *item.mutable_scale() = WriteScale(reading.scale);
    item.set_executed(reading.executed);
  }
  if (reply.ramp.has_value()) {
    v1::Ramp& ramp = *message.mutable_ramp();
    ramp.set_low_index(reply.ramp->low_index);
    ramp.set_high_index(reply.ramp->high_index);
    ramp.set_low_wavelength(reply.ramp->low_wavelength);
    ramp.set_high_wavelength(reply.ramp->high_wavelength);
  }
  for (const FrequencyScaling scaling : reply.scaling) {
    message.add_scaling(static_cast<v1::FrequencyScaling>(scaling));
  }
  message.set_float32_angle_error(reply.float32_angle_error);
  message.set_float32_angle_position(reply.float32_angle_position);
  for (const Row& row : reply.rows) WriteRow(row, *message.add_rows());
  return message;
}

void WriteRow(const Row& row, v1::Row& message) {
  message.set_position(row.position);
  message.mutable_cos()->Add(row.cos.begin(), row.cos.end());
  message.mutable_sin()->Add(row.sin.begin(), row.sin.end());
  message.mutable_sinusoid()->Add(row.sinusoid.begin(), row.sinusoid.end());
}

}  // namespace rope::proto
