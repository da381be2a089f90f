// JSON as every command prints it.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_CLI_JSON_TEXT_H_
#define ROPE_CLIENT_CLI_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace rope::client {

// Indented, with a newline at the end. Text that is not UTF-8 is replaced.
inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_JSON_TEXT_H_
