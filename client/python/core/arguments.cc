#include "client/python/core/arguments.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <utility>
#include <vector>

#include "client/python/core/arrays.h"
#include "client/python/core/interpreter.h"

namespace rope::python {

namespace nb = nanobind;

namespace {

// The place of a name; that of the end: it is none of them.
size_t PlaceOf(nb::handle name) {
  // owned by the process
  static const std::vector<PyObject*> known = [] {
    std::vector<PyObject*> made;
    for (const std::string_view each : kArguments) made.push_back(Interned(each.data()).ptr());
    return made;
  }();
  const auto same = std::ranges::find(known, name.ptr());
  if (same != known.end()) return static_cast<size_t>(same - known.begin());
  const auto* const equal = std::ranges::find(kArguments, nb::cast<std::string>(name));
  return static_cast<size_t>(equal - kArguments);
}

}  // namespace

Arguments::Arguments(nb::handle given, Argument first, Argument last) {
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &value) != 0;) {
    const size_t i = PlaceOf(name);
    if (i < first.index || i > last.index) {
      PyErr_Format(PyExc_TypeError, "got an unexpected argument %R", name);
      nb::raise_python_error();
    }
    if (value != Py_None) values_[i] = value;
  }
}

nb::handle Arguments::operator[](Argument argument) const {
  return has(argument) ? at(argument) : nb::handle(Py_None);
}

const char* Arguments::Any(Argument first, Argument last) const {
  for (size_t i = first.index; i <= last.index; ++i) {
    if (values_[i].is_valid()) return kArguments[i].data();
  }
  return nullptr;
}

client::RopeSpec Arguments::Rope(bool has_table) const {
  if (has_table) {
    if (const char* const given = Any("rope", "precision")) {
      RaiseInvalid(given, "it and a table of cos and sin, or angles", "one of them");
    }
    return {.pairing = PairingOf("pairing")};
  }
  static const nb::handle type = Kept("ropeserve.rope", "Rope");
  static const nb::handle warnings = Interned("_warnings"), spec = Interned("_spec");
  nb::object rope = nb::borrow((*this)["rope"]);
  if (!rope.type().is(type) || has("pairing") || Any("model", "precision") != nullptr) {
    nb::dict given;
    for (size_t i = Argument("pairing").index; i <= Argument("precision").index; ++i) {
      if (values_[i].is_valid()) given[kArguments[i].data()] = values_[i];
    }
    rope = Imported("ropeserve.client", "_rope_of")(**given);
  }
  Warn(nb::getattr(rope, warnings));
  return nb::cast<client::RopeSpec>(nb::getattr(rope, spec));
}

std::optional<Pairing> Arguments::PairingOf(Argument argument) const {
  if (!has(argument)) return {};
  return ChoiceOf<Pairing>(at(argument), argument.name(), kPairings);
}

std::optional<client::DType> Arguments::DTypeOf(Argument argument) const {
  if (!has(argument)) return {};
  const nb::object name =
      Imported("ropeserve._arrays", "dtype_name")(at(argument), argument.name());
  return ChoiceOf<client::DType>(name, argument.name(), kDTypes);
}

std::optional<int64_t> Arguments::IntegerOf(Argument argument) const {
  if (!has(argument)) return {};
  return python::IntegerOf(at(argument), argument.name());
}

std::string Arguments::TextOf(Argument argument) const {
  std::string text;
  if (has(argument) && !nb::try_cast(at(argument), text)) {
    RaiseInvalid(argument.name(), nb::repr(at(argument)).c_str(), "a text");
  }
  return text;
}

client::Positions Arguments::Positions(bool may_be_none, Gpu& gpu) const {
  const int given = has("start") + has("starts") + has("positions");
  if (given != 1 && !(given == 0 && may_be_none)) {
    RaiseInvalid("positions", "none or several", "exactly one of start, starts and positions");
  }
  client::Positions positions;
  if (has("positions")) positions = PositionsOf(at("positions"), "positions", &gpu);
  if (has("starts")) positions.starts = IntegerArray(at("starts"), "starts", false).values;
  positions.start = IntegerOf("start");
  if (has("positions_outside")) {
    const IntegerArray count(at("positions_outside"), "positions_outside", true, &gpu);
    gpu.queue.positions_outside = static_cast<uint32_t*>(count.on_gpu);
    if (count.on_gpu == nullptr || count.bytes != 4) {
      RaiseInvalid("positions_outside", "another array", "an int32 on the GPU of the tensors");
    }
  }
  SetLengths(positions);
  return positions;
}

void Arguments::SetLengths(client::Positions& positions) const {
  for (const auto& [argument, lengths] :
       {std::pair(Argument("seq_lens"), &positions.seq_lens),
        std::pair(Argument("cu_seqlens"), &positions.cu_seqlens)}) {
    if (has(argument)) *lengths = IntegerArray(at(argument), argument.name(), false).values;
  }
  if (!has("context_parallel")) return;
  std::pair<int32_t, int32_t> part;
  if (!nb::try_cast(at("context_parallel"), part)) {
    RaiseInvalid("context_parallel", nb::repr(at("context_parallel")).c_str(), "(rank, size)");
  }
  positions.cp_rank = part.first;
  positions.cp_size = part.second;
}

size_t IndexOf(nb::handle name, const std::string& field, std::span<const char* const> names) {
  for (size_t i = 0; PyUnicode_Check(name.ptr()) != 0 && i < names.size(); ++i) {
    if (PyUnicode_CompareWithASCIIString(name.ptr(), names[i]) == 0) return i;
  }
  std::string all = names[0];
  for (const char* const each : names.subspan(1)) all += std::string(", ") + each;
  RaiseInvalid(field, nb::repr(name).c_str(), "one of " + all);
}

client::CallOptions OptionsOf(nb::handle timeout_seconds) {
  client::CallOptions options;
  if (timeout_seconds.is_none()) return options;
  constexpr double kDaySeconds = 24 * 60 * 60;
  const double seconds = PyFloat_AsDouble(timeout_seconds.ptr());
  if (seconds == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  if (!(seconds >= 0)) RaiseInvalid("timeout", std::to_string(seconds), "seconds, 0 or more");
  options.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, kDaySeconds) * 1000));
  return options;
}

client::Positions PositionsOf(nb::handle given, const char* name, Gpu* gpu) {
  IntegerArray integers(given, name, gpu == nullptr, gpu);
  client::Positions positions;
  if (integers.shape.empty()) {
    positions.start = integers.values.front();
    return positions;
  }
  positions.position_ids = std::move(integers.values);
  positions.position_ids_shape = std::move(integers.shape);
  positions.device_ids = integers.on_gpu;
  positions.device_id_bytes = integers.bytes;
  if (gpu != nullptr) gpu->positions = std::move(integers.kept);
  return positions;
}

void Warn(nb::handle texts) {
  if (nb::len(texts) > 0) Imported("ropeserve.client", "_warn")(texts);
}

}  // namespace rope::python
