// Random numbers, bytes and damage for fuzz tests; the same seed gives the same inputs.
//
// Threading:  A FuzzRandom is confined to one thread.
#ifndef ROPE_TESTS_FUZZ_FUZZ_RANDOM_H_
#define ROPE_TESTS_FUZZ_FUZZ_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace rope::testing {

// The number in the environment variable `name`, or `otherwise` if it is not set.
uint64_t FromEnvironment(const char* name, uint64_t otherwise);

// The number of inputs for each test (ROPE_FUZZ_ROUNDS), and the seed (ROPE_FUZZ_SEED).
uint64_t FuzzRounds(uint64_t otherwise);
uint64_t FuzzSeed(uint64_t otherwise);

class FuzzRandom {
 public:
  explicit FuzzRandom(uint64_t seed) : random_(seed) {}

  uint64_t Next() { return random_(); }
  // A number below `n`.
  uint64_t Below(uint64_t n) { return random_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Below(values.size())];
  }
  template <typename T>
  const T& OneOf(const std::vector<T>& values) {
    return values[Below(values.size())];
  }
  // A number of any magnitude.
  int64_t Integer() { return static_cast<int64_t>(random_()) >> Below(64); }
  // A number at which arithmetic tends to fail: near 0, near powers of two, the largest, the
  // smallest.
  int64_t EdgeInteger();
  std::string RandomBytes(size_t count);
  // Flips, removes, inserts, duplicates or truncates bytes.
  void Damage(std::string& bytes);
  // Splits the bytes into fragments of random sizes, some of them empty.
  std::vector<std::string_view> Cut(std::string_view bytes);

 protected:
  std::mt19937_64 random_;
};

// Copies each fragment into an allocation of exactly its size, so that a sanitizer sees any read
// past its end.
class ExactFragments {
 public:
  explicit ExactFragments(const std::vector<std::string_view>& fragments);

  const std::vector<std::string_view>& views() const { return views_; }

 private:
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<std::string_view> views_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_FUZZ_FUZZ_RANDOM_H_
