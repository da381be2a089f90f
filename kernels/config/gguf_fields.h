// Typed reads of a model's keys from a GgufHeader. Every error has the key. Internal to
// gguf_config.
//
// Threading:  Immutable; any thread.
// Ownership:  A view; the header must outlive it.
// Errors:     INVALID_ARGUMENT only: "key: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_GGUF_FIELDS_H_
#define ROPE_KERNELS_CONFIG_GGUF_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/config/gguf_header.h"

namespace rope::kernels {

class GgufFields {
 public:
  // INVALID_ARGUMENT without a general.architecture.
  static absl::StatusOr<GgufFields> Of(const GgufHeader& header);

  const GgufHeader& header() const { return *header_; }
  const std::string& architecture() const { return architecture_; }
  // "ARCHITECTURE.key", as in the file. Keys of "split" are not the architecture's.
  std::string PathOf(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  absl::Status Invalid(std::string_view key, std::string_view got, std::string_view want) const;

  // The value, or unset if the key is absent. A list is an error, as is another type; an integer is
  // a number too.
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view key) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view key) const;
  // A list of integers or bools; a value that is no list gives one element. Empty if absent.
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key) const;
  bool IsList(std::string_view key) const;

 private:
  GgufFields(const GgufHeader& header, std::string architecture)
      : header_(&header), architecture_(std::move(architecture)) {}

  const GgufValue* Find(std::string_view key) const;
  absl::Status WrongType(std::string_view key, const GgufValue& value, std::string_view want) const;

  const GgufHeader* header_;
  std::string architecture_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_FIELDS_H_
