#include "tests/fuzz/fuzz_random.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace rope::testing {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

uint64_t FuzzRounds(uint64_t otherwise) {
  return FromEnvironment("ROPE_FUZZ_ROUNDS", otherwise);
}

uint64_t FuzzSeed(uint64_t otherwise) {
  return FromEnvironment("ROPE_FUZZ_SEED", otherwise);
}

int64_t FuzzRandom::EdgeInteger() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  switch (Below(8)) {
    case 0:
      return 0;
    case 1:
      return -1;
    case 2:
      return OneIn(2) ? kMost : std::numeric_limits<int64_t>::min();
    case 3:
      return kMost - static_cast<int64_t>(Below(70));
    case 4:
      return OneOf<int64_t>({1, 2, 3, -2});
    default:
      break;
  }
  const int64_t power = int64_t{1} << (OneIn(2) ? Below(63) : OneOf({31, 40, 62}));
  return power + OneOf({-1, 0, 0, 1});
}

std::string FuzzRandom::RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random_());
  return bytes;
}

void FuzzRandom::Damage(std::string& bytes) {
  for (uint64_t n = 1 + Below(3); n > 0 && !bytes.empty(); --n) {
    const size_t at = Below(bytes.size());
    const size_t length = Below(std::min<size_t>(bytes.size() - at, 12) + 1);
    switch (Below(6)) {
      case 0:
        bytes[at] = static_cast<char>(random_());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << Below(8));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, std::string(1 + Below(11), static_cast<char>(random_())));
        break;
      case 4:
        bytes.insert(Below(bytes.size()), bytes.substr(at, length));
        break;
      default:
        bytes.resize(at);
    }
  }
}

std::vector<std::string_view> FuzzRandom::Cut(std::string_view bytes) {
  const uint64_t size_max = uint64_t{1} << Below(10);
  std::vector<std::string_view> fragments;
  while (!bytes.empty()) {
    const size_t size = std::min<size_t>(Below(size_max + 1), bytes.size());
    fragments.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return fragments;
}

ExactFragments::ExactFragments(const std::vector<std::string_view>& fragments) {
  for (const std::string_view fragment : fragments) {
    memory_.push_back(std::make_unique_for_overwrite<char[]>(fragment.size()));
    std::copy(fragment.begin(), fragment.end(), memory_.back().get());
    views_.emplace_back(memory_.back().get(), fragment.size());
  }
}

}  // namespace rope::testing
