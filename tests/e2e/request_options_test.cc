// Options of the C++ client other than a plain rotation, against a real server.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_server.h"

namespace rope::client {
namespace {

constexpr int64_t kTokens = 5;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadDim = 8;
constexpr int64_t kStart = 1000;

class RequestOptionsTest : public ::testing::Test {
 protected:
  RequestOptionsTest() : client_(Client::Connect(server_.address()).value()) {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<float>(i % 17) - 8;
  }

  RotateRequest Request() const {
    RotateRequest request;
    request.rope.config = RopeConfig{.head_dim = kHeadDim};
    request.rope.pairing = Pairing::kHalf;
    request.positions.start = kStart;
    request.tensors = {
        {.layout = "SHD", .shape = {kTokens, kHeads, kHeadDim}, .data = data_.data()}};
    return request;
  }
  std::vector<float> Rotated(const RotateRequest& request) const {
    const Result<RotateReply> reply = client_.Rotate(request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    if (!reply.ok()) return {};
    const auto* begin = static_cast<const float*>(reply->tensors[0].data);
    return {begin, begin + reply->tensors[0].bytes / 4};
  }

  testing::TestServer server_;
  Client client_;
  std::vector<float> data_ = std::vector<float>(kTokens * kHeads * kHeadDim);
};

TEST_F(RequestOptionsTest, StridedTensorIntoAnotherLayoutIsThePackedOneMoved) {
  const std::vector<float> packed = Rotated(Request());
  // Rows of a buffer with twice as many heads, like a slice of a packed QKV tensor.
  std::vector<float> wide(2 * data_.size(), -1);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::copy_n(&data_[static_cast<size_t>(t * kHeads * kHeadDim)], kHeads * kHeadDim,
                &wide[static_cast<size_t>(2 * t * kHeads * kHeadDim)]);
  }
  RotateRequest request = Request();
  request.tensors[0].data = wide.data();
  request.tensors[0].strides = {2 * kHeads * kHeadDim, kHeadDim, 1};
  EXPECT_EQ(Rotated(request), packed);

  request.tensors[0].output_layout = "HSD";
  const std::vector<float> moved = Rotated(request);
  ASSERT_EQ(moved.size(), packed.size());
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        ASSERT_EQ(moved[static_cast<size_t>((h * kTokens + t) * kHeadDim + d)],
                  packed[static_cast<size_t>((t * kHeads + h) * kHeadDim + d)]);
      }
    }
  }
}

// The result with the channels of `rotary` in halves, from one with interleaved pairs.
std::vector<float> InHalves(const std::vector<float>& pairs, int64_t rotary) {
  std::vector<float> halves = pairs;
  for (size_t head = 0; head < halves.size(); head += kHeadDim) {
    for (int64_t i = 0; i < rotary; ++i) {
      const size_t to = head + static_cast<size_t>(i / 2 + i % 2 * (rotary / 2));
      halves[to] = pairs[head + static_cast<size_t>(i)];
    }
  }
  return halves;
}

TEST_F(RequestOptionsTest, ChannelOrderOfTheResultIsAnotherOrderOfTheSameNumbers) {
  for (const int64_t rotary : {kHeadDim, kHeadDim / 2}) {
    RotateRequest request = Request();
    request.rope.pairing = Pairing::kInterleaved;
    request.rope.config->rotary_dim = rotary;
    const std::vector<float> pairs = Rotated(request);
    request.channel_order = Pairing::kInterleaved;
    EXPECT_EQ(Rotated(request), pairs);
    request.channel_order = Pairing::kHalf;
    const std::vector<float> halves = Rotated(request);
    EXPECT_EQ(halves, InHalves(pairs, rotary));

    // What is stored in halves is repositioned as half pairs, and may return to interleaved ones.
    RotateRequest move = request;
    move.rope.pairing = Pairing::kHalf;
    move.operation = Operation::kReposition;
    move.reposition = Reposition{.from = request.positions};
    move.positions.start = kStart + 7;
    move.tensors[0].data = halves.data();
    move.channel_order = Pairing::kInterleaved;
    RotateRequest direct = Request();
    direct.rope = request.rope;
    direct.positions.start = kStart + 7;
    const std::vector<float> moved = Rotated(move), want = Rotated(direct);
    ASSERT_EQ(moved.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(moved[i], want[i], 1e-5) << i;
  }
}

TEST_F(RequestOptionsTest, RowsOfDescribeRotateAsTheirConfigDoes) {
  DescribeRequest describe{.rope = Request().rope};
  for (int64_t t = 0; t < kTokens; ++t) describe.positions.push_back(kStart + t);
  ASSERT_OK(described, client_.Describe(describe));
  std::vector<double> cos;
  std::vector<double> sin;
  for (const Row& row : described->rows) {
    cos.insert(cos.end(), row.cos.begin(), row.cos.end());
    sin.insert(sin.end(), row.sin.begin(), row.sin.end());
  }
  RotateRequest request = Request();
  request.rope = {.pairing = Pairing::kHalf};
  request.positions = {};
  const std::vector<int64_t> shape = {kTokens, kHeadDim / 2};
  request.rows = {.cos = ArrayView{DType::kFloat64, shape, cos.data()},
                  .sin = ArrayView{DType::kFloat64, shape, sin.data()}};
  const std::vector<float> by_rows = Rotated(request);
  const std::vector<float> by_config = Rotated(Request());
  ASSERT_EQ(by_rows.size(), by_config.size());
  for (size_t i = 0; i < by_rows.size(); ++i) EXPECT_NEAR(by_rows[i], by_config[i], 2e-6);
}

TEST_F(RequestOptionsTest, NormScaleAndOutputTypeAreOfTheSamePass) {
  // Channels of 2 have norm 2, so a weight of 4 makes them 4; an angle of 0 and a scale of 0.5: 2.
  std::fill(data_.begin(), data_.end(), 2.0f);
  const std::vector<float> weight(kHeadDim, 4.0f);
  RotateRequest request = Request();
  request.positions = {.position_ids = std::vector<int64_t>(kTokens, 0)};
  request.output_dtype = DType::kFloat8E4M3;
  request.tensors[0].norm = {.eps = 1e-6, .weight = {.shape = {kHeadDim}, .data = weight.data()}};
  request.tensors[0].scale = 0.5;
  request.tensors[0].fp8_scale = 2;
  ASSERT_OK(reply, client_.Rotate(request));
  const RotatedTensor& tensor = reply->tensors[0];
  EXPECT_EQ(tensor.dtype, DType::kFloat8E4M3);
  EXPECT_EQ(tensor.fp8_scale, 2);
  ASSERT_EQ(tensor.bytes, kTokens * kHeads * kHeadDim);
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  EXPECT_EQ(std::count(bytes, bytes + tensor.bytes, uint8_t{0x38}), tensor.bytes);  // 1 each
}

}  // namespace
}  // namespace rope::client
