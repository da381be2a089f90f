// Typed reads from a JSON object, with the path of the field in every error.
//
// Threading:  Immutable; any thread.
// Ownership:  JsonFields is a view; the document must outlive it.
// Errors:     INVALID_ARGUMENT: not JSON, a key given twice, or "path: got X, want a Y".
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

// Parses a JSON object in which no key is given twice.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text);

// A value as it stands in the file, in ASCII, cut where it is long.
std::string Show(const nlohmann::json& value);

class JsonFields {
 public:
  // REQUIRES: `object` is a JSON object. `path` names it in errors; empty for the whole document.
  explicit JsonFields(const nlohmann::json& object, std::string path = "")
      : object_(&object), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *object_; }
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view key) const;
  // Present and not null, which counts as absent everywhere.
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // Null where absent.
  const nlohmann::json* Find(std::string_view key) const;

  // The value, or unset where the key is absent. Integers may be written 128.0, numbers 128.
  absl::StatusOr<std::optional<double>> Number(std::string_view key) const;
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view key) const;
  absl::StatusOr<std::optional<JsonFields>> Object(std::string_view key) const;
  // Lists; empty where absent.
  absl::StatusOr<std::vector<double>> Numbers(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;

 private:
  const nlohmann::json* object_;
  std::string path_;
};

// The first of `reads` that has a value, or failed.
template <typename T>
absl::StatusOr<std::optional<T>> FirstOf(
    std::initializer_list<absl::StatusOr<std::optional<T>>> reads) {
  for (const absl::StatusOr<std::optional<T>>& read : reads) {
    if (!read.ok() || read->has_value()) return read;
  }
  return std::optional<T>();
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_JSON_FIELDS_H_
