#include "server/describe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/positions.h"
#include "server/rope_spec.h"

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

void AddRow(const std::vector<kernels::InverseFrequency>& inv_freq, double multiplier,
            int64_t position, v1::DescribeResponse& response) {
  v1::Row& row = *response.add_rows();
  row.set_position(position);
  for (const kernels::InverseFrequency frequency : inv_freq) {
    const kernels::CosSin value = kernels::ExactCosSin(position, frequency, multiplier);
    row.add_cos(value.cos);
    row.add_sin(value.sin);
  }
}

void AddNumbers(const kernels::ResolvedRope& resolved, const v1::DescribeRequest& request,
                v1::DescribeResponse& response) {
  const auto at = resolved.Evaluate(response.seq_len());
  *response.mutable_config() = WriteRopeConfig(resolved.config());
  response.set_depends_on_seq_len(resolved.DependsOnSeqLen());
  response.set_attention_factor(resolved.attention_factor());
  for (const kernels::InverseFrequency frequency : at.inv_freq) {
    response.add_inv_freq(static_cast<double>(frequency));
    response.add_wavelengths(
        frequency == 0 ? std::numeric_limits<double>::infinity()
                       : static_cast<double>(2 * std::numbers::pi_v<long double> / frequency));
  }
  for (const int64_t position : request.positions()) {
    AddRow(at.inv_freq, resolved.attention_factor(), position, response);
  }
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
  AddNumbers(*resolved, request, response);
  return response;
}

}  // namespace rope::server
