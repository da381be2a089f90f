#include "kernels/config/rope_config.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "kernels/error.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

constexpr std::pair<std::string_view, RopeType> kRopeTypes[] = {
    {"default", RopeType::kDefault}, {"linear", RopeType::kLinear},
    {"dynamic", RopeType::kDynamic}, {"ntk", RopeType::kNtk},
    {"yarn", RopeType::kYarn},       {"longrope", RopeType::kLongrope},
    {"llama3", RopeType::kLlama3},   {"proportional", RopeType::kProportional},
};

// Other spellings.
constexpr std::pair<std::string_view, RopeType> kAliases[] = {
    {"su", RopeType::kLongrope}, {"mrope", RopeType::kDefault}, {"ernie_3d", RopeType::kDefault}};

// Types of other implementations, and the equivalent here.
constexpr std::pair<std::string_view, std::string_view> kOtherTypes[] = {
    {"deepseek_yarn", "yarn, with compat deepseek"},
    {"telechat3-yarn",
     "yarn; if the attention factor should be 0.07 ln(factor) + 1, set attention_factor to that "
     "value"},
    {"xdrope", "a type for one or three axes: four are not supported"},
    {"openpangu", "default, with mrope_section"},
};

absl::Status InvalidType(std::string_view got, std::string_view want) {
  return InvalidField("rope_type", StrCat("\"", got, "\""), want);
}

}  // namespace

std::string_view Name(RopeType type) {
  for (const auto& [name, value] : kRopeTypes) {
    if (value == type) return name;
  }
  return "invalid";
}

absl::StatusOr<RopeType> ParseRopeType(std::string_view name) {
  for (const auto& [known, type] : kRopeTypes) {
    if (known == name) return type;
  }
  for (const auto& [alias, type] : kAliases) {
    if (alias == name) return type;
  }
  for (const auto& [other, want] : kOtherTypes) {
    if (other == name) return InvalidType(other, want);
  }
  return InvalidType(
      absl::CHexEscape(std::string(name.substr(0, 64))),
      "one of default, linear, dynamic, ntk, yarn, longrope, su, llama3, proportional, mrope");
}

int Mrope::Axis(int64_t index) const {
  if (!axes.empty()) return axes[static_cast<size_t>(index)];
  if (layout == Layout::kSections || layout == Layout::kAxial) {
    if (index < section[0]) return 0;
    return index < section[0] + section[1] ? 1 : 2;
  }
  if (layout == Layout::kHwInterleaved) {
    if (index >= section[1] + section[2]) return 0;
    return index % 2 == 0 ? 1 : 2;
  }
  if (index % 3 == 1 && index < 3 * section[1]) return 1;
  if (index % 3 == 2 && index < 3 * section[2]) return 2;
  return 0;
}

}  // namespace rope::kernels
