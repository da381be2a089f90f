// KeyLines: the line of each key of a JSON text, so that findings can point there.
//
// Threading:  Immutable after Of.
// Limits:     The first 4096 keys, down to 8 levels, of at most 128 bytes each; others are not
//             found. Any text is accepted; keys after a syntax error are not found.
#ifndef ROPE_CLIENT_CLI_LINT_KEY_LINES_H_
#define ROPE_CLIENT_CLI_LINT_KEY_LINES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rope::client {

class KeyLines {
 public:
  static KeyLines Of(absl::string_view json);

  // The line, from 1, of a key with that path, "factor" or "rope_scaling.factor", at any level.
  // Keys among the rope parameters, and those of `layer_type` (may be empty), come first. Only keys
  // inside the object of path `within` are found, and that object's; empty: the whole file.
  std::optional<int64_t> Find(absl::string_view path, absl::string_view layer_type,
                              absl::string_view within = "") const;
  // The line of the syntax error, if there is one.
  std::optional<int64_t> error_line() const { return error_line_; }
  // That of text_config, else that of the file, else empty.
  const std::string& model_type() const { return model_type_; }

 private:
  friend class KeyReader;
  struct Key {
    std::string path;  // with a dot before each key: ".rope_scaling.factor"
    int64_t line = 0;
  };
  std::vector<Key> keys_;
  std::optional<int64_t> error_line_;
  std::string model_type_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_KEY_LINES_H_
