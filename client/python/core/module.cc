// ropeserve._core: the library as Python sees it. The package around it has the names that people
// use, and their documentation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/python/core/bindings.h"
#include "client/python/core/request.h"
#include "rope/rope.h"
#include "rope/rotate.h"
#include "rope/tables.h"

namespace rope::python {
namespace {

namespace nb = nanobind;
using client::RopeSpec;
using client::TensorView;

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> Copy(const Integers& integers) {
  return {integers.data(), integers.data() + integers.size()};
}

void BindEnums(nb::module_& module) {
  nb::enum_<client::DType>(module, "DType")
      .value("fp32", client::DType::kFloat32)
      .value("fp16", client::DType::kFloat16)
      .value("bf16", client::DType::kBFloat16)
      .value("fp64", client::DType::kFloat64)
      .value("fp8_e4m3", client::DType::kFloat8E4M3)
      .value("fp8_e5m2", client::DType::kFloat8E5M2);
  nb::enum_<client::Role>(module, "Role").value("q", client::Role::kQ).value("k", client::Role::kK);
  nb::enum_<Pairing>(module, "Pairing")
      .value("half", Pairing::kHalf)
      .value("interleaved", Pairing::kInterleaved);
  nb::enum_<Compat>(module, "Compat")
      .value("default", Compat::kDefault)
      .value("hf", Compat::kHf)
      .value("vllm", Compat::kVllm)
      .value("llamacpp", Compat::kLlamacpp)
      .value("deepseek", Compat::kDeepseek);
  nb::enum_<Precision>(module, "Precision")
      .value("exact", Precision::kExact)
      .value("hf", Precision::kHf);
  nb::enum_<client::Operation>(module, "Operation")
      .value("rotate", client::Operation::kRotate)
      .value("inverse", client::Operation::kInverse)
      .value("backward", client::Operation::kBackward)
      .value("add_sinusoidal", client::Operation::kAddSinusoidal)
      .value("reposition", client::Operation::kReposition);
  nb::enum_<client::TableLayout>(module, "TableLayout")
      .value("cos_sin", client::TableLayout::kCosSin)
      .value("cos_sin_cache", client::TableLayout::kCosSinCache)
      .value("duplicated", client::TableLayout::kDuplicated)
      .value("complex", client::TableLayout::kComplex);
}

void BindSpec(nb::module_& module) {
  nb::class_<RopeSpec>(module, "RopeSpec")
      .def(nb::init<>())
      .def_rw("model", &RopeSpec::model)
      .def_rw("config_id", &RopeSpec::config_id)
      .def_rw("config_json", &RopeSpec::config_json)
      .def_rw("layer", &RopeSpec::layer, nb::arg().none())
      .def_rw("layer_type", &RopeSpec::layer_type)
      .def_rw("first_layer", &RopeSpec::first_layer, nb::arg().none())
      .def_rw("sub_config", &RopeSpec::sub_config)
      .def_rw("pairing", &RopeSpec::pairing, nb::arg().none())
      .def_rw("compat", &RopeSpec::compat)
      .def_rw("precision", &RopeSpec::precision, nb::arg().none());
}

void BindPositions(nb::module_& module) {
  using client::Positions;
  nb::class_<Positions>(module, "Positions")
      .def(nb::init<>())
      .def_rw("start", &Positions::start, nb::arg().none())
      .def_rw("cp_size", &Positions::cp_size, nb::arg().none())
      .def_rw("cp_rank", &Positions::cp_rank, nb::arg().none())
      .def("set_starts",
           [](Positions& self, const Integers& values) { self.starts = Copy(values); })
      .def("set_position_ids",
           [](Positions& self, const Integers& values, std::vector<int64_t> shape) {
             self.position_ids = Copy(values);
             self.position_ids_shape = std::move(shape);
           })
      .def("set_cu_seqlens",
           [](Positions& self, const Integers& values) { self.cu_seqlens = Copy(values); })
      .def("set_seq_lens",
           [](Positions& self, const Integers& values) { self.seq_lens = Copy(values); });
}

void AddHeads(TensorView& view, std::optional<client::Role> role, int64_t begin, int64_t end) {
  view.head_ranges.push_back({.role = role, .begin = begin, .end = end});
}

void BindRequest(nb::module_& module) {
  nb::class_<TensorView>(module, "TensorView")
      .def(nb::init<>())
      .def_rw("role", &TensorView::role)
      .def_rw("layout", &TensorView::layout)
      .def_rw("output_layout", &TensorView::output_layout)
      .def_rw("scale", &TensorView::scale, nb::arg().none())
      .def_rw("llama4_scaling_beta", &TensorView::llama4_scaling_beta, nb::arg().none())
      .def_rw("fp8_scale", &TensorView::fp8_scale, nb::arg().none())
      .def_rw("rotary_offset", &TensorView::rotary_offset, nb::arg().none())
      .def("add_heads", AddHeads, nb::arg("role").none(), nb::arg("begin"), nb::arg("end"));
  nb::class_<Request>(module, "Request")
      .def(nb::init<>())
      .def("set_rope", [](Request& self, const RopeSpec& rope) { self.request.rope = rope; })
      .def("set_positions",
           [](Request& self, client::Positions positions) {
             self.request.positions = std::move(positions);
           })
      .def("set_operation",
           [](Request& self, client::Operation operation) { self.request.operation = operation; })
      .def(
          "set_from",
          [](Request& self, client::Positions from, std::optional<RopeSpec> rope) {
            self.request.reposition = client::Reposition{std::move(from), std::move(rope)};
          },
          nb::arg("from_"), nb::arg("rope").none())
      .def("set_output_dtype",
           [](Request& self, client::DType dtype) { self.request.output_dtype = dtype; })
      .def("set_channel_order",
           [](Request& self, Pairing order) { self.request.channel_order = order; })
      .def("set_request_id",
           [](Request& self, std::string id) { self.request.request_id = std::move(id); })
      .def("skip_attention_factor",
           [](Request& self) { self.request.skip_attention_factor = true; })
      .def("add", &Request::Add, nb::arg("view"), nb::arg("name"), nb::arg("input"),
           nb::arg("output"), nb::arg("norm").none())
      .def("add_rows", &Request::AddRows, nb::arg("name"), nb::arg("values"));
  nb::class_<Prepared>(module, "Prepared")
      .def_prop_ro("id", [](const Prepared& self) { return self.rotation().id(); })
      .def_prop_ro("warnings", [](const Prepared& self) { return self.rotation().warnings(); })
      .def_prop_ro("layouts", &Prepared::Layouts)
      .def("values", &Prepared::Values, nb::arg("inputs"), nb::arg("outputs"), nb::arg("positions"),
           nb::arg("from_").none())
      .def(
          "values",
          [](const Prepared& self, const nb::tuple& inputs, const nb::tuple& outputs,
             int64_t start) {
            client::Positions positions;
            positions.start = start;
            return self.Values(inputs, outputs, std::move(positions), {});
          },
          nb::arg("inputs"), nb::arg("outputs"), nb::arg("start"));
}

}  // namespace
}  // namespace rope::python

NB_MODULE(_core, module) {
  // torch keeps compiled functions, and with them clients, until after the interpreter's end.
  nanobind::set_leak_warnings(false);
  module.attr("version") = rope_version();
  rope::python::BindEnums(module);
  rope::python::BindSpec(module);
  rope::python::BindPositions(module);
  rope::python::BindRequest(module);
  rope::python::BindMove(module);
  rope::python::BindClient(module);
  rope::python::BindLint(module);
}
