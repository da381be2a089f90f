#include "proto/wire/message_join.h"

#include <gtest/gtest.h>

#include <cmath>
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

TEST(AppendTensorTest, ResponseIsByteForByteWhatTheGeneratedSerializerWrites) {
  v1::RotateResponse expected;
  expected.set_device("cpu");
  std::string bytes = expected.SerializeAsString();
  for (const size_t raw_bytes : {size_t{0}, size_t{1}, size_t{127}, size_t{70000}}) {
    const v1::Tensor tensor = MakeTensor(static_cast<int64_t>(raw_bytes));
    const std::string raw(raw_bytes, 'q');
    v1::Tensor before = tensor;
    before.clear_array();
    AppendTensor(v1::RotateResponse::kTensorsFieldNumber,
                 {.tensor = before.SerializeAsString(),
                  .array = tensor.array().SerializeAsString(),
                  .raw_bytes = raw_bytes},
                 bytes);
    bytes += raw;
    *expected.add_tensors() = tensor;
    if (raw_bytes > 0) expected.mutable_tensors()->rbegin()->mutable_array()->set_raw(raw);
  }
  EXPECT_EQ(bytes, expected.SerializeAsString());
}

TEST(AppendVarintTest, MessageIsByteForByteWhatTheGeneratedSerializerWrites) {
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{1}, uint64_t{127}, uint64_t{128}, uint64_t{1} << 40, ~uint64_t{0}}) {
    v1::RegionSpan message;
    message.set_region_id(value);
    message.set_offset(value / 3);
    std::string bytes;
    AppendVarint(v1::RegionSpan::kRegionIdFieldNumber, value, bytes);
    AppendVarint(v1::RegionSpan::kOffsetFieldNumber, value / 3, bytes);
    EXPECT_EQ(bytes, message.SerializeAsString()) << value;
  }
}

TEST(AppendPackedTest, MessageIsByteForByteWhatTheGeneratedSerializerWrites) {
  for (const std::vector<int64_t>& values :
       {std::vector<int64_t>{}, {0}, {1, 127, 128}, {-1, int64_t{1} << 62}}) {
    v1::Array expected;
    expected.mutable_shape()->Assign(values.begin(), values.end());
    const std::vector<double> numbers(values.begin(), values.end());
    expected.mutable_numbers()->Assign(numbers.begin(), numbers.end());
    std::string bytes;
    AppendPacked(v1::Array::kShapeFieldNumber, values, bytes);
    AppendDoubles(v1::Array::kNumbersFieldNumber, numbers, bytes);
    EXPECT_EQ(bytes, expected.SerializeAsString());
  }
}

TEST(AppendDoubleTest, MessageIsByteForByteWhatTheGeneratedSerializerWrites) {
  for (const double value : {0.0, -0.0, 1.0, 0.25, -3.5e-300, std::nan("")}) {
    v1::StageTimes expected;
    expected.set_decode_us(value);
    expected.set_execute_us(value);
    std::string bytes;
    AppendDouble(v1::StageTimes::kDecodeUsFieldNumber, value, bytes);
    AppendDouble(v1::StageTimes::kExecuteUsFieldNumber, value, bytes);
    EXPECT_EQ(bytes, expected.SerializeAsString()) << value;
  }
}

}  // namespace
}  // namespace rope::proto
