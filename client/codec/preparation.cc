#include "client/codec/preparation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/codec/message_call.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "proto/wire/rope_config.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {
namespace {

bool IsSlotsAlone(const PagedTokens& paged) {
  static const PagedTokens empty;
  return paged.block_size == empty.block_size && paged.page_stride == 0 &&
         paged.token_stride == 0 && paged.head_stride == 0 && paged.layer_stride == 0 &&
         paged.pool_elements == 0;
}

// Whether a tensor has no more than `data` and `output`, and strides of both, or slots if
// `prepared` has pages.
bool IsMemoryAlone(const TensorView& view, const TensorView& prepared) {
  static const TensorView empty;
  return view.role == empty.role && view.layout.empty() && view.dtype == empty.dtype &&
         view.shape.empty() && view.head_ranges.empty() && view.output_layout.empty() &&
         !view.norm.has_value() && !view.scale.has_value() &&
         !view.llama4_scaling_beta.has_value() && !view.fp8_scale.has_value() &&
         !view.rotary_offset.has_value() &&
         (!view.paged.has_value() || (prepared.paged.has_value() && IsSlotsAlone(*view.paged)));
}

// The rows of a call are those that were prepared, with elements. Only an open axis has another
// length.
Status CheckRows(const RotateRequest& request, const Preparation& preparation) {
  static const Rows none;
  const Rows& rows = request.rows.has_value() ? *request.rows : none;
  for (const RowArray& each : kRowArrays) {
    const std::optional<ArrayView>& view = rows.*each.view;
    const v1::Array& want = (preparation.message().rotate().rows().*each.array)();
    const bool is_alike =
        view.has_value()
            ? want.dtype() == ToMessage(view->dtype) &&
                  std::ranges::equal(want.strides(), view->strides) &&
                  (preparation.has_open_axis() || std::ranges::equal(want.shape(), view->shape))
            : want.dtype() == v1::DTYPE_UNSPECIFIED;
    if (is_alike) continue;
    return InvalidField(each.field, view.has_value() ? "another array" : "nothing",
                        "the dtype, shape and strides that were prepared");
  }
  return {};
}

Result<DType> ReadDType(v1::DType number, const std::string& field) {
  if (const auto known = DTypeNumbered(number); known.has_value()) return *known;
  return InvalidField(field, proto::DTypeName(number), "the dtype of a tensor");
}

}  // namespace

Result<std::shared_ptr<const Preparation>> Preparation::Create(const RotateRequest& request,
                                                               const std::string& open_axis) {
  if (request.prepared.has_value()) {
    return InvalidField("prepared", "a prepared rotation", "a whole request");
  }
  std::shared_ptr<Preparation> preparation(new Preparation());
  std::vector<Tensor>& tensors = *preparation->tensors_;
  preparation->output_dtype_ = request.output_dtype;
  preparation->message_.set_open_axis(open_axis);
  v1::RotateRequest& rotate = *preparation->message_.mutable_rotate();
  for (const TensorView& view : request.tensors) {
    ROPE_ASSIGN_OR_RETURN(Tensor tensor, preparation->TensorOf(view, tensors.size()));
    ROPE_RETURN_IF_ERROR(SetTensor(view, tensors.size(), *rotate.add_tensors()));
    tensors.push_back(std::move(tensor));
  }
  ROPE_RETURN_IF_ERROR(SetConstants(request, rotate));
  const auto is_strided = [](const Tensor& tensor) { return !tensor.wanted.strides.empty(); };
  if (std::ranges::any_of(tensors, is_strided)) {
    for (const Tensor& tensor : tensors) AddOutputStrides(tensor.wanted, rotate);
  }
  return std::shared_ptr<const Preparation>(std::move(preparation));
}

Result<std::shared_ptr<const Preparation>> Preparation::Create(v1::PrepareRequest message) {
  std::shared_ptr<Preparation> preparation(new Preparation());
  const v1::RotateRequest& rotate = message.rotate();
  const v1::Output& output = rotate.output();
  if (output.in_place()) {
    return InvalidField("output.in_place", "true", "output.strides, where tensors have strides");
  }
  if (output.dtype() != v1::DTYPE_UNSPECIFIED) {
    ROPE_ASSIGN_OR_RETURN(preparation->output_dtype_, ReadDType(output.dtype(), "output.dtype"));
  }
  for (int i = 0; i < rotate.tensors_size(); ++i) {
    const v1::Tensor& tensor = rotate.tensors(i);
    const v1::Array& array = tensor.array();
    TensorView view{.role = tensor.role() == v1::ROLE_K ? Role::kK : Role::kQ,
                    .layout = tensor.layout(),
                    .shape = {array.shape().begin(), array.shape().end()},
                    .strides = {array.strides().begin(), array.strides().end()}};
    ROPE_ASSIGN_OR_RETURN(view.dtype,
                          ReadDType(array.dtype(), absl::StrCat("tensors[", i, "].array.dtype")));
    if (i < output.layouts_size()) view.output_layout = output.layouts(i);
    if (tensor.has_paged_tokens()) {
      view.paged.emplace().pool_elements = tensor.paged_tokens().pool_elements();
    }
    if (i < output.strides_size()) {
      const auto& strides = output.strides(i).values();
      view.output_strides.assign(strides.begin(), strides.end());
    }
    ROPE_ASSIGN_OR_RETURN(Tensor read,
                          preparation->TensorOf(std::move(view), static_cast<size_t>(i)));
    preparation->tensors_->push_back(std::move(read));
  }
  preparation->message_ = std::move(message);
  return std::shared_ptr<const Preparation>(std::move(preparation));
}

Result<Preparation::Tensor> Preparation::TensorOf(TensorView view, size_t index) const {
  Tensor tensor{.view = std::move(view)};
  tensor.view.data = nullptr;
  tensor.view.output = nullptr;
  tensor.view.norm.reset();
  if (tensor.view.paged.has_value()) {
    tensor.view.paged = PagedTokens{.pool_elements = tensor.view.paged->pool_elements};
  }
  ROPE_ASSIGN_OR_RETURN(tensor.bytes, TensorBytes(tensor.view, index));
  ROPE_ASSIGN_OR_RETURN(tensor.wanted, WantedOf(tensor.view, output_dtype_, index));
  return tensor;
}

Result<Preparation::Tensors> Preparation::TensorsOf(const RotateRequest& call) const {
  const std::optional<int64_t> length = PreparedState::LengthOf(*call.prepared);
  if (!length.has_value() && std::ranges::none_of(call.tensors, HasStrides)) {
    return Tensors(tensors_);
  }
  auto changed = std::make_shared<std::vector<Tensor>>();
  for (size_t i = 0; i < tensors().size(); ++i) {
    TensorView view = tensors()[i].view;
    const size_t axis = view.layout.find(message_.open_axis());
    if (length.has_value() && axis < view.shape.size()) view.shape[axis] = *length;
    if (HasStrides(call.tensors[i])) {
      view.strides = call.tensors[i].strides;
      view.output_strides = call.tensors[i].output_strides;
    }
    ROPE_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(std::move(view), i));
    changed->push_back(std::move(tensor));
  }
  return Tensors(std::move(changed));
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
  const Preparation& preparation = *PreparedState::Of(*request.prepared)->preparation;
  ROPE_RETURN_IF_ERROR(CheckRows(request, preparation));
  const size_t tensors = preparation.tensors().size();
  if (request.tensors.size() != tensors) {
    return InvalidField("tensors", request.tensors.size(), tensors);
  }
  for (size_t i = 0; i < tensors; ++i) {
    if (IsMemoryAlone(request.tensors[i], preparation.tensors()[i].view)) continue;
    return InvalidField(absl::StrCat("tensors[", i, "]"),
                        "more than data, output, and strides or slots", "these beside `prepared`");
  }
  const std::optional<int64_t> length = PreparedState::LengthOf(*request.prepared);
  if (!length.has_value() || preparation.has_open_axis()) return {};
  return InvalidField("prepared", absl::StrCat("length ", *length), "an open axis with a length");
}

Result<std::shared_ptr<const PreparedState>> ReadPrepared(
    std::shared_ptr<const Preparation> preparation, const Result<grpc::ByteBuffer>& answer) {
  ROPE_ASSIGN_OR_RETURN(const v1::PrepareResponse message, MessageOf<v1::PrepareResponse>(answer));
  if (message.prepared_id().empty()) {
    return MakeError(Reason::kInternal, "reply: prepared_id", "nothing", "an id");
  }
  const auto& warnings = message.warnings();
  return std::make_shared<const PreparedState>(
      std::move(preparation), message.prepared_id(),
      std::vector<std::string>(warnings.begin(), warnings.end()));
}

PreparedRotation::PreparedRotation(std::shared_ptr<const PreparedState> state)
    : state_(std::move(state)) {}

// The id is no hash of a request. A server that is sent it does not know it, and the client then
// sends the whole request.
Result<PreparedRotation> PreparedRotation::CreateLocal(const RotateRequest& request,
                                                       const std::string& open_axis) {
  ROPE_ASSIGN_OR_RETURN(auto preparation, Preparation::Create(request, open_axis));
  return PreparedRotation(
      std::make_shared<const PreparedState>(std::move(preparation), std::string(32, '0')));
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
