// A request of two tensors, and the bytes of its answer.
#ifndef ROPE_TESTS_E2E_TWO_TENSORS_H_
#define ROPE_TESTS_E2E_TWO_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "rope/client.h"

namespace rope::testing {

inline constexpr int64_t kTokens = 96;
inline constexpr int64_t kHeads = 6;
inline constexpr int64_t kHeadDim = 64;
inline constexpr int64_t kRow = kHeads * kHeadDim;
inline constexpr size_t kElements = kTokens * kRow;

// q [S, H, D], and a k of two heads from the same data.
class TwoTensors {
 public:
  TwoTensors() {
    std::minstd_rand random(1);
    for (float& value : data) value = static_cast<float>(random() % 128) / 16 - 4;
  }
  client::RotateRequest Request(client::DType dtype = client::DType::kFloat32) const {
    client::RotateRequest request;
    request.rope.config = client::RopeConfig{.head_dim = kHeadDim};
    request.rope.pairing = client::Pairing::kHalf;
    request.positions.start = 1000;
    request.tensors = {{.layout = "SHD",
                        .dtype = dtype,
                        .shape = {kTokens, kHeads, kHeadDim},
                        .data = data.data()},
                       {.role = client::Role::kK,
                        .layout = "SHD",
                        .dtype = dtype,
                        .shape = {kTokens, 2, kHeadDim},
                        .data = data.data()}};
    return request;
  }

  std::vector<float> data = std::vector<float>(kElements);
  std::vector<float> weight = std::vector<float>(kHeadDim, 1.5f);
};

inline std::vector<std::string> BytesOf(const client::RotateReply& reply) {
  std::vector<std::string> bytes;
  for (const client::RotatedTensor& tensor : reply.tensors) {
    bytes.emplace_back(static_cast<const char*>(tensor.data), tensor.bytes);
  }
  return bytes;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_E2E_TWO_TENSORS_H_
