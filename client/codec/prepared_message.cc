#include "client/codec/prepared_message.h"

#include <utility>

#include "rope/v1/rotate.pb.h"

namespace rope::client {
namespace {

constexpr size_t kBytesUsual = 192;  // of a call with few tensors

bool HasStartOnly(const Positions& positions) {
  return positions.start.has_value() && positions.starts.empty() &&
         positions.position_ids.empty() && positions.position_ids_shape.empty() &&
         positions.cu_seqlens.empty() && positions.seq_lens.empty() &&
         !positions.cp_size.has_value() && !positions.cp_rank.has_value();
}

// A decode step has a start and nothing else. A start of 0 is written too: it is of a oneof.
Status AppendPositions(int number, const Positions& positions, absl::string_view field,
                       std::string& out) {
  if (HasStartOnly(positions)) {
    std::string body;
    proto::AppendVarint(v1::Positions::kStartFieldNumber, static_cast<uint64_t>(*positions.start),
                        body);
    if (body.empty()) body = {v1::Positions::kStartFieldNumber << 3, '\0'};
    proto::AppendField(number, body, out);
    return {};
  }
  v1::Positions message;
  if (Status status = SetPositions(positions, field, message); !status.ok()) return status;
  const std::string body = message.SerializeAsString();
  if (!body.empty()) proto::AppendField(number, body, out);
  return {};
}

Status AppendReposition(const Reposition& reposition, std::string& out) {
  std::string body;
  Status status =
      AppendPositions(v1::Reposition::kFromFieldNumber, reposition.from, "reposition.from", body);
  if (status.ok()) proto::AppendField(v1::RotateRequest::kRepositionFieldNumber, body, out);
  return status;
}

void AppendRange(int number, const PreparedMessage& message, const RegionRange& range,
                 std::string& out) {
  proto::AppendSpan(number, message.region_id, static_cast<uint64_t>(range.offset), out);
}

void AppendOutput(const PreparedMessage& message, std::string& out) {
  if (message.placement.outputs.empty()) return;
  std::string body;
  for (const RegionRange& range : message.placement.outputs) {
    AppendRange(v1::Output::kRegionsFieldNumber, message, range, body);
  }
  proto::AppendField(v1::RotateRequest::kOutputFieldNumber, body, out);
}

void AppendLabels(const RotateRequest& request, std::string& out) {
  if (request.labels.empty()) return;
  v1::RotateRequest labels;
  labels.mutable_labels()->insert(request.labels.begin(), request.labels.end());
  labels.AppendToString(&out);
}

// Appends a tensor up to the bytes of its elements, if these are sent.
void AppendTensor(const PreparedMessage& message, size_t index, std::string& out) {
  std::string array;
  if (message.has_shapes) {
    v1::Array shape;
    SetShape(message.tensors[index].view.shape, shape);
    shape.AppendToString(&array);
  }
  const std::optional<RegionRange>& range = message.placement.inputs[index];
  if (range.has_value()) AppendRange(v1::Array::kRegionFieldNumber, message, *range, array);
  const size_t raw_bytes = range.has_value() ? 0 : message.places[index].raw().size();
  proto::AppendTensor(v1::RotateRequest::kTensorsFieldNumber,
                      {.tensor = {}, .array = array, .raw_bytes = raw_bytes}, out);
}

}  // namespace

Result<std::vector<proto::MessagePart>> JoinPrepared(const PreparedMessage& message) {
  const RotateRequest& request = message.request;
  std::string header;
  header.reserve(kBytesUsual);
  if (!request.request_id.empty()) {
    proto::AppendField(v1::RotateRequest::kRequestIdFieldNumber, request.request_id, header);
  }
  Status status = AppendPositions(v1::RotateRequest::kPositionsFieldNumber, request.positions,
                                  "positions", header);
  if (!status.ok()) return status;
  if (request.reposition.has_value()) {
    if (status = AppendReposition(*request.reposition, header); !status.ok()) return status;
  }
  AppendOutput(message, header);
  AppendLabels(request, header);
  proto::AppendField(v1::RotateRequest::kPreparedIdFieldNumber, message.id, header);
  std::vector<proto::MessagePart> parts;
  for (size_t i = 0; i < message.places.size(); ++i) {
    AppendTensor(message, i, header);
    if (message.placement.inputs[i].has_value() || message.places[i].bytes == 0) continue;
    parts.push_back({std::move(header), message.places[i].raw()});
    header.clear();
  }
  if (!header.empty()) parts.push_back({std::move(header), {}});
  return parts;
}

}  // namespace rope::client
