#include "kernels/config/gguf_fields.h"

#include "kernels/error.h"

namespace rope::kernels {
namespace {

using Kind = GgufValue::Kind;

constexpr std::string_view kArchitecture = "general.architecture";

std::string TypeOf(const GgufValue& value) {
  constexpr std::string_view kNames[] = {"integer", "number", "bool", "string"};
  const std::string_view name = kNames[static_cast<size_t>(value.kind)];
  if (!value.list) return StrCat(value.kind == Kind::kInteger ? "an " : "a ", name);
  return StrCat("a list of ", value.integers.size() + value.numbers.size(), " ", name, "s");
}

}  // namespace

absl::StatusOr<GgufFields> GgufFields::Of(const GgufHeader& header) {
  const auto found = header.values.find(kArchitecture);
  if (found == header.values.end()) {
    return InvalidField(
        kArchitecture, "nothing",
        StrCat("the name of an architecture", header.values.contains("split.no")
                                                  ? "; the first part of a split model has it"
                                                  : ""));
  }
  if (found->second.kind != Kind::kString) {
    return InvalidField(kArchitecture, TypeOf(found->second), "a string");
  }
  const std::string& name = found->second.text;
  for (const char c : name) {
    if (c > ' ' && c <= '~') continue;
    return InvalidField(kArchitecture, ShowText(name), "a name of printable characters");
  }
  return GgufFields(header, name);
}

std::string GgufFields::PathOf(std::string_view key) const {
  return key.starts_with("split.") ? std::string(key) : StrCat(architecture_, ".", key);
}

const GgufValue* GgufFields::Find(std::string_view key) const {
  const auto found = header_->values.find(PathOf(key));
  return found == header_->values.end() ? nullptr : &found->second;
}

absl::Status GgufFields::Invalid(std::string_view key, std::string_view got,
                                 std::string_view want) const {
  return InvalidField(PathOf(key), got, want);
}

absl::Status GgufFields::WrongType(std::string_view key, const GgufValue& value,
                                   std::string_view want) const {
  return Invalid(key, TypeOf(value), want);
}

absl::StatusOr<std::optional<int64_t>> GgufFields::Integer(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  if (value->list || value->kind != Kind::kInteger) return WrongType(key, *value, "an integer");
  return std::optional<int64_t>(value->integers.front());
}

absl::StatusOr<std::optional<double>> GgufFields::Number(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->list && value->kind == Kind::kNumber) return std::optional(value->numbers.front());
  if (value->list || value->kind != Kind::kInteger) return WrongType(key, *value, "a number");
  return std::optional(static_cast<double>(value->integers.front()));
}

absl::StatusOr<std::optional<bool>> GgufFields::Bool(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->list || value->kind != Kind::kBool) return WrongType(key, *value, "a bool");
  return std::optional(value->integers.front() != 0);
}

absl::StatusOr<std::optional<std::string>> GgufFields::String(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (value->list || value->kind != Kind::kString) return WrongType(key, *value, "a string");
  return std::optional(value->text);
}

absl::StatusOr<std::vector<int64_t>> GgufFields::Integers(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::vector<int64_t>();
  if (value->kind != Kind::kInteger && value->kind != Kind::kBool) {
    return WrongType(key, *value, "integers");
  }
  return value->integers;
}

bool GgufFields::IsList(std::string_view key) const {
  const GgufValue* const value = Find(key);
  return value != nullptr && value->list;
}

}  // namespace rope::kernels
