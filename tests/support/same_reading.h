// Compares two readings of one model: every layer's dimensions, frequencies and attention factor.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_TESTS_SUPPORT_SAME_READING_H_
#define ROPE_TESTS_SUPPORT_SAME_READING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/config/config_json.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {

// Numbers that a conversion rounded to float32 differ by half a unit, a few of them by one.
inline constexpr double kFloatUnit = 1.2e-7;

inline void ExpectSameNumber(long double got, long double want, const std::string& what) {
  EXPECT_LE(std::abs(got - want), std::abs(want) * kFloatUnit)
      << what << ": " << got << ", " << want;
}

inline void ExpectSameLayer(const kernels::LayerConfig& got, const kernels::LayerConfig& want) {
  EXPECT_EQ(got.rotates, want.rotates);
  const auto got_rope = kernels::Resolve(got.config);
  const auto want_rope = kernels::Resolve(want.config);
  ASSERT_THAT(got_rope, IsOk());
  ASSERT_THAT(want_rope, IsOk());
  EXPECT_EQ((*got_rope)->head_dim(), (*want_rope)->head_dim());
  EXPECT_EQ((*got_rope)->rotary_dim(), (*want_rope)->rotary_dim());
  EXPECT_EQ(got.config.mrope, want.config.mrope);
  EXPECT_EQ(got.config.max_position_embeddings, want.config.max_position_embeddings);
  ExpectSameNumber((*got_rope)->attention_factor(), (*want_rope)->attention_factor(),
                   "attention factor");
  for (const int64_t seq_len : {int64_t{1}, int64_t{1} << 20}) {
    const auto got_numbers = (*got_rope)->Evaluate(seq_len).inv_freq;
    const auto want_numbers = (*want_rope)->Evaluate(seq_len).inv_freq;
    ASSERT_EQ(got_numbers.size(), want_numbers.size());
    for (size_t i = 0; i < got_numbers.size(); ++i) {
      ExpectSameNumber(got_numbers[i], want_numbers[i],
                       std::string("frequency ") + std::to_string(i));
    }
  }
}

inline void ExpectSameReading(const kernels::ModelConfig& got, const kernels::ModelConfig& want,
                              int64_t layers) {
  EXPECT_EQ(got.num_heads(), want.num_heads());
  EXPECT_EQ(got.num_kv_heads(), want.num_kv_heads());
  for (int64_t layer = 0; layer < layers; ++layer) {
    SCOPED_TRACE(std::string("layer ") + std::to_string(layer));
    const auto got_layer = got.Layer({.layer = layer});
    const auto want_layer = want.Layer({.layer = layer});
    ASSERT_THAT(got_layer, IsOk());
    ASSERT_THAT(want_layer, IsOk());
    ExpectSameLayer(*got_layer, *want_layer);
  }
  EXPECT_FALSE(got.Layer({.layer = layers}).ok());
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_SAME_READING_H_
