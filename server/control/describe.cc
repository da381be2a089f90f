#include "server/control/describe.h"

#include <memory>
#include <optional>
#include <string>

#include "kernels/compat/rope_readings.h"
#include "kernels/describe.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/models/rope_spec.h"
#include "server/request/array_reader.h"
#include "server/request/plan_rotation.h"
#include "server/request/positions.h"

namespace rope::server {
namespace {

absl::Status CheckPositions(const v1::DescribeRequest& request) {
  if (request.positions_size() > limits::kDescribePositionsMax) {
    return InvalidField("positions", absl::StrCat(request.positions_size(), " positions"),
                        absl::StrCat("at most ", limits::kDescribePositionsMax));
  }
  for (const int64_t position : request.positions()) {
    ROPE_RETURN_IF_ERROR(CheckPosition(position, "positions"));
  }
  return absl::OkStatus();
}

absl::Status CheckSeqLen(const v1::DescribeRequest& request) {
  if (!request.has_seq_len()) return absl::OkStatus();
  if (request.seq_len() >= 1 && request.seq_len() <= limits::kSeqLenMax) return absl::OkStatus();
  return InvalidField("seq_len", request.seq_len(),
                      absl::StrCat("a length from 1 to ", limits::kSeqLenMax));
}

v1::FrequencyScaling WriteScaling(kernels::ColumnScaling scaling) {
  switch (scaling) {
    case kernels::ColumnScaling::kKept:
      return v1::FREQUENCY_SCALING_KEPT;
    case kernels::ColumnScaling::kBlended:
      return v1::FREQUENCY_SCALING_BLENDED;
    case kernels::ColumnScaling::kScaled:
      return v1::FREQUENCY_SCALING_SCALED;
    case kernels::ColumnScaling::kStill:
      return v1::FREQUENCY_SCALING_STILL;
  }
  return v1::FREQUENCY_SCALING_UNSPECIFIED;
}

void WriteRamp(const kernels::Ramp& ramp, v1::Ramp& message) {
  message.set_low_index(ramp.low_index);
  message.set_high_index(ramp.high_index);
  message.set_low_wavelength(ramp.low_wavelength);
  message.set_high_wavelength(ramp.high_wavelength);
}

void WriteReading(const kernels::Reading& reading, v1::Reading& message) {
  message.set_implementation(reading.engine);
  message.set_version(reading.version);
  message.set_difference(reading.difference);
  message.set_attention_factor(reading.attention_factor);
  message.set_inv_freq_max_relative(reading.inv_freq_max_relative);
}

void WriteRow(const kernels::DescribedRow& row, v1::Row& message) {
  message.set_position(row.position);
  message.mutable_cos()->Add(row.cos.begin(), row.cos.end());
  message.mutable_sin()->Add(row.sin.begin(), row.sin.end());
  message.mutable_sinusoid()->Add(row.sinusoid.begin(), row.sinusoid.end());
}

v1::DescribeResponse Write(const kernels::Description& description) {
  v1::DescribeResponse response;
  response.set_pairing(WritePairing(description.pairing));
  response.set_channel_order(WritePairing(description.channel_order));
  response.set_layer_type(description.layer_type);
  response.set_rotates(description.rotates);
  response.set_seq_len(description.seq_len);
  for (const std::string& warning : description.warnings) response.add_warnings(warning);
  if (!description.rotates) return response;
  *response.mutable_config() = WriteRopeConfig(description.config);
  response.set_precision(WritePrecision(description.config.precision));
  response.set_depends_on_seq_len(description.depends_on_seq_len);
  response.set_attention_factor(description.attention_factor);
  response.mutable_inv_freq()->Add(description.inv_freq.begin(), description.inv_freq.end());
  response.mutable_wavelengths()->Add(description.wavelengths.begin(),
                                      description.wavelengths.end());
  for (const kernels::ColumnScaling scaling : description.scaling) {
    response.add_scaling(WriteScaling(scaling));
  }
  if (description.ramp.has_value()) WriteRamp(*description.ramp, *response.mutable_ramp());
  response.set_float32_angle_error(description.float32_angle_error);
  response.set_float32_angle_position(description.float32_angle_position);
  for (const kernels::Reading& reading : description.readings) {
    WriteReading(reading, *response.add_readings());
  }
  for (const kernels::DescribedRow& row : description.rows) WriteRow(row, *response.add_rows());
  return response;
}

// The embedding that `entry` describes; null if the layer does not rotate.
absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> ResolveFor(
    const RopeEntry& entry, const v1::DescribeRequest& request) {
  std::shared_ptr<const kernels::ResolvedRope> resolved;
  if (!entry.layer().rotates) return resolved;
  std::optional<int64_t> head_dim;
  if (request.has_head_dim()) head_dim = request.head_dim();
  ROPE_ASSIGN_OR_RETURN(resolved, entry.Resolve(head_dim));
  if (head_dim.has_value() && resolved->head_dim() != *head_dim) {
    return InvalidField("head_dim", *head_dim, absl::StrCat("the config's ", resolved->head_dim()));
  }
  return resolved;
}

// What the request asks for, if the embedding has it.
absl::StatusOr<kernels::DescribeOptions> OptionsOf(const v1::DescribeRequest& request,
                                                   const RopeEntry& entry,
                                                   const kernels::ResolvedRope* resolved) {
  kernels::DescribeOptions options;
  options.positions = request.positions();
  if (request.has_seq_len()) options.seq_len = request.seq_len();
  if (resolved == nullptr) return options;
  ROPE_ASSIGN_OR_RETURN(options.row_dtype,
                        ReadRowDType(request.dtype(), resolved->config().precision));
  options.sinusoidal = request.sinusoidal();
  if (!options.sinusoidal) return options;
  ROPE_RETURN_IF_ERROR(CheckSinusoidal(*resolved));
  if (!entry.pairing().has_value()) {
    return InvalidField("rope.pairing", "nothing",
                        "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
  }
  return options;
}

}  // namespace

absl::StatusOr<v1::DescribeResponse> Describe(const v1::DescribeRequest& request,
                                              ModelRegistry& registry) {
  ROPE_ASSIGN_OR_RETURN(const auto entry, registry.Find(request.rope()));
  ROPE_RETURN_IF_ERROR(CheckPositions(request));
  ROPE_RETURN_IF_ERROR(CheckSeqLen(request));
  ROPE_ASSIGN_OR_RETURN(const auto resolved, ResolveFor(*entry, request));
  ROPE_ASSIGN_OR_RETURN(const kernels::DescribeOptions options,
                        OptionsOf(request, *entry, resolved.get()));
  ROPE_ASSIGN_OR_RETURN(const kernels::Description description,
                        kernels::Describe(entry->rope(), resolved.get(), options));
  v1::DescribeResponse response = Write(description);
  response.set_config_id(entry->config_id());
  return response;
}

}  // namespace rope::server
