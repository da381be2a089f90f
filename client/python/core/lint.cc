// lint and diff of configs, without a client: the JSON of `ropectl lint --json` and `diff --json`.
#include "client/cli/lint/lint.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "client/cli/lint/diff.h"
#include "client/cli/lint/lint_output.h"
#include "client/cli/local_describe.h"
#include "client/python/core/bindings.h"
#include "client/python/core/errors.h"

namespace rope::python {
namespace {

namespace nb = nanobind;

std::string Lint(const std::string& file, const std::string& text,
                 const std::optional<std::string>& engine, const std::string& sub_config) {
  kernels::EngineVersion filter;
  if (engine.has_value()) filter = Take(client::ReadFilter(*engine));
  return WithoutGil(
      [&] { return client::LintJson({client::LintText(file, text, filter, sub_config)}); });
}

std::string Diff(const std::string& a, const std::string& b, double error,
                 const std::string& sub_config, const std::string& engine_a,
                 const std::string& engine_b) {
  return Take(WithoutGil([&]() -> Result<std::string> {
    const auto first = client::SideOf(a, sub_config, engine_a);
    if (!first.ok()) return first.status();
    const auto second = client::SideOf(b, sub_config, engine_b);
    if (!second.ok()) return second.status();
    const auto differences = client::Diff(*first, *second, error);
    if (!differences.ok()) return differences.status();
    return client::DiffJson(*differences);
  }));
}

}  // namespace

void BindLint(nb::module_& module) {
  module.def("preset", client::PresetText, nb::arg("name"));
  module.def("lint", Lint, nb::arg("file"), nb::arg("text"), nb::arg("engine").none(),
             nb::arg("sub_config"));
  module.def("diff", Diff);
  module.def("engines", client::EngineNames);
  // Empty: all layers are equal, or the text is no config that can be read.
  module.def("layer_types", [](const std::string& text, const std::string& sub_config) {
    const auto config = kernels::ModelConfig::Parse(text, sub_config);
    return config.ok() ? config->layer_types() : std::vector<std::string>();
  });
}

}  // namespace rope::python
