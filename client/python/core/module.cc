// ropeserve._core: the library as Python sees it. The package around it has the names that people
// use, and their documentation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

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
  nb::class_<Request>(module, "Request").def_ro("result", &Request::result);
  module.def("rotation", &Request::OfRotation, nb::arg("operation"), nb::arg("q").none(),
             nb::arg("k").none(), nb::arg("in_place"), nb::arg("arguments"),
             nb::arg("to") = nb::none(), nb::arg("from_") = nb::none(),
             nb::arg("from_rope") = nb::none());
  nb::class_<Prepared>(module, "Prepared")
      .def_prop_ro("id", [](const Prepared& self) { return self.rotation().id(); })
      .def("values", &Prepared::Values, nb::arg("arrays"), nb::arg("in_place"),
           nb::arg("start").none(), nb::arg("from_").none(), nb::arg("timeout").none(),
           nb::arg("positions"));
}

}  // namespace
}  // namespace rope::python

NB_MODULE(_core, module) {
  // torch keeps compiled functions, and with them clients, until after the interpreter's end.
  nanobind::set_leak_warnings(false);
  module.attr("version") = rope_version();
  rope::python::BindEnums(module);
  rope::python::BindSpec(module);
  rope::python::BindRequest(module);
  rope::python::BindMove(module);
  rope::python::BindClient(module);
  rope::python::BindLint(module);
}
