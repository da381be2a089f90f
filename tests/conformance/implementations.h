// Every backend of this build, for the instantiation of conformance tests. `cpu` appears once for
// each instruction set that runs here. `cuda` appears as its kernels' source on the CPU, and where
// a device is found as itself. "lists" never uses the kernels for rectangles; "head_loop" too, and
// has the shape of the largest launches.
#ifndef ROPE_TESTS_CONFORMANCE_IMPLEMENTATIONS_H_
#define ROPE_TESTS_CONFORMANCE_IMPLEMENTATIONS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_backend.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#if defined(ROPE_HAVE_CPU_BACKEND)
#include "kernels/backend/cpu/cpu_backend.h"
#include "kernels/backend/cpu/cpu_rotate_function.h"
#endif
#include "tests/support/fake_cuda_backend.h"

namespace rope::testing {

struct Implementation {
  std::string name;  // letters, digits and underscores
  std::string backend_name;
  std::function<std::unique_ptr<kernels::Backend>(const kernels::BackendOptions&)> make;
  // True if bf16 results below 2^-126 become 0, as backend.h allows.
  bool flushes_bfloat16_denormals = false;

  // Whether it takes fp8 tensors and counts what saturates.
  bool TakesFloat8() const { return backend_name.rfind("cuda", 0) != 0; }
};

inline void PrintTo(const Implementation& implementation, std::ostream* stream) {
  *stream << implementation.name;
}

// A backend by its name in kernels/backend/backend.h, which must exist.
inline std::unique_ptr<kernels::Backend> MakeListed(const std::string& name,
                                                    const kernels::BackendOptions& options) {
  auto backend = kernels::CreateBackend(name, options);
  ROPE_CHECK(backend.ok());
  return *std::move(backend);
}

inline Implementation Listed(const std::string& name, const std::string& backend_name) {
  return {name, backend_name,
          [name](const kernels::BackendOptions& options) { return MakeListed(name, options); }};
}

inline std::vector<Implementation> Implementations() {
  std::vector<Implementation> result;
  result.push_back(Listed("reference", "reference"));
#if defined(ROPE_HAVE_CPU_BACKEND)
  for (const kernels::CpuTarget& target : kernels::CpuTargets()) {
    result.push_back({"cpu_" + target.name, "cpu",
                      [target](const kernels::BackendOptions& options) {
                        return kernels::MakeCpuBackend(options, target);
                      },
                      target.name == "AVX3_BF16"});
  }
#endif
  result.push_back({"cuda_source", "cuda_source",
                    [](const kernels::BackendOptions&) { return MakeCudaSourceBackend(); }});
  result.push_back({"cuda_source_lists", "cuda_source", [](const kernels::BackendOptions&) {
                      return MakeCudaSourceBackend(AlwaysLists());
                    }});
  result.push_back({"cuda_source_head_loop", "cuda_source", [](const kernels::BackendOptions&) {
                      return MakeCudaSourceBackend(AlwaysHeadLoop());
                    }});
  if (!kernels::CreateBackend("cuda", {}).ok()) return result;
  result.push_back(Listed("cuda", "cuda:0"));
  result.push_back({"cuda_head_loop", "cuda:0", [](const kernels::BackendOptions&) {
                      return kernels::MakeCudaBackend(AlwaysHeadLoop()).value();
                    }});
  return result;
}

inline std::string ImplementationName(const ::testing::TestParamInfo<Implementation>& info) {
  return info.param.name;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_IMPLEMENTATIONS_H_
