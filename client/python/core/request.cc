#include "client/python/core/request.h"

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

void CheckDType(const Array& array, client::DType want) {
  if (array.dtype() != want) {
    RaiseInvalid(array.name() + ".dtype", Name(array.dtype()), Name(want));
  }
}

void CheckIsNoFloat64(const Array& array, const std::string& wanted) {
  if (array.dtype() != client::DType::kFloat64) return;
  RaiseInvalid(array.name() + ".dtype", "float64",
               wanted + ", such as " + array.name() + ".astype(\"float32\")");
}

namespace {

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

void CheckShape(const Array& array, const std::string& layout, const std::vector<int64_t>& shape,
                c::OpenAxis& open) {
  if (c::HasShape(array.tensor(), layout, shape, &open)) return;
  const std::string& letter = open.letter;
  RaiseInvalid(
      array.name() + ".shape", TextOf(array.shape()),
      TextOf(shape) + (letter.empty() ? "" : ", with " + letter + " up to that, equal in all"));
}

}  // namespace

void Request::Add(client::TensorView view, const std::string& name, nb::handle input,
                  nb::handle output, nb::handle norm) {
  const Array array(input, name);
  view.dtype = array.dtype();
  CheckIsNoFloat64(array, "fp32, fp16 or bf16");
  view.shape = array.shape();
  const bool in_place = output.is(input);
  const client::WantedTensor result = {
      .layout = view.output_layout.empty() ? view.layout : view.output_layout,
      .dtype = request.output_dtype.value_or(view.dtype),
      .shape = in_place ? view.shape : ResultShape(view)};
  c::OpenAxis none;
  const std::string layout = view.layout;
  AddMemory(array, in_place ? nb::none() : output, layout, result, none, std::move(view));
  if (!norm.is_none()) {
    request.tensors.back().norm =
        client::HeadNorm{.eps = nb::cast<double>(norm[nb::int_(1)]),
                         .weight = Packed(norm[nb::int_(0)], name + ".norm")};
  }
  names.push_back(name);
}

void Request::AddMemory(const Array& array, nb::handle output, const std::string& layout,
                        const client::WantedTensor& result, c::OpenAxis& open,
                        client::TensorView view) {
  view.data = array.tensor().data;
  view.strides = array.strides();
  arrays.push_back(array.kept());
  if (output.is_none()) {
    CheckDType(array, result.dtype);
    if (result.layout != layout) {
      RaiseInvalid("output_layout", result.layout, layout + " for a call in place");
    }
    view.output = array.writable();
    view.output_strides = view.strides;
  } else {
    const Array written(output, array.name() + "_output");
    CheckDType(written, result.dtype);
    CheckShape(written, result.layout, result.shape, open);
    view.output = written.writable();
    view.output_strides = written.strides();
    arrays.push_back(written.kept());
  }
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

std::vector<std::pair<std::string, std::string>> Prepared::Layouts() const {
  std::vector<std::pair<std::string, std::string>> layouts;
  for (const client::Preparation::Tensor& tensor : preparation().tensors()) {
    layouts.emplace_back(tensor.view.layout, tensor.view.output_layout);
  }
  return layouts;
}

Request Prepared::Values(const nb::tuple& inputs, const nb::tuple& outputs,
                         client::Positions positions, std::optional<client::Positions> from) const {
  const std::vector<client::Preparation::Tensor>& tensors = preparation().tensors();
  if (inputs.size() != tensors.size()) {
    RaiseInvalid("arrays", std::to_string(inputs.size()), std::to_string(tensors.size()));
  }
  Request call;
  c::OpenAxis open = {.letter = preparation().message().open_axis()};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const client::TensorView& view = tensors[i].view;
    const nb::handle input = inputs[i];
    const nb::handle output = outputs[i];
    const Array array(input, names_[i]);
    CheckDType(array, view.dtype);
    CheckShape(array, view.layout, view.shape, open);
    call.AddMemory(array, output.is(input) ? nb::none() : output, view.layout, tensors[i].wanted,
                   open, {});
  }
  call.request.prepared = open.length.has_value() ? rotation_.WithLength(*open.length) : rotation_;
  call.request.positions = std::move(positions);
  if (from.has_value()) {
    call.request.reposition = client::Reposition{.from = *std::move(from), .from_rope = {}};
  }
  return call;
}

}  // namespace rope::python
