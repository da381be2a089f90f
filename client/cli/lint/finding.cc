#include "client/cli/lint/finding.h"

#include <algorithm>

namespace rope::client {

absl::string_view Name(Weight weight) {
  switch (weight) {
    case Weight::kReading:
      return "reading";
    case Weight::kWarning:
      return "warning";
    case Weight::kError:
      break;
  }
  return "error";
}

int64_t FileReport::CountOf(Weight weight) const {
  return std::ranges::count(findings, weight, &Finding::weight);
}

}  // namespace rope::client
