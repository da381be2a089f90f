#include "server/request/array_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/dtype/element.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::RawBytes;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

v1::Array Numbers(v1::DType dtype, const std::vector<int64_t>& shape,
                  const std::vector<double>& numbers) {
  v1::Array array;
  array.set_dtype(dtype);
  SetShape(array, shape);
  array.mutable_numbers()->Assign(numbers.begin(), numbers.end());
  return array;
}

v1::Array Raw(v1::DType dtype, const std::vector<int64_t>& shape, const std::string& raw) {
  v1::Array array;
  array.set_dtype(dtype);
  SetShape(array, shape);
  array.set_raw(raw);
  return array;
}

absl::StatusOr<IntegerArray> ReadAsIntegers(const v1::Array& array, size_t piece = 1000) {
  v1::RotateRequest request;
  *request.mutable_positions()->mutable_position_ids() = array;
  const ReceivedRequest received(request, piece);
  ArraySource source(received.split);
  return ReadIntegers(received.message.positions().position_ids(), source, "ids");
}

// Reads the elements of a tensor and returns them as numbers.
absl::StatusOr<std::vector<double>> ReadAsTensor(const v1::Array& array, int64_t count,
                                                 size_t piece = 1000) {
  v1::RotateRequest request;
  *request.add_tensors()->mutable_array() = array;
  const ReceivedRequest received(request, piece);
  const v1::Array& read = received.message.tensors(0).array();
  const auto dtype = ReadTensorDType(read, "x");
  if (!dtype.ok()) return dtype.status();
  ArraySource source(received.split);
  const auto elements = ReadTensorBytes(read, *dtype, count, source, "x");
  if (!elements.ok()) return elements.status();
  std::vector<uint8_t> flat(static_cast<size_t>(elements->bytes.bytes));
  elements->bytes.CopyTo(flat.data());
  std::vector<double> numbers;
  for (size_t i = 0; i < flat.size(); i += static_cast<size_t>(kernels::ElementBytes(*dtype))) {
    numbers.push_back(kernels::ReadElement(&flat[i], *dtype));
  }
  return numbers;
}

TEST(ReadIntegersTest, RawOfBothWidthsInAnyPieces) {
  const std::vector<int64_t> wide = {0, -1, int64_t{1} << 40};
  const std::vector<int32_t> narrow = {0, -1, 1 << 30};
  for (const size_t piece : {1U, 3U, 5U, 1000U}) {
    ASSERT_OK(from_wide, ReadAsIntegers(Raw(v1::DTYPE_INT64, {3}, RawBytes(wide)), piece));
    EXPECT_EQ(from_wide->values, wide);
    ASSERT_OK(from_narrow, ReadAsIntegers(Raw(v1::DTYPE_INT32, {3}, RawBytes(narrow)), piece));
    EXPECT_THAT(from_narrow->values, ElementsAre(0, -1, 1 << 30));
  }
}

TEST(ReadIntegersTest, NumbersWithoutShapeAndDTypeAreOneAxisOfInt64) {
  ASSERT_OK(array, ReadAsIntegers(Numbers(v1::DTYPE_UNSPECIFIED, {}, {4, 5})));
  EXPECT_THAT(array->shape, ElementsAre(2));
  EXPECT_THAT(array->values, ElementsAre(4, 5));
}

TEST(ReadIntegersTest, NothingIsAnEmptyAxis) {
  ASSERT_OK(array, ReadAsIntegers(v1::Array()));
  EXPECT_THAT(array->shape, ElementsAre(0));
  EXPECT_THAT(array->values, IsEmpty());
}

TEST(ReadIntegersTest, RawOfZeroElementsIsLegal) {
  ASSERT_OK(array, ReadAsIntegers(Raw(v1::DTYPE_INT32, {0}, "")));
  EXPECT_THAT(array->values, IsEmpty());
}

TEST(ReadTensorTest, NumbersRoundToEachDType) {
  // Ties go to the even neighbour.
  const std::vector<double> numbers = {1.0 + std::ldexp(1, -8), 1.0 + std::ldexp(3, -8), 65520,
                                       1e300, -0.0};
  ASSERT_OK(bf16, ReadAsTensor(Numbers(v1::DTYPE_BF16, {5}, numbers), 5));
  EXPECT_THAT(*bf16, ElementsAre(1, 1 + std::ldexp(1, -6), 65536, INFINITY, 0));
  ASSERT_OK(fp16, ReadAsTensor(Numbers(v1::DTYPE_FP16, {5}, numbers), 5));
  EXPECT_THAT(*fp16, ElementsAre(numbers[0], numbers[1], INFINITY, INFINITY, 0));
  EXPECT_TRUE(std::signbit((*fp16)[4]));
  ASSERT_OK(fp32, ReadAsTensor(Numbers(v1::DTYPE_FP32, {1}, {0.1}), 1));
  EXPECT_THAT(*fp32, ElementsAre(static_cast<double>(0.1F)));
}

TEST(ReadTensorTest, NaNStaysNaNInEveryDType) {
  for (const v1::DType dtype : {v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16}) {
    ASSERT_OK(values, ReadAsTensor(Numbers(dtype, {1}, {NAN}), 1));
    EXPECT_TRUE(std::isnan((*values)[0])) << v1::DType_Name(dtype);
  }
}

TEST(ReadTensorTest, RawIsTakenBitForBitInAnyPieces) {
  const std::vector<float> values = {1.5F, -2.25F, 1e-40F};
  for (const size_t piece : {1U, 7U, 1000U}) {
    ASSERT_OK(read, ReadAsTensor(Raw(v1::DTYPE_FP32, {3}, RawBytes(values)), 3, piece));
    EXPECT_THAT(*read, ElementsAre(values[0], values[1], values[2]));
  }
}

}  // namespace
}  // namespace rope::server
