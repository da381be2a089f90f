#include "kernels/backend/channel_order.h"

#include <cstring>
#include <vector>

namespace rope::kernels {

void ReorderPairs(const RotateJob& job, Pairing order) {
  const auto pairs = static_cast<size_t>(job.geometry.partner);
  if (job.geometry.pairs == 0 || job.geometry.pairing == order) return;
  const auto size = static_cast<size_t>(ElementBytes(job.stored()));
  std::vector<char> window(2 * pairs * size);
  for (int64_t token = 0; token < job.tokens; ++token) {
    for (int64_t head = 0; head < job.heads; ++head) {
      const int64_t first =
          token * job.output_strides.token + head * job.output_strides.head + job.geometry.offset;
      char* const channels = static_cast<char*>(job.output) + first * static_cast<int64_t>(size);
      std::memcpy(window.data(), channels, window.size());
      for (size_t i = 0; i < pairs; ++i) {
        for (const size_t second : {size_t{0}, size_t{1}}) {
          const size_t half = i + second * pairs, interleaved = 2 * i + second;
          const bool to_half = order == Pairing::kHalf;
          std::memcpy(channels + (to_half ? half : interleaved) * size,
                      window.data() + (to_half ? interleaved : half) * size, size);
        }
      }
    }
  }
}

}  // namespace rope::kernels
