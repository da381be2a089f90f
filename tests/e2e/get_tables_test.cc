// GetTables and the control plane through the client library, against a real server: every layout
// and dtype against the formula, moves, and engines that rotate with a table of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dtype/element.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::DType;
using client::TableArray;
using client::TableLayout;
using client::TablesReply;
using client::TablesRequest;

constexpr int64_t kHeadDim = 64;
constexpr size_t kColumns = kHeadDim / 2;

// The numbers of an array, exactly.
std::vector<double> NumbersOf(const TableArray& array) {
  const auto element = static_cast<size_t>(client::ElementBytes(array.dtype));
  std::vector<double> numbers;
  for (size_t at = 0; at < array.data.size(); at += element) {
    const std::byte* const data = array.data.data() + at;
    if (array.dtype == DType::kFloat64) {
      numbers.emplace_back();
      std::memcpy(&numbers.back(), data, sizeof(double));
    } else if (array.dtype == DType::kFloat32) {
      float number = 0;
      std::memcpy(&number, data, sizeof(number));
      numbers.push_back(number);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, data, sizeof(bits));
      numbers.push_back(array.dtype == DType::kFloat16 ? kernels::FromFloat16(bits)
                                                       : kernels::FromBFloat16(bits));
    }
  }
  return numbers;
}

// Half a unit in the last place of `value`, and 1e-13 for the doubles that are rounded.
double HalfUnit(double value, DType dtype) {
  if (dtype == DType::kFloat64) return 1e-13;
  const int digits = dtype == DType::kFloat32 ? 24 : dtype == DType::kFloat16 ? 11 : 8;
  const int lowest = dtype == DType::kFloat16 ? -14 : -126;
  const int exponent = std::max(std::ilogb(value), lowest);
  return std::ldexp(0.5, exponent - digits + 1) + 1e-13;
}

long double Frequency(size_t column, long double theta = 10000) {
  return std::pow(theta, -2.0L * static_cast<long double>(column) / kHeadDim);
}

class GetTablesTest : public ::testing::Test {
 protected:
  static TablesRequest Plain(int64_t begin, int64_t end) {
    TablesRequest request;
    request.rope.config = client::RopeConfig{.head_dim = kHeadDim};
    request.rope.pairing = client::Pairing::kHalf;
    request.positions = {.begin = begin, .end = end};
    return request;
  }
  TablesReply Ask(const TablesRequest& request) {
    Result<TablesReply> reply = client_.GetTables(request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? *std::move(reply) : TablesReply();
  }

  TestServer server_;
  Client client_ = Client::Connect(server_.address()).value();
};

TEST_F(GetTablesTest, EveryLayoutInEveryDTypeIsTheFormulaToHalfAUnit) {
  constexpr int64_t kBegin = 1000000;
  constexpr size_t kRows = 5;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const TableLayout layout : {TableLayout::kCosSin, TableLayout::kCosSinCache,
                                     TableLayout::kDuplicated, TableLayout::kComplex}) {
      TablesRequest request = Plain(kBegin, kBegin + static_cast<int64_t>(kRows));
      request.dtype = dtype;
      request.layout = layout;
      const TablesReply reply = Ask(request);
      const std::vector<double> table = NumbersOf(reply.table);
      const std::vector<double> cos = NumbersOf(reply.cos);
      const std::vector<double> sin = NumbersOf(reply.sin);
      const auto check = [&](double got, long double want) {
        EXPECT_NEAR(got, static_cast<double>(want), HalfUnit(static_cast<double>(want), dtype));
      };
      for (size_t row = 0; row < kRows; ++row) {
        for (size_t j = 0; j < kColumns; ++j) {
          const long double angle =
              static_cast<long double>(kBegin + static_cast<int64_t>(row)) * Frequency(j);
          const long double c = std::cos(angle);
          const long double s = std::sin(angle);
          switch (layout) {
            case TableLayout::kCosSin:
              check(cos.at(row * kColumns + j), c);
              check(sin.at(row * kColumns + j), s);
              break;
            case TableLayout::kCosSinCache:
              check(table.at(row * kHeadDim + j), c);
              check(table.at(row * kHeadDim + kColumns + j), s);
              break;
            case TableLayout::kDuplicated:
              for (const size_t half : {size_t{0}, kColumns}) {
                check(cos.at(row * kHeadDim + half + j), c);
                check(sin.at(row * kHeadDim + half + j), s);
              }
              break;
            case TableLayout::kComplex:
              check(table.at(row * kHeadDim + 2 * j), c);
              check(table.at(row * kHeadDim + 2 * j + 1), s);
              break;
          }
        }
      }
    }
  }
}

TEST_F(GetTablesTest, DifferenceRowsMoveWithinAnEmbeddingAndBetweenTwo) {
  TablesRequest request = Plain(0, 0);
  request.positions = {.position_ids = {5000, 17, 3}};
  request.dtype = DType::kFloat64;
  client::TableReposition move;
  move.from.position_ids = {1000000, 17, 400};
  request.reposition = move;
  const std::vector<double> within = NumbersOf(Ask(request).cos);
  request.reposition->from_rope = request.rope;
  request.reposition->from_rope->config->rope_theta = 500000;
  const TablesReply reply = Ask(request);
  const std::vector<double> between = NumbersOf(reply.sin);
  EXPECT_EQ(reply.attention_factor, 1);
  for (size_t row = 0; row < 3; ++row) {
    const auto to = static_cast<long double>(request.positions.position_ids[row]);
    const auto from = static_cast<long double>(move.from.position_ids[row]);
    for (size_t j = 0; j < kColumns; ++j) {
      EXPECT_NEAR(within.at(row * kColumns + j),
                  static_cast<double>(std::cos((to - from) * Frequency(j))), 1e-13);
      const long double angle = to * Frequency(j) - from * Frequency(j, 500000);
      EXPECT_NEAR(between.at(row * kColumns + j), static_cast<double>(std::sin(angle)), 1e-13);
    }
  }
}

// The plain formula of an engine in float32, half pairs: row p of the cache is that of position p.
std::vector<float> EngineRotation(const std::vector<float>& x, const std::vector<double>& cache,
                                  size_t tokens, size_t heads) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < tokens * heads; ++i) {
    const size_t token = i / heads;
    for (size_t j = 0; j < kColumns; ++j) {
      const auto cos = static_cast<float>(cache.at(token * kHeadDim + j));
      const auto sin = static_cast<float>(cache.at(token * kHeadDim + kColumns + j));
      const float a = x[i * kHeadDim + j];
      const float b = x[i * kHeadDim + kColumns + j];
      out[i * kHeadDim + j] = a * cos - b * sin;
      out[i * kHeadDim + kColumns + j] = b * cos + a * sin;
    }
  }
  return out;
}

TEST_F(GetTablesTest, EngineThatKeepsTheCacheOfVllmRotatesAsTheServerDoes) {
  constexpr size_t kTokens = 300;
  constexpr size_t kHeads = 3;
  TablesRequest request = Plain(0, kTokens);
  request.rope.config->rope_type = client::RopeType::kYarn;  // with an attention factor
  request.rope.config->factor = 8;
  request.rope.config->original_max_position_embeddings = 64;
  request.layout = TableLayout::kCosSinCache;
  const TablesReply table = Ask(request);
  ASSERT_THAT(table.table.shape, ElementsAre(kTokens, kHeadDim));
  ASSERT_GT(table.attention_factor, 1.2);

  std::vector<float> x(kTokens * kHeads * kHeadDim);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::vector<float> rotated(x.size());
  client::RotateRequest rotate;
  rotate.rope = request.rope;
  rotate.positions.start = 0;
  rotate.tensors = {{.layout = "SHD",
                     .shape = {kTokens, kHeads, kHeadDim},
                     .data = x.data(),
                     .output = rotated.data()}};
  ASSERT_TRUE(client_.Rotate(rotate).ok());
  const std::vector<float> engines = EngineRotation(x, NumbersOf(table.table), kTokens, kHeads);
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t partner = i % kHeadDim < kColumns ? i + kColumns : i - kColumns;
    const double scale = table.attention_factor * (std::abs(x[i]) + std::abs(x[partner])) + 1e-30;
    largest = std::max(largest, std::abs(engines[i] - rotated[i]) / scale);
  }
  // Each side is within 1.5e-7 of the exact rotation.
  EXPECT_LT(largest, 3e-7);
}

TEST_F(GetTablesTest, TablesOfThePresetsHaveTheRowsOfDescribe) {
  for (const char* const model : {"deepseek-v3", "glm-4.5", "gpt-oss-20b"}) {
    TablesRequest request;
    request.rope.model = model;
    request.positions.position_ids = {0, 131071};
    request.dtype = DType::kFloat64;
    ASSERT_OK(table, client_.GetTables(request));
    client::DescribeRequest describe;
    describe.rope.model = model;
    describe.positions = {0, 131071};
    const auto described = client_.Describe(describe).value();
    EXPECT_EQ(table->config_id, described.config_id);
    std::vector<double> cos;
    for (const client::Row& row : described.rows) {
      cos.insert(cos.end(), row.cos.begin(), row.cos.end());
    }
    EXPECT_EQ(NumbersOf(table->cos), cos);
  }
}

TEST_F(GetTablesTest, TableBeyondTheServersMemoryIsRefusedAndASmallerOneIsAnswered) {
  // 65,536 rows of 64 channels in bf16 are 8 MiB, and take twice that.
  TestServer small({"--memory_bytes=64MiB"});
  TablesRequest request = Plain(0, 65536);
  request.dtype = DType::kBFloat16;
  request.layout = TableLayout::kCosSinCache;
  Client client = Client::Connect(small.address()).value();
  const Result<TablesReply> reply = client.GetTables(request, {.attempts_max = 1});
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().code(), StatusCode::kResourceExhausted);
  request.positions.end = 8192;
  EXPECT_TRUE(client.GetTables(request).ok());
  EXPECT_TRUE(Serves(*small.NewStub()));
}

TEST_F(GetTablesTest, ClientListsTheMemoryThatItShares) {
  EXPECT_THAT(client_.CallJson("ListRegions", "{}").value(), HasSubstr("\"regions\": []"));
  const std::string path = "unix:" + TemporaryFolder() + "/rope.sock";
  TestServer server({"--listen=" + path, "--enable_shared_memory"});
  const Client sharing = Client::Connect(path, {.arena_bytes = 1 << 20}).value();
  ASSERT_OK(regions, sharing.CallJson("ListRegions", "{}"));
  EXPECT_THAT(*regions,
              AllOf(HasSubstr("\"kind\": \"memfd\""), HasSubstr("\"byte_size\": \"1048576\"")));
}

}  // namespace
}  // namespace rope::testing
