#include "server/request/request.h"

#include "kernels/dtype/dtype.h"
#include "kernels/dtype/element.h"
#include "proto/wire/message_join.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

// A reply is written field by field, in the order of the generated serializer: most of it is known
// without a message, and its payloads are not copied. An array is the last field of its tensor, and
// its payload the last field of the array, so that the text ends where the payload begins.

constexpr size_t kReplyTextBytes = 256;  // typical, with the headers of small tensors

void AppendStages(const StageTimes& stages, std::string& text) {
  using Message = v1::StageTimes;
  std::string message;
  message.reserve(4 * (1 + sizeof(double)));
  proto::AppendDouble(Message::kDecodeUsFieldNumber, stages.decode, message);
  proto::AppendDouble(Message::kValidateUsFieldNumber, stages.validate, message);
  proto::AppendDouble(Message::kQueueUsFieldNumber, stages.queue, message);
  proto::AppendDouble(Message::kExecuteUsFieldNumber, stages.execute, message);
  proto::AppendField(v1::RotateResponse::kStageTimesFieldNumber, message, text);
}

// The tensor up to its array.
std::string HeadText(const v1::Tensor& asked, const TensorPlan& plan,
                     const std::atomic<int64_t>* saturated) {
  std::string text;
  proto::AppendVarint(v1::Tensor::kRoleFieldNumber, asked.role(), text);
  if (!plan.output_letters.empty()) {
    proto::AppendField(v1::Tensor::kLayoutFieldNumber, plan.output_letters, text);
  }
  for (const v1::HeadRange& range : asked.head_ranges()) {
    proto::AppendField(v1::Tensor::kHeadRangesFieldNumber, range.SerializeAsString(), text);
  }
  if (kernels::IsFloat8(plan.output_dtype)) {
    const double scale = plan.output_scale;
    proto::AppendDoubles(v1::Tensor::kFp8ScalesFieldNumber, {&scale, 1}, text);
  }
  if (saturated != nullptr) {
    proto::AppendVarint(v1::Tensor::kSaturatedFieldNumber, static_cast<uint64_t>(*saturated), text);
  }
  return text;
}

std::vector<double> NumbersOf(const TensorPlan& plan, const PooledBuffer& output) {
  const auto* const elements = reinterpret_cast<const uint8_t*>(output.data());
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(plan.elements()));
  for (int64_t i = 0; i < plan.elements(); ++i) {
    const int64_t offset = i * kernels::ElementBytes(plan.output_dtype);
    numbers.push_back(kernels::ReadElement(elements + offset, plan.output_dtype));
  }
  return numbers;
}

// The reply without its tensors.
void AppendHead(const Request& request, std::string& text) {
  using Response = v1::RotateResponse;
  const std::string& id = request.arrival.id;
  if (!id.empty()) proto::AppendField(Response::kRequestIdFieldNumber, id, text);
  proto::AppendDouble(Response::kAttentionFactorFieldNumber, request.plan.attention_factor, text);
  proto::AppendVarint(Response::kAttentionFactorAppliedFieldNumber,
                      request.plan.attention_factor_applied ? 1 : 0, text);
  if (!request.run.device.empty()) {
    proto::AppendField(Response::kDeviceFieldNumber, request.run.device, text);
  }
  AppendStages(request.stages, text);
  for (const std::string& warning : request.plan.warnings) {
    proto::AppendField(Response::kWarningsFieldNumber, warning, text);
  }
}

bool HasReplyPayload(const TensorPlan& plan) {
  return plan.IsInReply() && plan.output_bytes() > 0 && !plan.numbers;
}

// Appends a tensor, up to its payload if it has one.
void AppendReplyTensor(const Request& request, size_t index, std::string& text) {
  using Array = v1::Array;
  const TensorPlan& plan = request.plan.tensors[index];
  const auto number = static_cast<int>(index);
  const v1::Tensor& asked = request.fixed().tensors(number);
  const v1::Output& output = request.fixed().output();
  std::string array;
  proto::AppendVarint(Array::kDtypeFieldNumber, MessageDType(plan.output_dtype), array);
  proto::AppendPacked(Array::kShapeFieldNumber, ShapeInOrder(plan.output_letters, plan.layout),
                      array);
  if (output.in_place()) {
    proto::AppendPacked(Array::kStridesFieldNumber, asked.array().strides(), array);
  } else if (number < output.strides_size()) {
    proto::AppendPacked(Array::kStridesFieldNumber, output.strides(number).values(), array);
  }
  if (!plan.IsInReply()) {
    proto::AppendSpan(Array::kRegionFieldNumber, plan.place.id, plan.place.offset, array);
  } else if (plan.numbers) {
    proto::AppendDoubles(Array::kNumbersFieldNumber, NumbersOf(plan, request.run.outputs[index]),
                         array);
  }
  const int64_t raw_bytes = HasReplyPayload(plan) ? plan.output_bytes() : 0;
  proto::AppendTensor(v1::RotateResponse::kTensorsFieldNumber,
                      {.tensor = HeadText(asked, plan, request.run.SaturatedOf(index)),
                       .array = array,
                       .raw_bytes = static_cast<size_t>(raw_bytes)},
                      text);
}

}  // namespace

std::string WriteReply(const Request& request,
                       absl::FunctionRef<void(size_t tensor, std::string& text)> payload) {
  std::string text;
  text.reserve(kReplyTextBytes);
  AppendHead(request, text);
  for (size_t i = 0; i < request.plan.tensors.size(); ++i) {
    AppendReplyTensor(request, i, text);
    if (HasReplyPayload(request.plan.tensors[i])) payload(i, text);
  }
  return text;
}

}  // namespace rope::server
