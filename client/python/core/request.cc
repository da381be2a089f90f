#include "client/python/core/request.h"

#include <algorithm>

#include "client/python/core/interpreter.h"

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

constexpr const char* kOperations[] = {"rotate", "inverse", "backward", "add_sinusoidal",
                                       "reposition"};

// Three axes are SHD, four BSHD. Of others nothing is guessed.
std::string LayoutOf(const Array& array) {
  const int32_t rank = array.tensor().rank;
  if (rank == 3) return "SHD";
  if (rank == 4) return "BSHD";
  RaiseInvalid(array.name() + ".layout", "none, for " + std::to_string(rank) + " axes",
               "a letter for each axis, of B, S, T, H, L and D");
}

// Lengths of the result's axes: those of the input in the order of its layout.
std::vector<int64_t> ResultShape(const Array& array, const client::TensorView& like) {
  std::vector<int64_t> shape = array.shape();
  const std::string& layout = like.layout;
  const std::string& order = like.output_layout.empty() ? layout : like.output_layout;
  if (layout.size() != shape.size() ||
      !std::is_permutation(order.begin(), order.end(), layout.begin(), layout.end())) {
    RaiseInvalid("layout",
                 "'" + layout + "' for " + std::to_string(shape.size()) + " axes, '" + order +
                     "' for the result",
                 "a letter for each axis, the same letters for the result");
  }
  std::transform(order.begin(), order.end(), shape.begin(),
                 [&](char letter) { return array.tensor().shape[layout.find(letter)]; });
  return shape;
}

void CheckShape(const Array& array, const client::TensorView& like, c::OpenAxis& open) {
  if (c::HasShape(array.tensor(), like.layout, like.shape, &open)) return;
  std::string want = TextOf(like.shape);
  if (!open.letter.empty()) want += ", with " + open.letter + " up to that, equal in all";
  RaiseInvalid(array.name() + ".shape", TextOf(array.shape()), want);
}

}  // namespace

Request Request::OfRotation(nb::handle operation, nb::handle q, nb::handle k, bool in_place,
                            nb::handle arguments, nb::handle by, nb::handle to, nb::handle from,
                            nb::handle from_rope, bool to_prepare) {
  if (in_place) {
    WarnOfCopy(q, "q");
    WarnOfCopy(k, "k");
  }
  const Arguments given(arguments, "timeout", "request_id");
  Request call = {.in_place = in_place};
  call.options = OptionsOf(given["timeout"]);
  client::RotateRequest& request = call.request;
  request.operation = ChoiceOf<client::Operation>(operation, "operation", kOperations);
  const bool is_move = request.operation == client::Operation::kReposition;
  const char* const table = given.Any("cos", "angles");
  const bool has_table = table != nullptr;
  if (has_table && is_move && !to_prepare) {
    RaiseInvalid(table, "it", "nothing: move takes a table");
  }
  request.rope = given.Rope(has_table);
  if (has_table) {
    client::Rows& rows = request.rows.emplace();
    for (const auto& [name, row] :
         {std::pair(Argument("cos"), &rows.cos), std::pair(Argument("sin"), &rows.sin),
          std::pair(Argument("angles"), &rows.angles)}) {
      if (given.has(name)) *row = call.Packed(given[name], name.name());
    }
  }
  if (in_place && given.has("output_dtype")) {
    RaiseInvalid("output_dtype", nb::str(given["output_dtype"]).c_str(),
                 "none for a call in place");
  }
  request.output_dtype = given.DTypeOf("output_dtype");
  request.channel_order = given.PairingOf("channel_order");
  request.skip_attention_factor = static_cast<bool>(nb::bool_(given["skip_attention_factor"]));
  call.gpu.queue.positions_max = given.IntegerOf("positions_max").value_or(0);
  request.request_id = given.TextOf("request_id");
  const std::string layout = given.TextOf("layout");
  if (!q.is_none()) call.Add("q", q, layout);
  if (!k.is_none()) call.Add("k", k, layout);
  if (call.filled.empty()) RaiseInvalid("q, k", "none", "at least one of them");
  const Argument last = to_prepare ? Argument("context_parallel") : Argument("positions_outside");
  // After the tensors, because on a GPU these decide about the stream.
  if (!is_move && !to_prepare) {
    request.positions = given.Positions(has_table, call.gpu);
  } else if (const char* const name = given.Any("start", last)) {
    RaiseInvalid(name, "it", "nothing: this call has no positions of that kind, nor lengths");
  } else if (is_move) {
    call.AddDistance(given, by, to, from, from_rope);
  } else {
    request.positions.start = 0;
  }
  call.SetResult();
  return call;
}

// With lengths a difference is one of positions, which have them.
void Request::AddDistance(const Arguments& given, nb::handle by, nb::handle to, nb::handle from,
                          nb::handle from_rope) {
  client::Reposition& move = request.reposition.emplace();
  if (by.is_none()) {
    if (to.is_none() || from.is_none()) RaiseInvalid("to, from_", "one or none", "both, or by");
    request.positions = PositionsOf(to, "to");
    move.from = PositionsOf(from, "from_");
    if (!from_rope.is_none()) {
      move.from_rope = nb::cast<client::RopeSpec>(from_rope.attr("_spec"));
    }
  } else if (!to.is_none() || !from.is_none() || !from_rope.is_none()) {
    RaiseInvalid("by", "it and to, from_ or from_rope", "it alone");
  } else {
    const int64_t distance = IntegerOf(by, "by");
    if (!given.has("seq_lens")) {
      move.by = {distance};
      return;
    }
    request.positions.start = std::max<int64_t>(distance, 0);
    move.from.start = std::max<int64_t>(-distance, 0);
  }
  given.SetLengths(request.positions);
  given.SetLengths(move.from);
}

void Request::Add(const char* name, nb::handle given, const std::string& layout) {
  static const nb::handle type = Kept("ropeserve.rope", "Tensor");
  client::TensorView view;
  nb::object input = nb::borrow(given);
  nb::object norm = nb::none();
  if (Is(given, type)) {
    input = given.attr("data");
    norm = given.attr("norm");
    view = nb::cast<client::TensorView>(given.attr("_view")(name));
  } else {
    view.role = *name == 'q' ? client::Role::kQ : client::Role::kK;
  }
  const Array array(input, name, {}, &gpu);
  CheckIsNoFloat64(array, "fp32, fp16 or bf16");
  if (view.layout.empty()) view.layout = layout.empty() ? LayoutOf(array) : layout;
  view.dtype = array.dtype();
  view.shape = array.shape();
  if (!norm.is_none()) {
    view.norm = client::HeadNorm{.eps = nb::cast<double>(norm[nb::int_(1)]),
                                 .weight = Packed(norm[nb::int_(0)], array.name() + ".norm")};
  }
  AddMemory(input, array, view, request.output_dtype.value_or(view.dtype), view);
  request.tensors.push_back(std::move(view));
  names.push_back(name);
}

void Request::SetResult() {
  result = filled.size() == 1 ? filled[0] : nb::make_tuple(filled[0], filled[1]);
}

void Request::AddMemory(const nb::object& input, const Array& array, const client::TensorView& like,
                        client::DType dtype, client::TensorView& view) {
  view.data = array.tensor().data;
  view.memory = array.memory();
  view.strides = array.strides();
  arrays.push_back(array.kept());
  if (in_place) {
    CheckDType(array, dtype);
    if (!like.output_layout.empty() && like.output_layout != like.layout) {
      RaiseInvalid("output_layout", like.output_layout, like.layout + " for a call in place");
    }
    view.output = array.writable();
    view.output_strides = view.strides;
    filled.push_back(input);
    return;
  }
  const nb::object& output =
      filled.emplace_back(NewArray(input, array, ResultShape(array, like), dtype));
  const Array written(output, array.name() + "_output", {}, &gpu);
  view.output = written.writable();
  arrays.push_back(written.kept());
}

client::ArrayView Request::Borrow(nb::handle values, const std::string& name) {
  const Array array(values, name);
  arrays.push_back(array.kept());
  return array.tensor().array();
}

client::ArrayView Request::Packed(nb::handle values, const std::string& name) {
  client::ArrayView view = Borrow(values, name);
  if (view.strides.empty()) return view;
  RaiseInvalid(name + ".strides", TextOf(view.strides), "a contiguous array");
}

void WarnOfCopy(nb::handle array, const char* name) {
  static const auto alone = nb::cast<Py_ssize_t>(Imported("ropeserve.client", "_TEMPORARY"));
  if (Py_REFCNT(array.ptr()) != alone) return;
  Imported("ropeserve.client", "_warn_of_copies")(name, array);
}

Request Prepared::Values(const nb::tuple& arrays, nb::handle q, nb::handle k, bool in_place,
                         nb::handle from, nb::handle timeout, nb::handle positions) const {
  for (const auto& [name, array] : {std::pair("q", q), std::pair("k", k)}) {
    if (array.is_none() || std::ranges::count(names_, name) > 0) continue;
    RaiseInvalid(name, "it", "nothing: it was not prepared");
  }
  std::vector<nb::object> inputs;  // which hold them beside `arrays`
  if (!q.is_none()) inputs.push_back(nb::borrow(q));
  for (const nb::handle array : arrays) {
    if (!array.is_none()) inputs.push_back(nb::borrow(array));
  }
  if (!k.is_none()) inputs.push_back(nb::borrow(k));
  const std::vector<client::Preparation::Tensor>& tensors = preparation().tensors();
  if (inputs.size() != tensors.size()) {
    RaiseInvalid("arrays", std::to_string(inputs.size()), std::to_string(tensors.size()));
  }
  for (size_t i = 0; in_place && i < inputs.size(); ++i) WarnOfCopy(inputs[i], "arrays");
  const Arguments given(positions, "start", "context_parallel");
  Request call = {.in_place = in_place};
  call.options = OptionsOf(timeout);
  call.gpu.queue.positions_max = positions_max_;
  if (!from.is_none()) {
    client::Reposition& move = call.request.reposition.emplace();
    move.from = PositionsOf(from, "from_");
    given.SetLengths(move.from);
  }
  c::OpenAxis open = {.letter = preparation().message().open_axis()};
  call.request.tensors.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const client::TensorView& view = tensors[i].view;
    const nb::object& input = inputs[i];
    if (!in_place && !nb::hasattr(input, "shape")) {
      RaiseInvalid("arrays", nb::cast<std::string>(input.type().attr("__name__")), "arrays");
    }
    const Array array(input, names_[i], {}, &call.gpu);
    CheckDType(array, view.dtype);
    CheckShape(array, view, open);
    call.AddMemory(input, array, view, tensors[i].wanted.dtype,
                   call.request.tensors.emplace_back());
  }
  call.request.positions = given.Positions(false, call.gpu);
  call.SetResult();
  call.request.prepared = open.length.has_value() ? rotation_.WithLength(*open.length) : rotation_;
  return call;
}

}  // namespace rope::python
