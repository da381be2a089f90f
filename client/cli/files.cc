#include "client/cli/files.h"

#include <algorithm>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rope::client {
namespace {

Result<std::string> ReadStream(const std::string& path, std::istream& stream, int64_t bytes_max) {
  constexpr size_t kChunk = size_t{1} << 20;
  std::string text;
  while (stream) {
    const size_t before = text.size();
    text.resize(before + kChunk);
    stream.read(text.data() + before, kChunk);
    text.resize(before + static_cast<size_t>(stream.gcount()));
    if (static_cast<int64_t>(text.size()) > bytes_max) {
      return Status(StatusCode::kOutOfRange,
                    absl::StrCat(path, ": got more than ", bytes_max, " bytes, want at most that"));
    }
  }
  return text;
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, int64_t bytes_max) {
  if (path == "-") return ReadStream("standard input", std::cin, bytes_max);
  std::ifstream file(path, std::ios::binary);
  // Opening a directory succeeds; reading it fails.
  if (!file || (file.peek() == std::ifstream::traits_type::eof() && file.bad())) {
    return Status(StatusCode::kNotFound, absl::StrCat(path, ": cannot be read"));
  }
  file.clear();
  return ReadStream(path, file, bytes_max);
}

bool IsGguf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic(4, '\0');
  return file.read(magic.data(), 4) && magic == "GGUF";
}

Status WriteFile(const std::string& path, absl::string_view first, absl::string_view second) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(first.data(), static_cast<std::streamsize>(first.size()));
  file.write(second.data(), static_cast<std::streamsize>(second.size()));
  file.close();
  if (file) return {};
  return Status(StatusCode::kUnknown, absl::StrCat(path, ": cannot be written"));
}

}  // namespace rope::client
