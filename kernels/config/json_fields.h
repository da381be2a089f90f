// Typed reads from a JSON object. Every error has the path of the field.
//
// Threading:  Immutable; any thread.
// Ownership:  JsonFields is a view; the document must outlive it.
// Errors:     INVALID_ARGUMENT: the text is not JSON; a key occurs twice; "path: got X, want a Y".
#ifndef ROPE_KERNELS_CONFIG_JSON_FIELDS_H_
#define ROPE_KERNELS_CONFIG_JSON_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace rope::kernels {

// Parses a JSON object. A key that occurs twice in one object is an error.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text);

// A value for error messages: as in the file, in ASCII, truncated after 48 characters.
std::string Show(const nlohmann::json& value);

// What a key has: a value, nothing, or the error of a value of another type.
template <typename T>
using Field = absl::StatusOr<std::optional<T>>;

class JsonFields {
 public:
  static constexpr size_t kListMax = 65536;

  // `path` is the path of `object` in errors; empty for the document. REQUIRES: `object` is a JSON
  // object.
  explicit JsonFields(const nlohmann::json& object, std::string path = "")
      : object_(&object), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *object_; }
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view key) const;
  // Whether the key is present. A null value counts as absent everywhere.
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // nullptr if absent.
  const nlohmann::json* Find(std::string_view key) const;

  // The value, or unset if the key is absent. Integers may be written as 128.0, numbers as 128.
  Field<double> Number(std::string_view key) const;
  Field<int64_t> Integer(std::string_view key) const;
  Field<bool> Bool(std::string_view key) const;
  Field<std::string> String(std::string_view key) const;
  Field<JsonFields> Object(std::string_view key) const;
  // Lists of at most kListMax elements; empty if absent.
  absl::StatusOr<std::vector<double>> Numbers(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;

 private:
  const nlohmann::json* object_;
  std::string path_;
};

// The first of `reads` that has a value or an error.
template <typename T>
Field<T> FirstOf(std::initializer_list<Field<T>> reads) {
  for (const Field<T>& read : reads) {
    if (!read.ok() || read->has_value()) return read;
  }
  return std::optional<T>();
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_JSON_FIELDS_H_
