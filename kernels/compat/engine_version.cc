#include "kernels/compat/engine_version.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace rope::kernels {

std::optional<std::vector<int64_t>> ParseRelease(std::string_view text) {
  constexpr std::string_view kPost = ".post";
  if (const size_t post = text.find(kPost); post != std::string_view::npos) {
    const std::string_view number = text.substr(post + kPost.size());
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) {
      return std::nullopt;
    }
    text = text.substr(0, post);
  }
  std::vector<int64_t> numbers;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '.')) {
    int64_t number = 0;
    if (part.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(part[0])) ||
        !absl::SimpleAtoi(part, &number)) {
      return std::nullopt;
    }
    numbers.push_back(number);
  }
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();  // 1.0 is 1
  return numbers;
}

}  // namespace rope::kernels
