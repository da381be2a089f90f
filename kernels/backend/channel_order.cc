#include "kernels/backend/channel_order.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/check.h"

namespace rope::kernels {
namespace {

// Reorders window by window. Word has the size of an element; the loops run over aligned copies, so
// that compilers use SIMD instructions for them.
template <typename Word>
void Reorder(const RotateJob& job, Pairing order) {
  const auto pairs = static_cast<size_t>(job.geometry.partner);
  const size_t bytes = 2 * pairs * sizeof(Word);
  std::vector<Word> before(2 * pairs);
  std::vector<Word> after(2 * pairs);
  for (int64_t token = 0; token < job.tokens; ++token) {
    for (int64_t head = 0; head < job.heads; ++head) {
      const int64_t first =
          token * job.output_strides.token + head * job.output_strides.head + job.geometry.offset;
      char* const window =
          static_cast<char*>(job.output) + first * static_cast<int64_t>(sizeof(Word));
      std::memcpy(before.data(), window, bytes);
      const Word* const from = before.data();
      Word* const to = after.data();
      if (order == Pairing::kHalf) {
        for (size_t i = 0; i < pairs; ++i) to[i] = from[2 * i];
        for (size_t i = 0; i < pairs; ++i) to[i + pairs] = from[2 * i + 1];
      } else {
        for (size_t i = 0; i < pairs; ++i) {
          to[2 * i] = from[i];
          to[2 * i + 1] = from[i + pairs];
        }
      }
      std::memcpy(window, to, bytes);
    }
  }
}

}  // namespace

void ReorderPairs(const RotateJob& job, Pairing order) {
  if (job.geometry.pairs == 0 || job.geometry.pairing == order) return;
  switch (ElementBytes(job.stored())) {
    case 1:
      return Reorder<uint8_t>(job, order);
    case 2:
      return Reorder<uint16_t>(job, order);
    default:
      ROPE_CHECK(ElementBytes(job.stored()) == 4);
      return Reorder<uint32_t>(job, order);
  }
}

}  // namespace rope::kernels
