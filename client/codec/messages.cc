#include "client/codec/messages.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/error.h"
#include "proto/error.h"
#include "proto/wire/rope_config.h"

namespace rope::client {
namespace {

template <typename T, typename Field>
std::vector<T> ToVector(const Field& field) {
  return std::vector<T>(field.begin(), field.end());
}

// An unknown value is unset.
std::optional<Pairing> FromMessage(v1::Pairing pairing) {
  const auto read = proto::ReadPairing(pairing);
  return read.ok() ? *read : std::nullopt;
}

Status BadConfig(const absl::Status& status) {
  const proto::ErrorParts parts = proto::PartsOf(status);
  return MakeError(Reason::kInternal, absl::StrCat("reply: config.", parts.field), parts.got,
                   parts.want);
}

}  // namespace

v1::DType ToMessage(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return v1::DTYPE_FP32;
    case DType::kFloat16:
      return v1::DTYPE_FP16;
    case DType::kBFloat16:
      return v1::DTYPE_BF16;
    case DType::kFloat64:
      return v1::DTYPE_FP64;
    case DType::kFloat8E4M3:
      return v1::DTYPE_FP8_E4M3;
    case DType::kFloat8E5M2:
      return v1::DTYPE_FP8_E5M2;
  }
  return v1::DTYPE_UNSPECIFIED;
}

Status CheckOneOf(absl::string_view field, absl::Span<const std::pair<const char*, bool>> given) {
  absl::InlinedVector<absl::string_view, 4> set;
  absl::InlinedVector<absl::string_view, 4> all;
  for (const auto& [name, is_set] : given) {
    all.push_back(name);
    if (is_set) set.push_back(name);
  }
  if (set.size() < 2) return {};
  return InvalidField(field, absl::StrJoin(set, " and "),
                      absl::StrCat("exactly one of ", absl::StrJoin(all, ", ")));
}

Status SetRope(const RopeSpec& spec, absl::string_view field, v1::RopeSpec& message) {
  Status status = CheckOneOf(field, {{"model", !spec.model.empty()},
                                     {"config_id", !spec.config_id.empty()},
                                     {"config", spec.config.has_value()},
                                     {"config_json", !spec.config_json.empty()}});
  if (!status.ok()) return status;
  if (!spec.model.empty()) message.set_model(spec.model);
  if (!spec.config_id.empty()) message.set_config_id(spec.config_id);
  if (!spec.config_json.empty()) message.set_config_json(spec.config_json);
  std::optional<Precision> precision = spec.precision;
  if (spec.config.has_value()) {
    *message.mutable_config() = proto::WriteRopeConfig(*spec.config);
    if (!precision.has_value() && spec.config->precision != Precision::kExact) {
      precision = spec.config->precision;
    }
  }
  if (spec.layer.has_value()) message.set_layer(*spec.layer);
  message.set_layer_type(spec.layer_type);
  if (spec.first_layer.has_value()) message.set_first_layer(*spec.first_layer);
  message.set_sub_config(spec.sub_config);
  message.set_pairing(proto::WritePairing(spec.pairing));
  message.set_compat(proto::WriteCompat(spec.compat));
  message.set_precision(proto::WritePrecision(precision));
  return {};
}

Result<v1::DescribeRequest> ToMessage(const DescribeRequest& request) {
  v1::DescribeRequest message;
  Status status = SetRope(request.rope, "rope", *message.mutable_rope());
  if (!status.ok()) return status;
  if (request.seq_len.has_value()) message.set_seq_len(*request.seq_len);
  message.mutable_positions()->Add(request.positions.begin(), request.positions.end());
  if (request.head_dim.has_value()) message.set_head_dim(*request.head_dim);
  if (request.dtype.has_value()) message.set_dtype(ToMessage(*request.dtype));
  message.set_sinusoidal(request.sinusoidal);
  return message;
}

namespace {

AttentionScale FromMessage(const v1::AttentionScale& message) {
  return {.softmax = message.softmax(),
          .logits = message.logits(),
          .temperature_beta = message.temperature_beta(),
          .temperature_length = message.temperature_length(),
          .temperature_offset = message.temperature_offset()};
}

}  // namespace

Result<DescribeReply> FromMessage(const v1::DescribeResponse& message) {
  absl::StatusOr<RopeConfig> config = proto::ReadRopeConfig(message.config());
  if (!config.ok()) return BadConfig(config.status());
  DescribeReply reply;
  reply.config_id = message.config_id();
  reply.config = *std::move(config);
  if (message.precision() == v1::PRECISION_HF) reply.config.precision = Precision::kHf;
  reply.pairing = FromMessage(message.pairing());
  reply.channel_order = FromMessage(message.channel_order());
  reply.layer_type = message.layer_type();
  reply.rotates = message.rotates();
  reply.seq_len = message.seq_len();
  reply.depends_on_seq_len = message.depends_on_seq_len();
  reply.attention_factor = message.attention_factor();
  reply.inv_freq = ToVector<double>(message.inv_freq());
  reply.wavelengths = ToVector<double>(message.wavelengths());
  reply.warnings = ToVector<std::string>(message.warnings());
  for (const v1::Reading& reading : message.readings()) {
    reply.readings.push_back({.engine = reading.implementation(),
                              .version = reading.version(),
                              .executed = reading.executed(),
                              .difference = reading.difference(),
                              .attention_factor = reading.attention_factor(),
                              .inv_freq_max_relative = reading.inv_freq_max_relative()});
  }
  if (message.has_scale()) reply.scale = FromMessage(message.scale());
  for (const v1::ScaleReading& reading : message.scale_readings()) {
    reply.scale_readings.push_back({.engine = reading.implementation(),
                                    .version = reading.version(),
                                    .executed = reading.executed(),
                                    .difference = reading.difference(),
                                    .scale = FromMessage(reading.scale())});
  }
  if (message.has_ramp()) {
    reply.ramp = {.low_index = message.ramp().low_index(),
                  .high_index = message.ramp().high_index(),
                  .low_wavelength = message.ramp().low_wavelength(),
                  .high_wavelength = message.ramp().high_wavelength()};
  }
  for (const int scaling : message.scaling()) {
    reply.scaling.push_back(static_cast<FrequencyScaling>(scaling));
  }
  reply.float32_angle_error = message.float32_angle_error();
  reply.float32_angle_position = message.float32_angle_position();
  for (const v1::Row& row : message.rows()) {
    reply.rows.push_back({.position = row.position(),
                          .cos = ToVector<double>(row.cos()),
                          .sin = ToVector<double>(row.sin()),
                          .sinusoid = ToVector<double>(row.sinusoid())});
  }
  return reply;
}

namespace {

Status SetKey(const KeySource& key, absl::string_view field, v1::KeySource& message) {
  Status status = SetRope(key.rope, field, *message.mutable_rope());
  if (!status.ok()) return status;
  message.set_engine(key.engine);
  if (key.max_model_len.has_value()) message.set_max_model_len(*key.max_model_len);
  if (key.dtype.has_value()) message.set_dtype(ToMessage(*key.dtype));
  if (key.head_dim.has_value()) message.set_head_dim(*key.head_dim);
  return {};
}

}  // namespace

Result<v1::FingerprintRequest> ToMessage(const FingerprintRequest& request) {
  v1::FingerprintRequest message;
  Status status = SetKey(request.key, "key.rope", *message.mutable_key());
  if (status.ok() && request.other.has_value()) {
    status = SetKey(*request.other, "other.rope", *message.mutable_other());
  }
  if (!status.ok()) return status;
  return message;
}

}  // namespace rope::client
