// Requests whose cost for a server is far larger than their size.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_SUPPORT_HOSTILE_REQUESTS_H_
#define ROPE_TESTS_SUPPORT_HOSTILE_REQUESTS_H_

#include <cstdint>
#include <string>

#include "rope/v1/config.pb.h"
#include "rope/v1/rotate.pb.h"

namespace rope::testing {

// A bf16 tensor of 128 channels whose axes other than D have a stride of 0: a request of about 300
// bytes whose inline answer has `answer_bytes`.
inline v1::RotateRequest SmallRequestForLargeAnswer(int64_t answer_bytes) {
  constexpr int64_t kHeadDim = 128;
  constexpr int64_t kHeadBytes = 2 * kHeadDim;
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(kHeadDim);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  v1::Array& array = *tensor.mutable_array();
  array.set_dtype(v1::DTYPE_BF16);
  for (const int64_t length : {answer_bytes / kHeadBytes, int64_t{1}, kHeadDim}) {
    array.add_shape(length);
  }
  for (const int64_t stride : {0, 0, 1}) array.add_strides(stride);
  array.set_raw(std::string(kHeadBytes, '\0'));
  return request;
}

// `tokens` vectors of two fp32 channels at distant positions. No two positions share a table page,
// so the server builds each row for a single token.
inline v1::RotateRequest ScatteredPositions(int32_t tokens) {
  constexpr uint32_t kPositionMask = (1U << 30) - 1;
  constexpr uint32_t kStep = 715'827'881;  // odd, so that no position repeats
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(2);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  std::string positions;
  for (uint32_t i = 0; i < static_cast<uint32_t>(tokens); ++i) {
    const uint32_t position = i * kStep & kPositionMask;
    for (int shift = 0; shift < 32; shift += 8) {
      positions += static_cast<char>(position >> shift & 0xff);
    }
  }
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  ids.set_dtype(v1::DTYPE_INT32);
  ids.add_shape(tokens);
  ids.set_raw(positions);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  v1::Array& array = *tensor.mutable_array();
  array.set_dtype(v1::DTYPE_FP32);
  for (const int64_t length : {tokens, 1, 2}) array.add_shape(length);
  array.set_raw(std::string(static_cast<size_t>(tokens) * 8, '\0'));
  return request;
}

// A config.json with as many layer types as it may have (64), of the longest names (128 bytes).
inline std::string ConfigOfManyLayerTypes() {
  std::string types;
  for (int i = 10; i < 74; ++i) {
    if (!types.empty()) types += ",";
    types += "\"" + std::string(126, 'a') + std::to_string(i) + R"(": {"rope_theta": 1})";
  }
  return R"({"model_type": "exaone4", "head_dim": 64, "rope_parameters": {)" + types + "}}";
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_HOSTILE_REQUESTS_H_
