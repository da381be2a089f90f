// Random config.json texts: keys of Hugging Face's vocabulary with values that are legal more often
// than not, nested as such files are, and whole files with values replaced or bytes damaged.
//
// Threading:  A ConfigWriter is confined to one thread.
// Ownership:  Borrows its FuzzRandom.
#ifndef ROPE_TESTS_FUZZ_CONFIG_WRITER_H_
#define ROPE_TESTS_FUZZ_CONFIG_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_random.h"

namespace rope::testing {

class ConfigWriter {
 public:
  // `random` must outlive it.
  explicit ConfigWriter(FuzzRandom& random) : random_(random) {}

  // A new text; not always JSON.
  std::string NewText();
  // `text` with some of its values replaced, or its bytes damaged.
  std::string Changed(std::string text);

 private:
  // What a key's value is where it is legal.
  enum class Kind {
    kDim,
    kLength,
    kCount,
    kLayers,
    kPeriod,
    kNumber,
    kTheta,
    kFraction,
    kFlag,
    kRopeType,
    kModelType,
    kFactors,
    kSections,
    kLayerTypes,
    kLayerFlags,
    kPattern,
  };
  struct Key {
    std::string_view name;
    Kind kind;
  };
  static const std::vector<Key> kModelKeys;
  static const std::vector<Key> kScalingKeys;

  std::string Legal(Kind kind);
  std::string Value(Kind kind);
  // Anything that JSON has, and now and then what it has not.
  std::string AnyValue(int depth);
  // A number of any size and spelling.
  std::string AnyNumber();
  std::string List(uint64_t count, Kind kind);
  std::string Field(std::string_view name, const std::string& value);
  // Fields of some of the keys, joined by commas.
  std::string Fields(const std::vector<Key>& keys, uint64_t one_in);
  std::string Scaling();
  std::string Parameters();
  std::string Model();

  FuzzRandom& random_;
  int64_t dim_ = 8;     // of the text's heads
  int64_t layers_ = 4;  // of the text
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_FUZZ_CONFIG_WRITER_H_
