// The small files in which the system says something of itself.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_TELEMETRY_TEXT_FILE_H_
#define ROPE_SERVER_TELEMETRY_TEXT_FILE_H_

#include <fstream>
#include <iterator>
#include <string>

namespace rope::server {

// All of it; empty where there is nothing to read.
inline std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_TEXT_FILE_H_
