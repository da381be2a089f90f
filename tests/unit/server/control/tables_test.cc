#include "server/control/tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dtype/element.h"
#include "proto/wire/message_split.h"
#include "proto/wire/schema.h"
#include "server/error.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

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

TEST_F(GetTablesTest, RowsAreBoundedAtTheLimit) {
  ExpectExhausted(Plain(0, kTablesRowsMax + 1), "positions: got 65537 rows");
  EXPECT_TRUE(admitted_.empty());
  EXPECT_THAT(Plan(Plain(0, kTablesRowsMax)), IsOk());
}

TEST_F(GetTablesTest, BytesAreBoundedAtTheLimitAndAtTheMessages) {
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

}  // namespace
}  // namespace rope::server
