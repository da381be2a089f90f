#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dtype/element.h"
#include "proto/wire/message_split.h"
#include "server/control/admin.h"
#include "server/control/describe.h"
#include "server/control/tables.h"
#include "server/error.h"
#include "server/limits.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"
#include "tests/unit/server/test_connection.h"

namespace rope::server {
namespace {

using ::rope::testing::TestConnection;

class DescribeTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::DescribeResponse> Ask(const v1::DescribeRequest& request) {
    const auto step = Describe(request, *registry_, reply_bytes_max_, [this](int64_t bytes) {
      admitted_.push_back(bytes);
      return admit_;
    });
    if (!step.ok()) return step.status();
    v1::DescribeResponse answer;
    absl::StatusOr<bool> finished = false;
    for (steps_ = 0; finished.ok() && !*finished; ++steps_) finished = (*step)(answer);
    if (!finished.ok()) return finished.status();
    return answer;
  }
  void ExpectExhausted(const v1::DescribeRequest& request, const std::string& text) {
    EXPECT_THAT(Ask(request), IsExhausted(text));
  }

  // A request for the rows of the positions 0 to rows - 1.
  static v1::DescribeRequest Large(int64_t head_dim, int rows) {
    v1::DescribeRequest request;
    request.mutable_rope()->mutable_config()->set_head_dim(head_dim);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    for (int i = 0; i < rows; ++i) request.add_positions(i);
    return request;
  }

  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  int64_t reply_bytes_max_ = limits::kMessageBytesMax;
  absl::Status admit_;             // the answer of `admit`
  std::vector<int64_t> admitted_;  // bytes
  int steps_ = 0;
};

TEST_F(DescribeTest, RowsOfTooManyBytesAreRefusedBeforeTheyAreComputed) {
  ExpectExhausted(
      Large(65536, kDescribePositionsMax),
      "positions: got 4096 rows of 524320 bytes, want at most 16777216 bytes in one call");
  EXPECT_THAT(admitted_, IsEmpty());
  // A reply is at most as large as a message.
  reply_bytes_max_ = 1000;
  ExpectExhausted(Large(64, 2),
                  "positions: got 2 rows of 544 bytes, want at most 1000 bytes in one call");
  EXPECT_THAT(Ask(Large(64, 1)), IsOk());
}

TEST_F(DescribeTest, RowsUpToTheLimitAreAdmittedAsTwiceTheirBytesAndComputedInSteps) {
  constexpr int64_t kRowBytes = 32 + 32 * 16;
  v1::DescribeRequest request = Large(64, kDescribePositionsMax);
  ASSERT_OK(answer, Ask(request));
  EXPECT_EQ(answer->rows_size(), kDescribePositionsMax);
  EXPECT_EQ(answer->rows(4095).position(), 4095);
  EXPECT_EQ(steps_, 1 + 4096 / (2048 / 32));
  ASSERT_THAT(admitted_, ElementsAre(2 * 4096 * kRowBytes + 32 * 128));
  EXPECT_LE(static_cast<int64_t>(answer->ByteSizeLong()) * 2, admitted_[0]);
  request.set_sinusoidal(true);
  ASSERT_THAT(Ask(request), IsOk());
  EXPECT_EQ(admitted_[1], 2 * 4096 * (kRowBytes + 32 * 16) + 32 * 128);
}

TEST_F(DescribeTest, NothingIsComputedWithoutMemory) {
  admit_ = OutOfMemory();
  ExpectExhausted(Large(64, 1), "memory");
}

template <typename T>
std::vector<T> NumbersOf(const v1::Array& array) {
  std::vector<T> numbers(array.raw().size() / sizeof(T));
  std::memcpy(numbers.data(), array.raw().data(), array.raw().size());
  return numbers;
}

class GetTablesTest : public ::testing::Test {
 protected:
  static v1::GetTablesRequest Plain(int64_t begin = 0, int64_t end = 4) {
    v1::GetTablesRequest request;
    request.mutable_rope()->mutable_config()->set_head_dim(8);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_positions()->mutable_range()->set_begin(begin);
    request.mutable_positions()->mutable_range()->set_end(end);
    return request;
  }
  static v1::GetTablesRequest Moved(int64_t by) {
    v1::GetTablesRequest request = Plain(by, by + 4);
    v1::PositionRange& from = *request.mutable_reposition()->mutable_from()->mutable_range();
    from.set_begin(0);
    from.set_end(4);
    return request;
  }
  static v1::RopeConfig& ConfigOf(v1::GetTablesRequest& request) {
    return *request.mutable_rope()->mutable_config();
  }

  // Plans the request as it is received.
  absl::StatusOr<Steps<v1::GetTablesResponse>> Plan(const v1::GetTablesRequest& sent) {
    bytes_ = sent.SerializeAsString();
    const std::vector<std::string_view> views = {bytes_};
    const auto split =
        proto::Split(proto::Schema::Of(v1::GetTablesRequest::descriptor()), views).value();
    v1::GetTablesRequest request;
    EXPECT_TRUE(request.ParseFromString(split.skeleton));
    return GetTables(request, split, *registry_, reply_bytes_max_, [this](int64_t bytes) {
      admitted_.push_back(bytes);
      return admit_;
    });
  }
  absl::StatusOr<v1::GetTablesResponse> Ask(const v1::GetTablesRequest& request) {
    const auto step = Plan(request);
    if (!step.ok()) return step.status();
    v1::GetTablesResponse answer;
    absl::StatusOr<bool> finished = false;
    for (steps_ = 0; finished.ok() && !*finished; ++steps_) finished = (*step)(answer);
    if (!finished.ok()) return finished.status();
    return answer;
  }
  void ExpectExhausted(const v1::GetTablesRequest& request, const std::string& text) {
    EXPECT_THAT(Ask(request), IsExhausted(text));
  }

  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  std::string bytes_;
  int64_t reply_bytes_max_ = limits::kMessageBytesMax;
  absl::Status admit_;
  std::vector<int64_t> admitted_;
  int steps_ = 0;
};

TEST_F(GetTablesTest, AttentionFactorIsAppliedUnlessSkipped) {
  v1::GetTablesRequest request = Plain(0, 1);
  v1::RopeConfig& config = ConfigOf(request);
  config.set_rope_type("yarn");
  config.set_factor(4);
  config.set_original_max_position_embeddings(4096);
  config.set_attention_factor(1.25);
  EXPECT_EQ(NumbersOf<float>(Ask(request)->cos())[0], 1.25F);
  EXPECT_EQ(Ask(request)->attention_factor(), 1.25);
  request.set_skip_attention_factor(true);
  const auto skipped = Ask(request);
  EXPECT_EQ(NumbersOf<float>(skipped->cos())[0], 1);
  EXPECT_EQ(skipped->attention_factor(), 1.25);
  EXPECT_FALSE(skipped->attention_factor_applied());
}

TEST_F(GetTablesTest, PrecisionHfRoundsForTheDTypeOfTheTable) {
  v1::GetTablesRequest request = Plain(1000, 1001);
  request.mutable_rope()->set_precision(v1::PRECISION_HF);
  request.set_dtype(v1::DTYPE_BF16);
  const float angle = 1000.0F * 1.0F;
  const float want = kernels::FromBFloat16(kernels::ToBFloat16(std::cos(angle)));
  EXPECT_EQ(kernels::FromBFloat16(NumbersOf<uint16_t>(Ask(request)->cos())[0]), want);
}

TEST_F(GetTablesTest, MoveBetweenEmbeddingsIsScaledByTheRatioOfTheirFactors) {
  v1::GetTablesRequest request = Moved(100);
  v1::RopeSpec& from = *request.mutable_reposition()->mutable_from_rope();
  from = request.rope();
  ConfigOf(request).set_rope_theta(500000);
  ConfigOf(request).set_rope_type("yarn");
  ConfigOf(request).set_factor(4);
  ConfigOf(request).set_original_max_position_embeddings(4096);
  ConfigOf(request).set_attention_factor(1.5);
  request.set_dtype(v1::DTYPE_FP64);
  ASSERT_OK(moved, Ask(request));
  EXPECT_EQ(moved->attention_factor(), 1.5);
  // Column 0 has frequency 1 in both.
  EXPECT_NEAR(NumbersOf<double>(moved->cos())[0], 1.5 * std::cos(100.0), 1e-14);
  request.set_skip_attention_factor(true);
  EXPECT_NEAR(NumbersOf<double>(Ask(request)->cos())[0], std::cos(100.0), 1e-14);
}

TEST_F(GetTablesTest, XPosHasRowsOfEachSide) {
  v1::GetTablesRequest request = Plain(700, 701);
  ConfigOf(request).mutable_xpos()->set_scale_base(512);
  request.set_dtype(v1::DTYPE_FP64);
  const std::vector<double> q = NumbersOf<double>(Ask(request)->cos());
  request.set_role(v1::ROLE_K);
  const std::vector<double> k = NumbersOf<double>(Ask(request)->cos());
  EXPECT_NEAR(q[0] * k[0], std::cos(700.0) * std::cos(700.0), 1e-13);
  EXPECT_NE(q[0], k[0]);
}

TEST_F(GetTablesTest, BytesAreBoundedAtTheLimitAndAtTheMessages) {
  EXPECT_THAT(Plan(Plain(0, kTablesRowsMax)), IsOk());
  // A row of 64 frequencies in fp32 has 512 bytes.
  v1::GetTablesRequest request = Plain(0, 32768);
  ConfigOf(request).set_head_dim(128);
  EXPECT_THAT(Plan(request), IsOk());
  reply_bytes_max_ = 511;
  request.mutable_positions()->mutable_range()->set_end(1);
  ExpectExhausted(request, "want at most 511 bytes");
}

TEST_F(GetTablesTest, MemoryIsAdmittedOnceAndARefusalIsTheAnswer) {
  ASSERT_THAT(Plan(Moved(100)), IsOk());
  // Four rows: 4 columns of cos and sin in fp32, twice; two positions.
  EXPECT_THAT(admitted_, ElementsAre(4 * (2 * 32 + 16)));
  admit_ = absl::ResourceExhaustedError("request: full");
  ExpectExhausted(Plain(), "request: full");
}

TEST_F(GetTablesTest, LargeTableTakesManySteps) {
  ASSERT_THAT(Ask(Plain(0, 4096)), IsOk());
  EXPECT_EQ(steps_, 8);  // 512 rows of 4 columns each
}

constexpr char kOwner[] = "uid:1000";  // who runs no test

TEST(AdminTest, PagesHoldEveryModelOnceInOrder) {
  const auto registry = ModelRegistry::Create({}).value();
  const v1::ListModelsResponse all = *ListModels({}, *registry);
  EXPECT_EQ(all.next_page_token(), "");
  for (const int size : {1, 7, all.models_size() - 1, all.models_size(), all.models_size() + 1}) {
    v1::ListModelsRequest request;
    request.set_page_size(size);
    std::vector<std::string> names;
    do {
      const v1::ListModelsResponse page = *ListModels(request, *registry);
      ASSERT_GE(page.models_size(), 1);
      ASSERT_LE(page.models_size(), size);
      for (const v1::Model& model : page.models()) names.push_back(model.name());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    ASSERT_EQ(names.size(), static_cast<size_t>(all.models_size())) << size;
    for (int i = 0; i < all.models_size(); ++i) {
      EXPECT_EQ(names[static_cast<size_t>(i)], all.models(i).name());
    }
  }
}

TEST(AdminTest, PageEndsAtAMebibyte) {
  constexpr int kModels = 130;  // of 64 layer types with names of 128 bytes: 8 KiB in a page
  std::vector<ModelRegistry::ModelFile> files;
  for (int i = 0; i < kModels; ++i) {
    files.push_back({absl::StrCat("aaa", i), testing::ConfigOfManyLayerTypes()});
  }
  const auto registry = ModelRegistry::Create(files).value();
  v1::ListModelsRequest request;
  std::vector<int> pages;
  do {
    const v1::ListModelsResponse page = *ListModels(request, *registry);
    EXPECT_LE(static_cast<int64_t>(page.ByteSizeLong()), kModelsPageBytesMax + 1024);
    pages.push_back(page.models_size());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  ASSERT_THAT(pages, SizeIs(2));
  EXPECT_LT(pages[0], kModels);
  EXPECT_EQ(static_cast<size_t>(pages[0] + pages[1]), registry->models().size());
}

TEST(AdminTest, ConnectionsAreThoseOfTheCallersOwnerOrAllForRootInPages) {
  testing::TestClients clients;
  Connections& connections = clients.connections;
  const TestConnection first(connections, kOwner);
  const TestConnection tcp(connections, "ip:192.0.2.7", TestConnection::Transport::kTcp);
  const TestConnection third(connections, kOwner);
  first.connection()->BeginCall();
  first.connection()->BeginCall();
  first.connection()->EndCall();
  first.connection()->CountMessage(77);
  ASSERT_OK(own, ListConnections({}, kOwner, connections));
  EXPECT_EQ(own->owner(), kOwner);
  ASSERT_EQ(own->connections_size(), 2);
  EXPECT_THAT(own->connections(0).ShortDebugString(),
              EndsWith("owner: \"uid:1000\" transport: \"unix\" calls: 2 calls_in_flight: 1 "
                       "message_bytes: 77"));
  v1::ListConnectionsRequest request;
  request.set_page_size(2);
  ASSERT_OK(page, ListConnections(request, "uid:0", connections));
  EXPECT_EQ(page->owner(), "");
  ASSERT_EQ(page->connections_size(), 2);
  EXPECT_EQ(page->connections(1).transport(), "tcp");
  request.set_page_token(page->next_page_token());
  ASSERT_OK(last, ListConnections(request, "uid:0", connections));
  ASSERT_EQ(last->connections_size(), 1);
  EXPECT_EQ(last->connections(0).connection_id(), third.connection()->id());
  EXPECT_EQ(last->next_page_token(), "");
  ASSERT_OK(nobodys, ListConnections({}, "uid:65534", connections));
  EXPECT_EQ(nobodys->owner(), "uid:65534");
  request.set_page_token("x");
  EXPECT_THAT(ListConnections(request, kOwner, connections), IsInvalid("page_token: got \"x\""));
  request.set_page_size(-1);
  EXPECT_THAT(ListConnections(request, kOwner, connections), IsInvalid("page_size: got -1"));
}

TEST(AdminTest, StatisticsAreThoseOfTheCache) {
  kernels::TableCache tables(1 << 20);
  const auto resolved = kernels::Resolve(kernels::RopeConfig{}, 64).value();
  const auto frequencies = resolved->ForSeqLen(1, kernels::Multiplier::kOne);
  kernels::TokenRows rows;
  ASSERT_THAT(tables.AppendRows(*frequencies, {0, 1, 70, 5}, rows), IsOk());
  const v1::TableCacheStatistics statistics = WriteStatistics(tables);
  EXPECT_EQ(statistics.misses(), 2);
  EXPECT_EQ(statistics.hits(), 1);
  EXPECT_EQ(statistics.builds(), 2);
  EXPECT_EQ(statistics.evictions(), 0);
  EXPECT_EQ(statistics.pages(), 2);
  EXPECT_EQ(statistics.tables(), 1);
  EXPECT_EQ(statistics.budget_bytes(), 1 << 20);
  EXPECT_EQ(statistics.bytes(), tables.statistics().bytes);
  EXPECT_GT(statistics.bytes(), 2 * 64 * 2 * 32 * 4);
}

}  // namespace
}  // namespace rope::server
