// Random config.json texts. Keys have Hugging Face's names, most values are legal, and objects nest
// as in real files. Also whole files with replaced values or damaged bytes.
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

  // A new text, not always valid JSON.
  std::string NewText();
  // `text` with some values replaced or bytes damaged.
  std::string Changed(std::string text);

 private:
  // The kind of a key's legal values.
  enum class Kind {
    kDim,
    kLength,
    kCount,
    kLayers,
    kPeriod,
    kNumber,
    kTheta,
    kFraction,  // the last kind of numbers
    kFlag,
    kRopeType,
    kModelType,
    kFactors,
    kSections,
    kLayerTypes,
    kLayerFlags,
    kPattern,
  };
  static constexpr Kind kLastNumber = Kind::kFraction;
  struct Key {
    std::string_view name;
    Kind kind;
  };
  static const std::vector<Key> kModelKeys;
  static const std::vector<Key> kScalingKeys;

  std::string Legal(Kind kind);
  std::string Value(Kind kind);
  // Any JSON value, and sometimes invalid JSON.
  std::string AnyValue(int depth);
  // A number of any size and notation.
  std::string AnyNumber();
  // A number past a limit, which a list, a loop or a sum must not follow.
  std::string HugeNumber();
  std::string List(uint64_t count, Kind kind);
  std::string Field(std::string_view name, const std::string& value);
  // Fields for some of the keys, joined by commas.
  std::string Fields(const std::vector<Key>& keys, uint64_t one_in);
  std::string Scaling();
  std::string Parameters();
  std::string NullTypes();
  std::string PerLayer();
  std::string Model();

  FuzzRandom& random_;
  int64_t dim_ = 8;     // head_dim of the text
  int64_t layers_ = 4;  // layers of the text
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_FUZZ_CONFIG_WRITER_H_
