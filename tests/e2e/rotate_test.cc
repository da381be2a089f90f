// Real tensors through the client library and a real server, compared with the doubles of Describe.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::DescribeRequest;
using client::Operation;
using client::Positions;
using client::RopeSpec;
using client::RotateReply;
using client::RotateRequest;
using client::TensorView;

std::vector<float> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-3, 3);
  std::vector<float> values(static_cast<size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return uniform(random); });
  return values;
}

TensorView View(const std::string& layout, std::vector<int64_t> shape,
                const std::vector<float>& values) {
  TensorView view;
  view.layout = layout;
  view.shape = std::move(shape);
  view.data = values.data();
  return view;
}

std::vector<float> Floats(const client::RotatedTensor& tensor) {
  const auto* begin = static_cast<const float*>(tensor.data);
  return std::vector<float>(begin, begin + tensor.bytes / 4);
}

class RotateTest : public ::testing::Test {
 protected:
  static RotateRequest MakeRequest(const std::string& model, const TensorView& tensor,
                                   const Positions& positions) {
    RotateRequest request;
    request.rope.model = model;
    request.positions = positions;
    request.tensors = {tensor};
    return request;
  }

  std::vector<float> Rotate(const RotateRequest& request) {
    auto reply = client_.Rotate(request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? Floats(reply->tensors[0]) : std::vector<float>();
  }

  // Largest error / tolerance of `output`, [tokens][heads][128] of llama-3.1-8b (half), compared
  // with Describe.
  double WorstRatio(const std::vector<float>& input, const std::vector<float>& output,
                    const std::vector<int64_t>& positions, int64_t heads) {
    DescribeRequest describe;
    describe.rope.model = "llama-3.1-8b";
    describe.positions = positions;
    const auto reply = client_.Describe(describe);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    double worst = 0;
    for (size_t t = 0; t < positions.size(); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const size_t row = (t * static_cast<size_t>(heads) + static_cast<size_t>(h)) * 128;
        for (size_t i = 0; i < 64; ++i) {
          const double a = input[row + i];
          const double b = input[row + i + 64];
          const double c = reply->rows[t].cos[i];
          const double s = reply->rows[t].sin[i];
          const double tolerance = 1.5e-7 * (std::fabs(a) + std::fabs(b));
          worst = std::max(worst, std::fabs(output[row + i] - (a * c - b * s)) / tolerance);
          worst = std::max(worst, std::fabs(output[row + i + 64] - (b * c + a * s)) / tolerance);
        }
      }
    }
    return worst;
  }

  TestServer server_;
  Client client_ = *Client::Connect(server_.address());
};

TEST_F(RotateTest, MatchesDescribeAtNearAndFarPositions) {
  const std::vector<int64_t> positions = {0, 1, 63, 64, 511, 100000, 1000000, 1 << 30};
  const std::vector<float> values = RandomValues(8 * 4 * 128, 1);
  Positions ids;
  ids.position_ids = positions;
  const auto output = Rotate(MakeRequest("llama-3.1-8b", View("THD", {8, 4, 128}, values), ids));
  ASSERT_EQ(output.size(), values.size());
  EXPECT_LE(WorstRatio(values, output, positions, 4), 1);
}

TEST_F(RotateTest, HeadlessTensorOf4096By1024IsTheClassicRotation) {
  constexpr int64_t kTokens = 4096;
  constexpr int64_t kChannels = 1024;
  const std::vector<float> values = RandomValues(kTokens * kChannels, 12);
  RotateRequest request;
  request.rope.config_json = R"({"rope_theta": 10000})";
  request.rope.pairing = client::Pairing::kInterleaved;
  request.positions.start = 0;
  request.tensors = {View("SD", {kTokens, kChannels}, values)};
  const std::vector<float> output = Rotate(request);
  ASSERT_EQ(output.size(), values.size());
  double worst = 0;
  for (int64_t i = 0; i < kChannels; i += 2) {
    const long double w =
        std::pow(10000.0L, -static_cast<long double>(i) / static_cast<long double>(kChannels));
    for (int64_t t = 0; t < kTokens; t += 1 + t / 64) {
      const auto at = static_cast<size_t>(t * kChannels + i);
      const auto c = static_cast<double>(std::cos(static_cast<long double>(t) * w));
      const auto s = static_cast<double>(std::sin(static_cast<long double>(t) * w));
      const double a = values[at];
      const double b = values[at + 1];
      const double tolerance = 1.5e-7 * (std::fabs(a) + std::fabs(b));
      worst = std::max(worst, std::fabs(output[at] - (a * c - b * s)) / tolerance);
      worst = std::max(worst, std::fabs(output[at + 1] - (b * c + a * s)) / tolerance);
    }
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0);
}

TEST_F(RotateTest, EveryLayoutGivesTheSameNumbers) {
  constexpr int64_t kB = 3, kS = 5, kH = 2, kD = 128;
  const std::vector<float> bshd = RandomValues(kB * kS * kH * kD, 2);
  Positions positions;
  positions.starts = {7, 1000, 0};
  const auto expected =
      Rotate(MakeRequest("llama-3.1-8b", View("BSHD", {kB, kS, kH, kD}, bshd), positions));
  // The index of the element (b, s, h, d) in each layout.
  const auto index = [](const std::string& layout, const std::array<int64_t, 4>& at) {
    int64_t offset = 0;
    for (const char letter : layout) {
      const size_t axis = std::string("BSHD").find(letter);
      const std::array<int64_t, 4> lengths = {kB, kS, kH, kD};
      offset = offset * lengths[axis] + at[axis];
    }
    return static_cast<size_t>(offset);
  };
  for (const std::string layout : {"SBHD", "BHSD", "HBSD", "HSBD", "SHBD"}) {
    std::vector<float> permuted(bshd.size());
    std::vector<int64_t> shape;
    for (const char letter : layout) {
      shape.push_back(letter == 'B' ? kB : letter == 'S' ? kS : letter == 'H' ? kH : kD);
    }
    const auto for_each = [&](const auto& visit) {
      for (int64_t b = 0; b < kB; ++b)
        for (int64_t s = 0; s < kS; ++s)
          for (int64_t h = 0; h < kH; ++h)
            for (int64_t d = 0; d < kD; ++d) {
              visit(index(layout, {b, s, h, d}), index("BSHD", {b, s, h, d}));
            }
    };
    for_each([&](size_t to, size_t from) { permuted[to] = bshd[from]; });
    const auto output =
        Rotate(MakeRequest("llama-3.1-8b", View(layout, shape, permuted), positions));
    ASSERT_EQ(output.size(), expected.size());
    size_t differing = 0;
    for_each([&](size_t to, size_t from) { differing += output[to] != expected[from]; });
    EXPECT_EQ(differing, 0u) << layout;
  }
}

TEST_F(RotateTest, InverseUndoesARotationThatScales) {
  const std::vector<float> values = RandomValues(3 * 64, 4);
  Positions positions;
  positions.start = 5000;
  RotateRequest request = MakeRequest("gpt-oss-20b", View("SD", {3, 64}, values), positions);
  const std::vector<float> rotated = Rotate(request);
  request.operation = Operation::kInverse;
  request.tensors = {View("SD", {3, 64}, rotated)};
  const std::vector<float> restored = Rotate(request);
  ASSERT_EQ(restored.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(restored[i], values[i], 2e-6);
}

TEST_F(RotateTest, ConfigIdStandsForTheWholeSpec) {
  DescribeRequest describe;
  describe.rope.config_json = R"({"head_dim": 64, "rope_theta": 12345})";
  describe.rope.pairing = client::Pairing::kInterleaved;
  ASSERT_OK(described, client_.Describe(describe));
  const std::vector<float> values = RandomValues(2 * 64, 6);
  Positions positions;
  positions.start = 77;
  RotateRequest request = MakeRequest("", View("SD", {2, 64}, values), positions);
  request.rope = describe.rope;
  const std::vector<float> by_json = Rotate(request);
  request.rope = RopeSpec();
  request.rope.config_id = described->config_id;
  EXPECT_EQ(Rotate(request), by_json);
}

TEST_F(RotateTest, ReplyCanLandInTheCallersOwnMemoryEvenInPlace) {
  std::vector<float> values = RandomValues(128, 8);
  const std::vector<float> original = values;
  Positions positions;
  positions.start = 3;
  TensorView view = View("SD", {1, 128}, values);
  const std::vector<float> expected = Rotate(MakeRequest("llama-3.1-8b", view, positions));
  view.output = values.data();
  ASSERT_TRUE(client_.Rotate(MakeRequest("llama-3.1-8b", view, positions)).ok());
  EXPECT_EQ(values, expected);
  EXPECT_NE(values, original);
}

TEST_F(RotateTest, RequestAboveTheLimitNamesTheFlag) {
  TestServer small({"--max_message_bytes=1048576"});
  const Client client = *Client::Connect(small.address());
  const std::vector<float> values(300000);
  Positions positions;
  positions.start = 0;
  const auto reply = client.Rotate(
      MakeRequest("llama-2-7b", View("SHD", {300000 / 128, 1, 128}, values), positions));
  ASSERT_FALSE(reply.ok());
  EXPECT_THAT(reply, StatusIs(StatusCode::kResourceExhausted, HasSubstr("--max_message_bytes")));
  EXPECT_TRUE(Serves(*small.NewStub()));
}

TEST_F(RotateTest, UnixSocketServesLikeTcp) {
  const std::string path = TemporaryFolder() + "/rope.sock";
  TestServer server({"--listen=unix:" + path});
  const Client client = *Client::Connect("unix:" + path);
  const std::vector<float> values = RandomValues(4096 * 128, 9);
  Positions positions;
  positions.start = 0;
  const RotateRequest request =
      MakeRequest("llama-3.1-8b", View("SHD", {4096, 1, 128}, values), positions);
  ASSERT_OK(reply, client.Rotate(request));
  EXPECT_EQ(Floats(reply->tensors[0]), Rotate(request));
}

// 1 MiB of llama-3.1-8b.
RotateRequest MebibyteRequest(const std::vector<float>& values) {
  RotateRequest request;
  request.rope.model = "llama-3.1-8b";
  request.positions.start = 1000;
  request.tensors = {View("SHD", {512, 4, 128}, values)};
  return request;
}

// Returns the address of the reply's tensor after the reply is destroyed. An array of that size,
// kept in `arrays`, would reuse the memory if the destruction had freed it.
const void* PlaceOf(Result<RotateReply> reply, std::vector<std::vector<float>>& arrays) {
  EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  if (!reply.ok()) return nullptr;
  const void* place = reply->tensors[0].owned.get();
  reply->tensors.clear();
  arrays.emplace_back(512 * 4 * 128);
  return place;
}

TEST_F(RotateTest, RepliesWithoutAnOutputShareTheirMemoryOneAfterAnother) {
  const std::vector<float> values = RandomValues(512 * 4 * 128, 3);
  const RotateRequest request = MebibyteRequest(values);
  std::vector<std::vector<float>> arrays;
  const void* first = PlaceOf(client_.Rotate(request), arrays);
  EXPECT_EQ(PlaceOf(client_.Rotate(request), arrays), first);
  EXPECT_EQ(PlaceOf(client_.RotateFuture(request).get(), arrays), first);

  const auto held = client_.Rotate(request).value();
  EXPECT_EQ(held.tensors[0].data, first);
  EXPECT_NE(PlaceOf(client_.Rotate(request), arrays), first);
}

TEST_F(RotateTest, TensorOutlivesItsClient) {
  const std::vector<float> values = RandomValues(512 * 4 * 128, 4);
  auto reply = Client::Connect(server_.address())->Rotate(MebibyteRequest(values));
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  std::vector<int64_t> positions(64);
  std::iota(positions.begin(), positions.end(), 1000);
  EXPECT_LE(WorstRatio(values, Floats(reply->tensors[0]), positions, 4), 1);
}

// The deadline passes during a call. How the call ends is a race; the server must survive in any
// case.
TEST_F(RotateTest, DeadlineThatPassesEndsTheCallAndNotTheServer) {
  const std::vector<float> values(4096 * 32 * 128);
  Positions positions;
  positions.start = 0;
  for (const int milliseconds : {1, 5, 20}) {
    client::CallOptions options;
    options.timeout = std::chrono::milliseconds(milliseconds);
    const auto reply = client_.Rotate(
        MakeRequest("llama-3.1-8b", View("SHD", {4096, 32, 128}, values), positions), options);
    if (!reply.ok()) {
      EXPECT_EQ(reply.status().code(), StatusCode::kDeadlineExceeded) << reply.status().ToString();
    }
  }
  EXPECT_TRUE(Serves(*server_.NewStub()));
}

TEST_F(RotateTest, ManyClientsWithDifferentSizesAllGetTheirOwnAnswer) {
  constexpr int kClients = 8;
  constexpr int kCalls = 30;
  std::vector<double> worst(kClients, 0);
  std::vector<int> failed(kClients, 0);
  std::vector<std::thread> threads;
  for (size_t c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      const Client client = *Client::Connect(server_.address());
      for (int call = 0; call < kCalls; ++call) {
        // 1 token to 2 MiB: on the receiving thread, queued, and in slices.
        const int64_t tokens = int64_t{1} << ((static_cast<int>(c) + call) % 11);
        const int64_t start = 1000 * static_cast<int64_t>(c) + call;
        const auto seed = static_cast<uint32_t>(c * 100 + static_cast<size_t>(call));
        const std::vector<float> values = RandomValues(tokens * 4 * 128, seed);
        Positions positions;
        positions.start = start;
        const auto reply = client.Rotate(
            MakeRequest("llama-3.1-8b", View("SHD", {tokens, 4, 128}, values), positions));
        if (!reply.ok()) {
          ++failed[c];
          continue;
        }
        std::vector<int64_t> checked(static_cast<size_t>(std::min<int64_t>(tokens, 64)));
        for (size_t i = 0; i < checked.size(); ++i) checked[i] = start + static_cast<int64_t>(i);
        worst[c] = std::max(worst[c], WorstRatio(values, Floats(reply->tensors[0]), checked, 4));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t c = 0; c < kClients; ++c) {
    EXPECT_EQ(failed[c], 0) << c;
    EXPECT_LE(worst[c], 1) << c;
    EXPECT_GT(worst[c], 0) << c;
  }
}

}  // namespace
}  // namespace rope::testing
