// JSON as every command prints it.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_CLI_JSON_OUTPUT_H_
#define ROPE_CLIENT_CLI_JSON_OUTPUT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "client/cli/arguments.h"

namespace rope::client {

inline constexpr Flag kJsonFlag = {"json", FlagKind::kSwitch, "", "Print JSON."};

// Indented, with a newline at the end. Text that is not UTF-8 is replaced.
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_JSON_OUTPUT_H_
