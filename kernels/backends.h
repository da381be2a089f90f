// The backends of this build, by name. The one place that knows all of them.
//
// Threading:  Any thread.
#ifndef ROPE_KERNELS_BACKENDS_H_
#define ROPE_KERNELS_BACKENDS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"

namespace rope::kernels {

// Names that CreateBackend takes in this build: those that always work best first, and "cuda",
// where it is built, after "cpu".
std::vector<std::string> ListBackends();

// UNIMPLEMENTED: not in this build (lists those that are). UNAVAILABLE: its device is missing, too
// old or does not answer, with the reason.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKENDS_H_
