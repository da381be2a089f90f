// Reads small files of /proc and /sys.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_TELEMETRY_TEXT_FILE_H_
#define ROPE_SERVER_TELEMETRY_TEXT_FILE_H_

#include <fstream>
#include <iterator>
#include <string>

namespace rope::server {

// The whole file; empty if it cannot be read.
inline std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_TEXT_FILE_H_
