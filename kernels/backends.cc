#include "kernels/backends.h"

#include "absl/strings/str_join.h"
#include "kernels/backend/cuda/cuda_backend.h"
#include "kernels/check.h"
#include "kernels/error.h"
#if defined(ROPE_HAVE_CPU_BACKEND)
#include "kernels/backend/cpu/cpu_backend.h"
#endif

namespace rope::kernels {

std::vector<std::string> ListBackends() {
  return {
#if defined(ROPE_HAVE_CPU_BACKEND)
    "cpu",
#endif
        "cuda", "reference",
  };
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options) {
  ROPE_CHECK(options.threads >= 1);
  if (name == "reference") return MakeReferenceBackend();
#if defined(ROPE_HAVE_CPU_BACKEND)
  if (name == "cpu") return MakeCpuBackend(options);
#endif
  if (name == "cuda") return MakeCudaBackend();
  return MakeError(Reason::kNotBuilt, "backend", name,
                   StrCat("one of this build: ", absl::StrJoin(ListBackends(), ", ")));
}

}  // namespace rope::kernels
