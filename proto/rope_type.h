// Reads the name of a scaling type, from a config.json as from the schema's RopeConfig. Any folder
// may include this header; it includes no Protobuf.
//
// Threading:  Functions only.
#ifndef ROPE_PROTO_ROPE_TYPE_H_
#define ROPE_PROTO_ROPE_TYPE_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/error.h"
#include "rope/config.h"

namespace rope::proto {

// Types of other implementations, and the equivalent here.
inline constexpr std::pair<std::string_view, const char*> kOtherRopeTypes[] = {
    {"deepseek_yarn", "yarn, with compat deepseek"},
    {"telechat3-yarn",
     "yarn; if the attention factor should be 0.07 ln(factor) + 1, set attention_factor to that "
     "value"},
    {"xdrope", "a type for one or three axes: four are not supported"},
    {"openpangu", "default, with mrope_section"},
};

// Parses a name. "su" is longrope; "mrope" and "ernie_3d" are default. INVALID_ARGUMENT lists the
// valid names. For a known type of another implementation it gives the equivalent instead.
inline absl::StatusOr<RopeType> ParseRopeType(std::string_view name) {
  std::string want;
  for (const auto& [known, type] : kRopeTypeNames) {
    if (known == name) return type;
    absl::StrAppend(&want, want.empty() ? "one of " : ", ", std::string(known));
  }
  if (name == "ernie_3d") return RopeType::kDefault;
  for (const auto& [other, equivalent] : kOtherRopeTypes) {
    if (other == name) want = equivalent;
  }
  const std::string got = absl::CHexEscape(std::string(name.substr(0, 64)));
  return InvalidField("rope_type", absl::StrCat("\"", got, "\""), want);
}

}  // namespace rope::proto

#endif  // ROPE_PROTO_ROPE_TYPE_H_
