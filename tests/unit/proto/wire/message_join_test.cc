#include "proto/wire/message_join.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "rope/v1/rotate.pb.h"

namespace rope::proto {
namespace {

v1::Tensor MakeTensor(int64_t tokens) {
  v1::Tensor tensor;
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("THD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_BF16);
  tensor.mutable_array()->add_shape(tokens);
  return tensor;
}

std::string Flatten(const v1::RotateRequest& head, absl::Span<const TensorPart> tensors) {
  std::string bytes;
  for (const MessagePart& part : Join(head, tensors)) {
    bytes += part.header;
    bytes += part.payload;
  }
  return bytes;
}

TEST(MessageJoinTest, IsByteForByteWhatTheGeneratedSerializerWrites) {
  for (const size_t payload_bytes : {size_t{1}, size_t{127}, size_t{128}, size_t{70000}}) {
    v1::RotateRequest expected;
    expected.set_request_id("r1");
    expected.mutable_rope()->set_model("llama-3.1-8b");
    expected.mutable_positions()->set_start(5);
    const v1::RotateRequest head = expected;
    const v1::Tensor q = MakeTensor(1);
    const v1::Tensor k = MakeTensor(300);
    const std::string q_raw(payload_bytes, 'q');
    const std::string k_raw(payload_bytes + 1, 'k');
    for (const auto& [tensor, raw] : {std::pair(q, q_raw), std::pair(k, k_raw)}) {
      v1::Tensor* added = expected.add_tensors();
      *added = tensor;
      added->mutable_array()->set_raw(raw);
    }
    const TensorPart parts[] = {{&q, q_raw}, {&k, k_raw}};
    EXPECT_EQ(Flatten(head, parts), expected.SerializeAsString()) << payload_bytes;
  }
}

TEST(MessageJoinTest, TensorsWithNumbersAndWithoutArraysKeepThem) {
  v1::RotateRequest head;
  head.set_request_id("r1");
  v1::Tensor numbers = MakeTensor(1);
  numbers.mutable_array()->add_numbers(0.5);
  v1::Tensor bare;
  bare.set_role(v1::ROLE_K);
  v1::RotateRequest expected = head;
  *expected.add_tensors() = numbers;
  *expected.add_tensors() = bare;
  const TensorPart parts[] = {{&numbers, {}}, {&bare, {}}};
  EXPECT_EQ(Flatten(head, parts), expected.SerializeAsString());
}

TEST(MessageJoinTest, PayloadIsReferredToNotCopied) {
  const v1::Tensor q = MakeTensor(1);
  const std::string raw(1000, 'q');
  const TensorPart parts[] = {{&q, raw}};
  const auto joined = Join(v1::RotateRequest(), parts);
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0].payload.data(), raw.data());
}

}  // namespace
}  // namespace rope::proto
