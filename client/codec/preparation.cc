#include "client/codec/preparation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "client/codec/message_call.h"
#include "client/error.h"
#include "rope/v1/prepare.pb.h"

namespace rope::client {
namespace {

bool SameBits(double a, double b) {
  return absl::bit_cast<uint64_t>(a) == absl::bit_cast<uint64_t>(b);
}

bool SameBits(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a.has_value() || SameBits(*a, *b));
}

// REQUIRES: `ours` has its data.
bool SameArray(const ArrayView& ours, const ArrayView& other) {
  if (ours.dtype != other.dtype || ours.shape != other.shape) return false;
  int64_t bytes = ElementBytes(ours.dtype);
  for (const int64_t length : ours.shape) bytes *= length;
  if (bytes == 0) return true;
  return other.data != nullptr &&
         std::memcmp(ours.data, other.data, static_cast<size_t>(bytes)) == 0;
}

bool SameNorm(const std::optional<HeadNorm>& ours, const std::optional<HeadNorm>& other) {
  if (ours.has_value() != other.has_value()) return false;
  return !ours.has_value() ||
         (SameBits(ours->eps, other->eps) && SameArray(ours->weight, other->weight));
}

// What differs most often comes first.
bool SameTensor(const TensorView& ours, const TensorView& other) {
  return ours.shape == other.shape && ours.dtype == other.dtype && ours.role == other.role &&
         ours.layout == other.layout && ours.strides == other.strides &&
         ours.head_ranges == other.head_ranges && ours.output_layout == other.output_layout &&
         ours.rotary_offset == other.rotary_offset && SameBits(ours.scale, other.scale) &&
         SameBits(ours.llama4_scaling_beta, other.llama4_scaling_beta) &&
         SameBits(ours.fp8_scale, other.fp8_scale) && SameNorm(ours.norm, other.norm);
}

bool SameReposition(const std::optional<Reposition>& ours, const std::optional<Reposition>& other) {
  if (ours.has_value() != other.has_value()) return false;
  return !ours.has_value() || ours->from_rope == other->from_rope;
}

}  // namespace

RotateValues::RotateValues(const RotateRequest& request)
    : request_id(request.request_id), labels(request.labels), positions(request.positions) {
  if (request.reposition.has_value()) from = request.reposition->from;
  tensors.reserve(request.tensors.size());
  for (const TensorView& view : request.tensors) tensors.push_back({view.data, view.output});
  length = LengthOf(request);
}

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
  tensor.wanted = WantedOf(tensor.view, constants_.output_dtype);
  if (view.norm.has_value()) {
    v1::Tensor checked;  // holds the weight, if it is one
    if (Status status = SetTensor(tensor.view, index, checked); !status.ok()) return status;
    weights_.push_back(checked.norm().weight().raw());
    tensor.view.norm->weight.data = weights_.back().data();
  }
  tensors_.push_back(std::move(tensor));
  return {};
}

bool Preparation::Matches(const RotateRequest& request) const {
  if (has_open_axis() || request.prepared.has_value() || request.rows.has_value()) return false;
  const bool same_tensors = std::equal(
      tensors_.begin(), tensors_.end(), request.tensors.begin(), request.tensors.end(),
      [](const Tensor& ours, const TensorView& other) { return SameTensor(ours.view, other); });
  return same_tensors && constants_.operation == request.operation &&
         constants_.skip_attention_factor == request.skip_attention_factor &&
         constants_.output_dtype == request.output_dtype &&
         constants_.channel_order == request.channel_order && constants_.rope == request.rope &&
         SameReposition(constants_.reposition, request.reposition);
}

Result<grpc::ByteBuffer> Preparation::Message() const {
  v1::PrepareRequest message;
  message.set_open_axis(open_axis_);
  v1::RotateRequest& rotate = *message.mutable_rotate();
  RotateRequest whole = constants_;  // `output.layouts` depends on the tensors
  for (const Tensor& tensor : tensors_) whole.tensors.push_back(tensor.view);
  if (Status status = SetConstants(whole, rotate); !status.ok()) return status;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Status status = SetTensor(tensors_[i].view, i, *rotate.add_tensors());
    if (!status.ok()) return status;
  }
  return BytesOf(message);
}

RotateRequest Preparation::With(const RotateValues& values) const {
  RotateRequest request = constants_;
  request.request_id = values.request_id;
  request.labels = values.labels;
  request.positions = values.positions;
  if (values.from.has_value()) {
    if (!request.reposition.has_value()) request.reposition.emplace();
    request.reposition->from = *values.from;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TensorView& view = request.tensors.emplace_back(tensors_[i].view);
    if (values.length.has_value()) view = WithLength(std::move(view), *values.length);
    view.data = values.tensors[i].data;
    view.output = values.tensors[i].output;
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
    tensor.wanted = WantedOf(tensor.view, constants_.output_dtype);
  }
  return tensors;
}

std::optional<int64_t> LengthOf(const RotateRequest& request) {
  if (!request.prepared.has_value()) return std::nullopt;
  return PreparedState::LengthOf(*request.prepared);
}

Status CheckPreparedCall(const RotateRequest& request) {
  static const RotateRequest empty;
  static const TensorView empty_tensor;
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
    if (SameTensor(request.tensors[i], empty_tensor)) continue;
    return InvalidField(absl::StrCat("tensors[", i, "]"), "more than data and output",
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
  return std::make_shared<const PreparedState>(
      PreparedState{.preparation = std::move(preparation),
                    .id = message->prepared_id(),
                    .warnings = {message->warnings().begin(), message->warnings().end()}});
}

PreparedRotation::PreparedRotation(std::shared_ptr<const PreparedState> state)
    : state_(std::move(state)) {}

// The id is no hash of a request. A server that is sent it does not know it, and the client then
// sends the whole request.
Result<PreparedRotation> PreparedRotation::CreateLocal(const RotateRequest& request,
                                                       const std::string& open_axis) {
  auto preparation = PreparationOf(request, open_axis);
  if (!preparation.ok()) return preparation.status();
  return PreparedRotation(std::make_shared<const PreparedState>(
      PreparedState{.preparation = *std::move(preparation), .id = std::string(32, '0')}));
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
