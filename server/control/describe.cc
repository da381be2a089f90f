#include "server/control/describe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "kernels/compat/rope_readings.h"
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

absl::StatusOr<int64_t> SeqLenOf(const v1::DescribeRequest& request) {
  if (request.has_seq_len()) {
    if (request.seq_len() < 1 || request.seq_len() > limits::kSeqLenMax) {
      return InvalidField("seq_len", request.seq_len(),
                          absl::StrCat("a length from 1 to ", limits::kSeqLenMax));
    }
    return request.seq_len();
  }
  int64_t length = 1;
  for (const int64_t position : request.positions()) length = std::max(length, position + 1);
  return length;
}

// Adds the cos and sin of one position. `frequencies` omits trailing columns that do not rotate;
// their cos and sin are those of angle 0.
void AddRow(const kernels::Frequencies& frequencies, int64_t columns, int64_t position,
            v1::DescribeResponse& response) {
  v1::Row& row = *response.add_rows();
  row.set_position(position);
  for (int64_t column = 0; column < columns; ++column) {
    const auto j = static_cast<size_t>(column);
    const kernels::CosSin value = j < frequencies.inv_freq.size()
                                      ? kernels::CosSinAt(frequencies, j, position)
                                      : kernels::CosSin();
    row.add_cos(value.cos);
    row.add_sin(value.sin);
  }
}

// Adds the values that OPERATION_ADD_SINUSOIDAL adds to the rotated channels, in their order.
void AddSinusoid(kernels::Pairing pairing, v1::Row& row) {
  if (pairing == kernels::Pairing::kHalf) {
    *row.mutable_sinusoid() = row.sin();
    row.mutable_sinusoid()->MergeFrom(row.cos());
    return;
  }
  for (int i = 0; i < row.sin_size(); ++i) {
    row.add_sinusoid(row.sin(i));
    row.add_sinusoid(row.cos(i));
  }
}

absl::Status AddRows(const RopeEntry& entry, const kernels::ResolvedRope& resolved,
                     const v1::DescribeRequest& request, v1::DescribeResponse& response) {
  kernels::RowUse use;
  ROPE_ASSIGN_OR_RETURN(use.dtype, ReadRowDType(request.dtype(), resolved.config().precision));
  if (request.sinusoidal()) {
    ROPE_RETURN_IF_ERROR(CheckSinusoidal(resolved));
    if (!entry.pairing().has_value()) {
      return InvalidField("rope.pairing", "nothing",
                          "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
    }
  }
  const auto frequencies =
      resolved.ForSeqLen(response.seq_len(), kernels::Multiplier::kAttentionFactor, use);
  for (const int64_t position : request.positions()) {
    AddRow(*frequencies, resolved.rotary_dim() / 2, position, response);
    if (!request.sinusoidal()) continue;
    AddSinusoid(*entry.pairing(), *response.mutable_rows(response.rows_size() - 1));
  }
  return absl::OkStatus();
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

// Adds the scaling of each frequency, the ramp, and the error that float32 angles would have.
void AddScaling(const kernels::ResolvedRope& resolved,
                const kernels::ResolvedRope::AtSeqLen& evaluated, v1::DescribeResponse& response) {
  for (const kernels::ColumnScaling scaling : kernels::ScalingOf(resolved, evaluated)) {
    response.add_scaling(WriteScaling(scaling));
  }
  if (const auto ramp = kernels::RampOf(resolved); ramp.has_value()) {
    v1::Ramp& message = *response.mutable_ramp();
    message.set_low_index(ramp->low_index);
    message.set_high_index(ramp->high_index);
    message.set_low_wavelength(ramp->low_wavelength);
    message.set_high_wavelength(ramp->high_wavelength);
  }
  constexpr int64_t kPositionMax = int64_t{1} << 31;
  const int64_t length = resolved.config().max_position_embeddings.value_or(response.seq_len());
  const int64_t position = std::min(length - 1, kPositionMax);
  response.set_float32_angle_position(position);
  response.set_float32_angle_error(kernels::Float32AngleError(evaluated, position));
}

void AddReadings(const RopeEntry& entry, const kernels::ResolvedRope& resolved,
                 v1::DescribeResponse& response) {
  for (const kernels::Reading& reading :
       kernels::Readings(entry.stated_config(), entry.names(), resolved, response.seq_len())) {
    v1::Reading& message = *response.add_readings();
    message.set_implementation(reading.engine);
    message.set_version(reading.version);
    message.set_difference(reading.difference);
    message.set_attention_factor(reading.attention_factor);
    message.set_inv_freq_max_relative(reading.inv_freq_max_relative);
  }
}

void AddNumbers(const kernels::ResolvedRope& resolved, v1::DescribeResponse& response) {
  const auto at = resolved.Evaluate(response.seq_len());
  *response.mutable_config() = WriteRopeConfig(resolved.config());
  response.set_precision(WritePrecision(resolved.config().precision));
  response.set_depends_on_seq_len(resolved.DependsOnSeqLen());
  response.set_attention_factor(resolved.attention_factor());
  for (const kernels::InverseFrequency frequency : at.inv_freq) {
    response.add_inv_freq(static_cast<double>(frequency));
    response.add_wavelengths(
        frequency == 0
            ? std::numeric_limits<double>::infinity()
            : static_cast<double>(2 * std::numbers::pi_v<long double> / std::abs(frequency)));
  }
  AddScaling(resolved, at, response);
}

}  // namespace

absl::StatusOr<v1::DescribeResponse> Describe(const v1::DescribeRequest& request,
                                              ModelRegistry& registry) {
  ROPE_ASSIGN_OR_RETURN(const auto entry, registry.Find(request.rope()));
  ROPE_RETURN_IF_ERROR(CheckPositions(request));
  v1::DescribeResponse response;
  ROPE_ASSIGN_OR_RETURN(const int64_t seq_len, SeqLenOf(request));
  response.set_seq_len(seq_len);
  response.set_config_id(entry->config_id());
  response.set_pairing(WritePairing(entry->pairing()));
  response.set_channel_order(WritePairing(entry->layer().channel_order));
  response.set_layer_type(entry->layer().layer_type);
  response.set_rotates(entry->layer().rotates);
  for (const std::string& warning : entry->warnings()) response.add_warnings(warning);
  if (!entry->layer().rotates) return response;
  std::optional<int64_t> head_dim;
  if (request.has_head_dim()) head_dim = request.head_dim();
  ROPE_ASSIGN_OR_RETURN(const auto resolved, entry->Resolve(head_dim));
  if (head_dim.has_value() && resolved->head_dim() != *head_dim) {
    return InvalidField("head_dim", *head_dim, absl::StrCat("the config's ", resolved->head_dim()));
  }
  AddNumbers(*resolved, response);
  ROPE_RETURN_IF_ERROR(AddRows(*entry, *resolved, request, response));
  AddReadings(*entry, *resolved, response);
  return response;
}

}  // namespace rope::server
