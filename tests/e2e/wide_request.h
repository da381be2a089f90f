// WideRequest: a request whose preparation keeps more than 1 MiB, because its embedding is wide.
#ifndef ROPE_TESTS_E2E_WIDE_REQUEST_H_
#define ROPE_TESTS_E2E_WIDE_REQUEST_H_

#include <cstdint>
#include <vector>

#include "rope/rotate.h"

namespace rope::testing {

inline client::RotateRequest WideRequest(double theta) {
  constexpr int64_t kChannels = 16384;
  static const std::vector<float> data(kChannels);
  client::RotateRequest request;
  request.rope.config = client::RopeConfig();
  request.rope.config->rope_theta = theta;
  request.rope.config->head_dim = kChannels;
  request.rope.config->xpos = client::XPos{.scale_base = 512};
  request.rope.pairing = client::Pairing::kHalf;
  request.tensors = {
      {.role = client::Role::kK, .layout = "SD", .shape = {1, kChannels}, .data = data.data()}};
  return request;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_E2E_WIDE_REQUEST_H_
