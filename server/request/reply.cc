#include "server/request/reply.h"

#include <utility>

#include "kernels/dtype/dtype.h"
#include "proto/wire/message_join.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

constexpr size_t kReplyTextBytes = 256;  // typical, with the headers of small tensors

// Writes the strides of an output that is not packed, in the order of its axes.
void WriteStrides(const v1::RotateRequest& asked, int tensor, v1::Array& array) {
  if (asked.output().in_place()) {
    *array.mutable_strides() = asked.tensors(tensor).array().strides();
  } else if (tensor < asked.output().strides_size()) {
    *array.mutable_strides() = asked.output().strides(tensor).values();
  }
}

// The tensor without raw bytes, on the arena of the parsed request.
v1::Tensor& MakeTensor(Request& request, size_t index) {
  const v1::RotateRequest& asked = request.asked();
  const v1::Tensor& asked_tensor = asked.tensors(static_cast<int>(index));
  const TensorPlan& plan = request.plan.tensors[index];
  auto& tensor = *google::protobuf::Arena::CreateMessage<v1::Tensor>(&request.parsed->arena);
  tensor.set_role(asked_tensor.role());
  tensor.set_layout(plan.output_letters);
  *tensor.mutable_head_ranges() = asked_tensor.head_ranges();
  if (kernels::IsFloat8(plan.output_dtype)) tensor.add_fp8_scales(plan.output_scale);
  v1::Array& array = *tensor.mutable_array();
  array.set_dtype(MessageDType(plan.output_dtype));
  for (const int64_t length : ShapeInOrder(plan.output_letters, plan.layout)) {
    array.add_shape(length);
  }
  if (plan.place.region != nullptr) {
    array.mutable_region()->set_region_id(plan.place.id);
    array.mutable_region()->set_offset(plan.place.offset);
  } else if (!proto::HasPayload(asked_tensor.array())) {
    WriteNumbers(plan.output_dtype, request.outputs[index].data(), plan.elements(), array);
  }
  WriteStrides(asked, static_cast<int>(index), array);
  return tensor;
}

// Appends fields in the order of the generated serializer. This works because the array is the last
// field of a tensor, and the region the last field of an array.
void AppendPrepared(const PreparedTensor& prepared, const RegionPart& place, std::string& text) {
  if (place.region == nullptr) {
    text += prepared.text;
    return;
  }
  std::string span;
  proto::AppendVarint(v1::RegionSpan::kRegionIdFieldNumber, place.id, span);
  proto::AppendVarint(v1::RegionSpan::kOffsetFieldNumber, place.offset, span);
  std::string array = prepared.array;
  proto::AppendField(v1::Array::kRegionFieldNumber, span, array);
  std::string tensor = prepared.text;
  proto::AppendField(v1::Tensor::kArrayFieldNumber, array, tensor);
  proto::AppendField(v1::RotateResponse::kTensorsFieldNumber, tensor, text);
}

// Appends the stage times as the generated serializer would.
void AppendStages(const StageTimes& stages, std::string& text) {
  using Message = v1::StageTimes;
  std::string message;
  proto::AppendDouble(Message::kDecodeUsFieldNumber, stages.decode, message);
  proto::AppendDouble(Message::kValidateUsFieldNumber, stages.validate, message);
  proto::AppendDouble(Message::kQueueUsFieldNumber, stages.queue, message);
  proto::AppendDouble(Message::kExecuteUsFieldNumber, stages.execute, message);
  proto::AppendField(v1::RotateResponse::kStageTimesFieldNumber, message, text);
}

}  // namespace

std::string ReplyFactor(const Plan& plan) {
  v1::RotateResponse factor;
  factor.set_attention_factor(plan.attention_factor);
  factor.set_attention_factor_applied(plan.attention_factor_applied);
  return factor.SerializeAsString();
}

// Appends field by field in the order of the generated serializer, because most of the text exists
// already or was prepared.
std::string ReplyHead(const Request& request) {
  std::string text;
  text.reserve(kReplyTextBytes);
  if (!request.id.empty()) {
    proto::AppendField(v1::RotateResponse::kRequestIdFieldNumber, request.id, text);
  }
  text += request.prepared != nullptr ? request.prepared->reply_factor : ReplyFactor(request.plan);
  if (!request.device.empty()) {
    proto::AppendField(v1::RotateResponse::kDeviceFieldNumber, request.device, text);
  }
  AppendStages(request.stages, text);
  for (const std::string& warning : request.plan.warnings) {
    proto::AppendField(v1::RotateResponse::kWarningsFieldNumber, warning, text);
  }
  return text;
}

bool HasReplyPayload(const Request& request, size_t tensor) {
  const TensorPlan& plan = request.plan.tensors[tensor];
  return plan.place.region == nullptr && plan.output_bytes() > 0 &&
         proto::HasPayload(request.asked().tensors(static_cast<int>(tensor)).array());
}

PreparedTensor PrepareReplyTensor(Request& request, size_t tensor) {
  PreparedTensor prepared;
  if (request.plan.tensors[tensor].place.region == nullptr) {
    AppendReplyTensor(request, tensor, prepared.text);
    return prepared;
  }
  v1::Tensor& message = MakeTensor(request, tensor);
  message.mutable_array()->clear_region();
  prepared.array = message.array().SerializeAsString();
  message.clear_array();
  prepared.text = message.SerializeAsString();
  return prepared;
}

void AppendReplyTensor(Request& request, size_t tensor, std::string& text) {
  if (request.prepared != nullptr) {
    AppendPrepared(request.prepared->reply_tensors[tensor], request.plan.tensors[tensor].place,
                   text);
    return;
  }
  const int64_t raw_bytes =
      HasReplyPayload(request, tensor) ? request.plan.tensors[tensor].output_bytes() : 0;
  proto::AppendTensor(MakeTensor(request, tensor), static_cast<size_t>(raw_bytes), text);
}

}  // namespace rope::server
