#include "client/cli/lint/finding.h"

#include <algorithm>

namespace rope::client {

int64_t FileReport::CountOf(Weight weight) const {
  return std::ranges::count_if(
      findings, [weight](const Finding& finding) { return finding.rule->weight == weight; });
}

}  // namespace rope::client
