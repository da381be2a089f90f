// The frequencies of RoPE without a scaling, for benchmarks of kernels.
#ifndef ROPE_TESTS_SUPPORT_PLAIN_FREQUENCIES_H_
#define ROPE_TESTS_SUPPORT_PLAIN_FREQUENCIES_H_

#include <cmath>
#include <cstdint>

#include "kernels/frequencies/frequencies.h"

namespace rope::testing {

// With theta 10000.
inline kernels::Frequencies PlainFrequencies(int64_t pairs) {
  kernels::Frequencies frequencies;
  for (int64_t i = 0; i < pairs; ++i) {
    frequencies.inv_freq.push_back(
        std::pow(10000.0L, -static_cast<long double>(i) / static_cast<long double>(pairs)));
  }
  frequencies.key = kernels::TableKey(frequencies);
  return frequencies;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_PLAIN_FREQUENCIES_H_
