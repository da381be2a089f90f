// StrCat that also accepts std::string_view, because the distribution's Abseil defines its own
// string_view type, and long double, of which it writes six digits as of a double.
#ifndef ROPE_KERNELS_ERROR_H_
#define ROPE_KERNELS_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/error.h"

namespace rope::kernels {

template <typename T>
const T& ToAbsl(const T& value) {
  return value;
}
inline absl::string_view ToAbsl(const std::string_view& text) {
  return {text.data(), text.size()};
}
inline double ToAbsl(long double number) {
  return static_cast<double>(number);
}

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return absl::StrCat(ToAbsl(parts)...);
}

// The errors of the kernels: values of proto/error.h, from any mix of string types.

using proto::Reason;

template <typename Field, typename Got, typename Want>
absl::Status MakeError(Reason reason, const Field& field, const Got& got, const Want& want) {
  return proto::MakeError(reason, ToAbsl(field), ToAbsl(got), ToAbsl(want));
}

// INVALID_ARGUMENT "<field>: got <got>, want <want>".
template <typename Field, typename Got, typename Want>
absl::Status InvalidField(const Field& field, const Got& got, const Want& want) {
  return MakeError(Reason::kInvalidField, field, got, want);
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_ERROR_H_
