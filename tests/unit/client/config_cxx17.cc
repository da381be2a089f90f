// rope/config.h compiles as C++17, the standard of many engines.
#include "rope/config.h"

namespace rope::client {

static_assert(Name(RopeType::kYarn) == "yarn" && Name(Pairing::kHalf) == "half");

bool Equal(const RopeSpec& a, const RopeSpec& b) {
  return a == b;
}

}  // namespace rope::client
