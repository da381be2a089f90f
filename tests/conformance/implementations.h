// Every backend of this build, the cpu one once for each instruction set that runs here. What
// conformance tests are instantiated over.
#ifndef ROPE_TESTS_CONFORMANCE_IMPLEMENTATIONS_H_
#define ROPE_TESTS_CONFORMANCE_IMPLEMENTATIONS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/check.h"
#if defined(ROPE_HAVE_CPU_BACKEND)
#include "kernels/cpu_backend.h"
#include "kernels/cpu_rotate.h"
#endif

namespace rope::testing {

struct Implementation {
  std::string name;  // letters, digits and underscores
  std::function<std::unique_ptr<kernels::Backend>(const kernels::BackendOptions&)> make;
  // Whether bf16 results below 2^-126 become 0, as backend.h allows.
  bool flushes_bfloat16_denormals = false;
};

inline void PrintTo(const Implementation& implementation, std::ostream* stream) {
  *stream << implementation.name;
}

inline std::vector<Implementation> Implementations() {
  std::vector<Implementation> result;
  result.push_back({"reference",
                    [](const kernels::BackendOptions& options) {
                      auto backend = kernels::CreateBackend("reference", options);
                      ROPE_CHECK(backend.ok());
                      return *std::move(backend);
                    },
                    false});
#if defined(ROPE_HAVE_CPU_BACKEND)
  for (const kernels::CpuTarget& target : kernels::CpuTargets()) {
    result.push_back({"cpu_" + target.name,
                      [target](const kernels::BackendOptions& options) {
                        return kernels::MakeCpuBackend(options, target);
                      },
                      target.flushes_bfloat16_denormals});
  }
#endif
  return result;
}

inline std::string ImplementationName(const ::testing::TestParamInfo<Implementation>& info) {
  return info.param.name;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_IMPLEMENTATIONS_H_
