// Reads and writes whole files.
//
// Threading:  Functions only.
// Errors:     NOT_FOUND: the file cannot be opened. OUT_OF_RANGE: it is larger than the limit.
//             UNKNOWN: it cannot be written.
#ifndef ROPE_CLIENT_CLI_FILES_H_
#define ROPE_CLIENT_CLI_FILES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "rope/status.h"

namespace rope::client {

// The path "-" means standard input.
Result<std::string> ReadFile(const std::string& path, int64_t bytes_max);

// Whether the file begins with GGUF's magic.
bool IsGguf(const std::string& path);

Status WriteFile(const std::string& path, absl::string_view first, absl::string_view second);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_FILES_H_
