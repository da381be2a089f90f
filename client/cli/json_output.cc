#include "client/cli/json_output.h"

#include <nlohmann/json.hpp>

namespace rope::client {

std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace rope::client
