#include "client/codec/preparation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/codec/message_call.h"
#include "client/error.h"
#include "rope/v1/prepare.pb.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {
namespace {

// Whether a tensor has no more than `data` and `output`, and strides of both.
bool IsMemoryAlone(const TensorView& view) {
  static const TensorView empty;
  return view.role == empty.role && view.layout.empty() && view.dtype == empty.dtype &&
         view.shape.empty() && view.head_ranges.empty() && view.output_layout.empty() &&
         !view.norm.has_value() && !view.scale.has_value() &&
         !view.llama4_scaling_beta.has_value() && !view.fp8_scale.has_value() &&
         !view.rotary_offset.has_value();
}

}  // namespace

Result<std::shared_ptr<const Preparation>> Preparation::Create(const RotateRequest& request,
                                                               std::string open_axis) {
  std::shared_ptr<Preparation> preparation(new Preparation());
  RotateRequest& constants = preparation->constants_;
  constants.rope = request.rope;
  constants.operation = request.operation;
  if (request.reposition.has_value()) {
    constants.reposition = Reposition{.from_rope = request.reposition->from_rope};
  }
  constants.skip_attention_factor = request.skip_attention_factor;
  constants.output_dtype = request.output_dtype;
  constants.channel_order = request.channel_order;
  preparation->open_axis_ = std::move(open_axis);
  preparation->tensors_.reserve(request.tensors.size());
  preparation->weights_.reserve(request.tensors.size());
  for (const TensorView& view : request.tensors) {
    if (Status status = preparation->AddTensor(view); !status.ok()) return status;
  }
  return std::shared_ptr<const Preparation>(std::move(preparation));
}

Status Preparation::AddTensor(const TensorView& view) {
  const size_t index = tensors_.size();
  Tensor tensor{.view = view};
  tensor.view.data = nullptr;
  tensor.view.output = nullptr;
  const Result<int64_t> bytes = TensorBytes(view, index);
  if (!bytes.ok()) return bytes.status();
  tensor.bytes = *bytes;
  Result<WantedTensor> wanted = WantedOf(tensor.view, constants_.output_dtype, index);
  if (!wanted.ok()) return wanted.status();
  tensor.wanted = *std::move(wanted);
  if (view.norm.has_value()) {
    v1::Tensor checked;  // holds the weight, if it is one
    if (Status status = SetTensor(tensor.view, index, checked); !status.ok()) return status;
    weights_.push_back(checked.norm().weight().raw());
    tensor.view.norm->weight.data = weights_.back().data();
  }
  tensors_.push_back(std::move(tensor));
  return {};
}

Result<grpc::ByteBuffer> Preparation::Message() const {
  v1::PrepareRequest message;
  message.set_open_axis(open_axis_);
  v1::RotateRequest& rotate = *message.mutable_rotate();
  RotateRequest whole = constants_;  // `output.layouts` depends on the tensors
  for (const Tensor& tensor : tensors_) whole.tensors.push_back(tensor.view);
  if (Status status = SetConstants(whole, rotate); !status.ok()) return status;
  SetOutputStrides(
      tensors_.size(), [this](size_t i) -> const WantedTensor& { return tensors_[i].wanted; },
      *rotate.mutable_output());
  if (rotate.output().ByteSizeLong() == 0) rotate.clear_output();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Status status = SetTensor(tensors_[i].view, i, *rotate.add_tensors());
    if (!status.ok()) return status;
  }
  return BytesOf(message);
}

RotateRequest Preparation::With(const RotateRequest& call) const {
  RotateRequest request = constants_;
  request.request_id = call.request_id;
  request.labels = call.labels;
  request.positions = call.positions;
  if (call.reposition.has_value()) {
    if (!request.reposition.has_value()) request.reposition.emplace();
    request.reposition->from = call.reposition->from;
  }
  const std::optional<int64_t> length = LengthOf(call);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TensorView& view = request.tensors.emplace_back(tensors_[i].view);
    if (length.has_value()) view = WithLength(std::move(view), *length);
    view.data = call.tensors[i].data;
    view.output = call.tensors[i].output;
    if (!HasStrides(call.tensors[i])) continue;
    view.strides = call.tensors[i].strides;
    view.output_strides = call.tensors[i].output_strides;
  }
  return request;
}

TensorView Preparation::WithLength(TensorView view, int64_t length) const {
  const size_t axis = view.layout.find(open_axis_);
  if (axis < view.shape.size()) view.shape[axis] = length;
  return view;
}

Result<std::vector<Preparation::Tensor>> Preparation::TensorsOf(int64_t length) const {
  std::vector<Tensor> tensors;
  tensors.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors.emplace_back();
    tensor.view = WithLength(tensors_[i].view, length);
    const Result<int64_t> bytes = TensorBytes(tensor.view, i);
    if (!bytes.ok()) return bytes.status();
    tensor.bytes = *bytes;
    Result<WantedTensor> wanted = WantedOf(tensor.view, constants_.output_dtype, i);
    if (!wanted.ok()) return wanted.status();
    tensor.wanted = *std::move(wanted);
  }
  return tensors;
}

std::optional<int64_t> LengthOf(const RotateRequest& request) {
  if (!request.prepared.has_value()) return std::nullopt;
  return PreparedState::LengthOf(*request.prepared);
}

Status CheckPreparedCall(const RotateRequest& request) {
  static const RotateRequest empty;
  const auto unwanted = [](absl::string_view field) {
    return InvalidField(field, "a value beside `prepared`", "none");
  };
  if (request.rope != empty.rope) return unwanted("rope");
  if (request.operation != empty.operation) return unwanted("operation");
  if (request.reposition.has_value() && request.reposition->from_rope.has_value()) {
    return unwanted("reposition.from_rope");
  }
  if (request.skip_attention_factor) return unwanted("skip_attention_factor");
  if (request.output_dtype.has_value()) return unwanted("output_dtype");
  if (request.channel_order != empty.channel_order) return unwanted("channel_order");
  if (request.rows.has_value()) return unwanted("rows");
  const Preparation& preparation = *PreparedState::Of(*request.prepared)->preparation;
  const size_t tensors = preparation.tensors().size();
  if (request.tensors.size() != tensors) {
    return InvalidField("tensors", request.tensors.size(), tensors);
  }
  for (size_t i = 0; i < tensors; ++i) {
    if (IsMemoryAlone(request.tensors[i])) continue;
    return InvalidField(absl::StrCat("tensors[", i, "]"), "more than data, output and strides",
                        "these beside `prepared`");
  }
  const std::optional<int64_t> length = LengthOf(request);
  if (!length.has_value() || preparation.has_open_axis()) return {};
  return InvalidField("prepared", absl::StrCat("length ", *length), "an open axis with a length");
}

Result<std::shared_ptr<const Preparation>> PreparationOf(const RotateRequest& request,
                                                         const std::string& open_axis) {
  if (request.prepared.has_value()) {
    return InvalidField("prepared", "a prepared rotation", "a whole request");
  }
  if (request.rows.has_value()) return InvalidField("rows", "a table", "none");
  return Preparation::Create(request, open_axis);
}

Result<std::shared_ptr<const PreparedState>> ReadPrepared(
    std::shared_ptr<const Preparation> preparation, const Result<grpc::ByteBuffer>& answer) {
  const Result<v1::PrepareResponse> message = MessageOf<v1::PrepareResponse>(answer);
  if (!message.ok()) return message.status();
  if (message->prepared_id().empty()) {
    return MakeError(Reason::kInternal, "reply: prepared_id", "nothing", "an id");
  }
  const auto& warnings = message->warnings();
  return std::make_shared<const PreparedState>(
      std::move(preparation), message->prepared_id(),
      std::vector<std::string>(warnings.begin(), warnings.end()));
}

PreparedRotation::PreparedRotation(std::shared_ptr<const PreparedState> state)
    : state_(std::move(state)) {}

// The id is no hash of a request. A server that is sent it does not know it, and the client then
// sends the whole request.
Result<PreparedRotation> PreparedRotation::CreateLocal(const RotateRequest& request,
                                                       const std::string& open_axis) {
  auto preparation = PreparationOf(request, open_axis);
  if (!preparation.ok()) return preparation.status();
  return PreparedRotation(
      std::make_shared<const PreparedState>(*std::move(preparation), std::string(32, '0')));
}

const std::string& PreparedRotation::id() const {
  return state_->id;
}

const std::vector<std::string>& PreparedRotation::warnings() const {
  return state_->warnings;
}

PreparedRotation PreparedRotation::WithLength(int64_t length) const {
  PreparedRotation rotation = *this;
  rotation.length_ = length;
  return rotation;
}

}  // namespace rope::client
