#include "client/python/core/request.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "client/python/core/errors.h"

namespace rope::python {

namespace nb = nanobind;

std::string TextOf(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

namespace {

// As Python names it.
std::string NameOf(client::DType dtype) {
  return nb::cast<std::string>(nb::cast(dtype).attr("name"));
}

// Lengths of the result's axes: those of the input in the order of its layout.
std::vector<int64_t> ResultShape(const client::TensorView& view) {
  if (view.output_layout.empty()) return view.shape;
  std::vector<int64_t> shape;
  for (const char letter : view.output_layout) {
    const size_t axis = view.layout.find(letter);
    if (axis >= view.shape.size()) {
      RaiseInvalid("output_layout", view.output_layout, "the letters of " + view.layout);
    }
    shape.push_back(view.shape[axis]);
  }
  return shape;
}

// The result of a call in place has the place of its input.
void CheckInPlace(const client::TensorView& view, const Array& array, client::DType result) {
  CheckDType(array, result);
  if (view.output_layout.empty() || view.output_layout == view.layout) return;
  RaiseInvalid("output_layout", view.output_layout, view.layout + " for a call in place");
}

}  // namespace

void CheckDType(const Array& array, client::DType want) {
  if (array.dtype() != want)
    RaiseInvalid(array.name() + ".dtype", NameOf(array.dtype()), NameOf(want));
}

void Request::Add(client::TensorView view, const std::string& name, nb::handle input,
                  nb::handle output, nb::handle norm) {
  const Array array(input, name);
  view.dtype = array.dtype();
  if (view.dtype == client::DType::kFloat64) {
    RaiseInvalid(name + ".dtype", "float64",
                 "fp32, fp16 or bf16, such as " + name + ".astype(\"float32\")");
  }
  view.shape = array.shape();
  view.strides = array.strides();
  view.data = array.tensor().data;
  arrays.push_back(array.kept());
  const client::DType result_dtype = request.output_dtype.value_or(view.dtype);
  if (output.is(input)) {
    CheckInPlace(view, array, result_dtype);
    view.output = array.writable();
    view.output_strides = view.strides;
  } else {
    const Array result(output, name + "_output");
    CheckDType(result, result_dtype);
    if (result.shape() != ResultShape(view)) {
      RaiseInvalid(result.name() + ".shape", TextOf(result.shape()), TextOf(ResultShape(view)));
    }
    view.output = result.writable();
    view.output_strides = result.strides();
    arrays.push_back(result.kept());
  }
  if (!norm.is_none()) {
    view.norm = client::HeadNorm{.eps = nb::cast<double>(norm[nb::int_(1)]),
                                 .weight = Packed(norm[nb::int_(0)], name + ".norm")};
  }
  names.push_back(name);
  request.tensors.push_back(std::move(view));
}

void Request::AddRows(const std::string& name, nb::handle values) {
  if (!request.rows.has_value()) request.rows.emplace();
  client::Rows& rows = *request.rows;
  (name == "cos" ? rows.cos : name == "sin" ? rows.sin : rows.angles) = Packed(values, name);
}

client::ArrayView Request::Packed(nb::handle values, const std::string& name) {
  const Array array(values, name);
  if (array.tensor().strides != nullptr) {
    RaiseInvalid(name + ".strides", TextOf(array.strides()), "a contiguous array");
  }
  arrays.push_back(array.kept());
  return {.dtype = array.dtype(), .shape = array.shape(), .data = array.tensor().data};
}

Prepared::Prepared(client::PreparedRotation rotation, const Request& request,
                   const std::string& open_axis)
    : rotation_(std::move(rotation)),
      tensors_(request.request.tensors),
      names_(request.names),
      output_dtype_(request.request.output_dtype),
      open_axis_(open_axis) {
  for (client::TensorView& view : tensors_) {
    view.data = nullptr;
    view.norm.reset();
  }
}

std::vector<std::pair<std::string, std::string>> Prepared::Layouts() const {
  std::vector<std::pair<std::string, std::string>> layouts;
  for (const client::TensorView& view : tensors_) {
    layouts.emplace_back(view.layout, view.output_layout);
  }
  return layouts;
}

Request Prepared::Values(const nb::tuple& inputs, const nb::tuple& outputs,
                         client::Positions positions, std::optional<client::Positions> from) const {
  if (inputs.size() != tensors_.size()) {
    RaiseInvalid("arrays", std::to_string(inputs.size()), std::to_string(tensors_.size()));
  }
  Request call;
  std::optional<int64_t> length;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Add(i, inputs[i], outputs[i], length, call);
  }
  call.request.prepared = length.has_value() ? rotation_.WithLength(*length) : rotation_;
  call.request.positions = std::move(positions);
  if (from.has_value()) {
    call.request.reposition = client::Reposition{.from = *std::move(from), .from_rope = {}};
  }
  return call;
}

void Prepared::Add(size_t index, nb::handle input, nb::handle output,
                   std::optional<int64_t>& length, Request& call) const {
  const client::TensorView& prepared = tensors_[index];
  const Array array(input, names_[index]);
  CheckDType(array, prepared.dtype);
  CheckShape(array, prepared.layout, prepared.shape, length);
  client::TensorView view;
  view.data = array.tensor().data;
  view.strides = array.strides();
  call.arrays.push_back(array.kept());
  const client::DType result_dtype = output_dtype_.value_or(prepared.dtype);
  if (output.is(input)) {
    CheckInPlace(prepared, array, result_dtype);
    view.output = array.writable();
    view.output_strides = view.strides;
  } else {
    const Array result(output, names_[index] + "_output");
    CheckDType(result, result_dtype);
    CheckShape(result, prepared.output_layout.empty() ? prepared.layout : prepared.output_layout,
               ResultShape(prepared), length);
    view.output = result.writable();
    view.output_strides = result.strides();
    call.arrays.push_back(result.kept());
  }
  call.request.tensors.push_back(std::move(view));
}

void Prepared::CheckShape(const Array& array, const std::string& layout,
                          const std::vector<int64_t>& shape, std::optional<int64_t>& length) const {
  const c::DlpackView& tensor = array.tensor();
  bool same = static_cast<size_t>(tensor.rank) == shape.size() && layout.size() == shape.size();
  for (size_t i = 0; same && i < shape.size(); ++i) {
    if (open_axis_.empty() || layout[i] != open_axis_[0]) {
      same = tensor.shape[i] == shape[i];
    } else {
      same = tensor.shape[i] <= shape[i] && tensor.shape[i] == length.value_or(tensor.shape[i]);
      length = tensor.shape[i];
    }
  }
  if (!same) {
    RaiseInvalid(
        array.name() + ".shape", TextOf(array.shape()),
        TextOf(shape) +
            (open_axis_.empty() ? "" : ", with " + open_axis_ + " up to that, equal in all"));
  }
}

}  // namespace rope::python
