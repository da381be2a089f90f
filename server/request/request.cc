#include "server/request/request.h"

#include "absl/types/span.h"
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

// The strides of an output that is not packed, in the order of its axes. Empty: it is packed.
absl::Span<const int64_t> StridesOf(const v1::Output& output, const v1::Tensor& asked, int tensor) {
  if (output.in_place()) return asked.array().strides();
  if (tensor < output.strides_size()) return output.strides(tensor).values();
  return {};
}

// The array up to its numbers or its payload.
std::string ArrayText(const Request& request, size_t index) {
  const v1::RotateRequest& fixed = request.fixed();
  const TensorPlan& plan = request.plan.tensors[index];
  const auto tensor = static_cast<int>(index);
  std::string text;
  proto::AppendVarint(v1::Array::kDtypeFieldNumber, MessageDType(plan.output_dtype), text);
  proto::AppendPacked(v1::Array::kShapeFieldNumber, ShapeInOrder(plan.output_letters, plan.layout),
                      text);
  proto::AppendPacked(v1::Array::kStridesFieldNumber,
                      StridesOf(fixed.output(), fixed.tensors(tensor), tensor), text);
  if (plan.IsInReply()) return text;
  proto::AppendSpan(v1::Array::kRegionFieldNumber, plan.place.id, plan.place.offset, text);
  return text;
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
std::string ReplyHead(const Request& request) {
  using Response = v1::RotateResponse;
  std::string text;
  text.reserve(kReplyTextBytes);
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
  return text;
}

bool HasReplyPayload(const Request& request, size_t tensor) {
  const TensorPlan& plan = request.plan.tensors[tensor];
  return plan.IsInReply() && plan.output_bytes() > 0 && !plan.numbers;
}

// Appends a tensor, up to its payload if it has one.
void AppendReplyTensor(const Request& request, size_t tensor, std::string& text) {
  const TensorPlan& plan = request.plan.tensors[tensor];
  std::string array = ArrayText(request, tensor);
  if (plan.numbers && plan.IsInReply()) {
    proto::AppendDoubles(v1::Array::kNumbersFieldNumber,
                         NumbersOf(plan, request.run.outputs[tensor]), array);
  }
  const int64_t raw_bytes = HasReplyPayload(request, tensor) ? plan.output_bytes() : 0;
  proto::AppendTensor(v1::RotateResponse::kTensorsFieldNumber,
                      {.tensor = HeadText(request.fixed().tensors(static_cast<int>(tensor)), plan,
                                          request.run.SaturatedOf(tensor)),
                       .array = array,
                       .raw_bytes = static_cast<size_t>(raw_bytes)},
                      text);
}

}  // namespace

std::string WriteReply(const Request& request,
                       absl::FunctionRef<void(size_t tensor, std::string& text)> payload) {
  std::string text = ReplyHead(request);
  for (size_t i = 0; i < request.plan.tensors.size(); ++i) {
    AppendReplyTensor(request, i, text);
    if (HasReplyPayload(request, i)) payload(i, text);
  }
  return text;
}

}  // namespace rope::server
