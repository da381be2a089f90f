// Versions of engines as their packages have them: "0.12.1", "0.5.10.post1".
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_COMPAT_ENGINE_VERSION_H_
#define ROPE_KERNELS_COMPAT_ENGINE_VERSION_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace rope::kernels {

// The numbers of a release, which compare as versions do. A post-release counts as its release.
// Unset: the text is no release: "abc", "0.12.", a commit.
std::optional<std::vector<int64_t>> ParseRelease(std::string_view text);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ENGINE_VERSION_H_
