// StrCat that also accepts std::string_view: the distribution's Abseil defines its own string_view
// type.
#ifndef ROPE_KERNELS_STR_CAT_H_
#define ROPE_KERNELS_STR_CAT_H_

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rope::kernels {

template <typename T>
const T& ToAbsl(const T& value) {
  return value;
}
inline absl::string_view ToAbsl(const std::string_view& text) {
  return {text.data(), text.size()};
}

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return absl::StrCat(ToAbsl(parts)...);
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_STR_CAT_H_
