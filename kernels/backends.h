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

// The names that CreateBackend accepts in this build, in order of preference: "cpu" where it is
// built, "cuda", "reference".
std::vector<std::string> ListBackends();

// UNIMPLEMENTED: this build has no such backend, and the message lists the ones it has; or it was
// built without the kernels of "cuda". UNAVAILABLE: the device is missing, too old or does not
// answer; the message gives the reason.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKENDS_H_
