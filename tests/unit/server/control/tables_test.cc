#include "server/control/tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/dtype/element.h"
#include "proto/wire/message_split.h"
#include "proto/wire/schema.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/request/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

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
  void ExpectFails(const v1::GetTablesRequest& request, absl::StatusCode code,
                   const std::string& text) {
    EXPECT_THAT(Ask(request), Fails(code, text));
  }

  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  std::string bytes_;
  int64_t reply_bytes_max_ = limits::kMessageBytesMax;
  absl::Status admit_;
  std::vector<int64_t> admitted_;
  int steps_ = 0;
};

TEST_F(GetTablesTest, EachLayoutHasItsArraysAndShapes) {
  v1::GetTablesRequest request = Plain();
  ASSERT_OK(plain, Ask(request));
  EXPECT_THAT(plain->cos().shape(), ElementsAre(4, 4));
  EXPECT_THAT(plain->sin().shape(), ElementsAre(4, 4));
  EXPECT_FALSE(plain->has_table());
  EXPECT_EQ(plain->cos().dtype(), v1::DTYPE_FP32);
  EXPECT_EQ(plain->config_id().size(), 32U);
  EXPECT_EQ(plain->attention_factor(), 1);
  EXPECT_TRUE(plain->attention_factor_applied());
  EXPECT_EQ(plain->seq_len(), 4);
  EXPECT_FALSE(plain->depends_on_seq_len());
  request.set_layout(v1::TABLE_LAYOUT_DUPLICATED);
  EXPECT_THAT(Ask(request)->sin().shape(), ElementsAre(4, 8));
  request.set_layout(v1::TABLE_LAYOUT_COS_SIN_CACHE);
  EXPECT_THAT(Ask(request)->table().shape(), ElementsAre(4, 8));
  EXPECT_FALSE(Ask(request)->has_cos());
  request.set_layout(v1::TABLE_LAYOUT_COMPLEX);
  EXPECT_THAT(Ask(request)->table().shape(), ElementsAre(4, 4, 2));
}

TEST_F(GetTablesTest, NumbersAreThoseOfTheFormula) {
  v1::GetTablesRequest request = Plain(1000000, 1000003);
  request.set_layout(v1::TABLE_LAYOUT_COS_SIN_CACHE);
  request.set_dtype(v1::DTYPE_FP64);
  ASSERT_OK(answer, Ask(request));
  const std::vector<double> table = NumbersOf<double>(answer->table());
  ASSERT_EQ(table.size(), 3U * 8);
  for (int row = 0; row < 3; ++row) {
    for (int j = 0; j < 4; ++j) {
      const long double angle = (1000000 + row) * std::pow(10000.0L, -2.0L * j / 8);
      EXPECT_NEAR(table[row * 8 + j], static_cast<double>(std::cos(angle)), 1e-13);
      EXPECT_NEAR(table[row * 8 + 4 + j], static_cast<double>(std::sin(angle)), 1e-13);
    }
  }
}

TEST_F(GetTablesTest, ListOfPositionsComesAsBytesOrNumbers) {
  v1::GetTablesRequest request = Plain();
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  ids.add_numbers(7);
  ids.add_numbers(3);
  ASSERT_OK(numbers, Ask(request));
  const std::vector<int32_t> raw = {7, 3};
  ids.Clear();
  ids.set_dtype(v1::DTYPE_INT32);
  ids.add_shape(2);
  ids.set_raw(raw.data(), sizeof(int32_t) * raw.size());
  ASSERT_OK(bytes, Ask(request));
  EXPECT_EQ(bytes->cos().raw(), numbers->cos().raw());
  EXPECT_FLOAT_EQ(NumbersOf<float>(bytes->cos())[0], static_cast<float>(std::cos(7.0)));
  EXPECT_FLOAT_EQ(NumbersOf<float>(bytes->cos())[4], static_cast<float>(std::cos(3.0)));
  EXPECT_EQ(bytes->seq_len(), 8);
}

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

TEST_F(GetTablesTest, LengthDecidesDynamicScaling) {
  v1::GetTablesRequest request = Plain();
  v1::RopeConfig& config = ConfigOf(request);
  config.set_rope_type("dynamic");
  config.set_factor(2);
  config.set_max_position_embeddings(16);
  const auto shorter = Ask(request);
  request.set_seq_len(64);
  const auto longer = Ask(request);
  EXPECT_EQ(longer->seq_len(), 64);
  EXPECT_TRUE(longer->depends_on_seq_len());
  EXPECT_NE(shorter->cos().raw(), longer->cos().raw());
}

TEST_F(GetTablesTest, PrecisionHfRoundsForTheDTypeOfTheTable) {
  v1::GetTablesRequest request = Plain(1000, 1001);
  request.mutable_rope()->set_precision(v1::PRECISION_HF);
  request.set_dtype(v1::DTYPE_BF16);
  const float angle = 1000.0F * 1.0F;
  const float want = kernels::FromBFloat16(kernels::ToBFloat16(std::cos(angle)));
  EXPECT_EQ(kernels::FromBFloat16(NumbersOf<uint16_t>(Ask(request)->cos())[0]), want);
  request.set_dtype(v1::DTYPE_FP64);
  ExpectFails(request, kInvalid,
              "dtype: got DTYPE_FP64, want DTYPE_FP32, DTYPE_FP16, DTYPE_BF16 "
              "with PRECISION_HF");
}

TEST_F(GetTablesTest, MoveWithinOneEmbeddingDependsOnTheDifferenceAlone) {
  v1::GetTablesRequest request = Moved(100);
  ConfigOf(request).set_rope_type("yarn");
  ConfigOf(request).set_factor(4);
  ConfigOf(request).set_original_max_position_embeddings(4096);
  ASSERT_OK(moved, Ask(request));
  EXPECT_EQ(moved->attention_factor(), 1);
  const std::vector<float> cos = NumbersOf<float>(moved->cos());
  for (size_t row = 1; row < 4; ++row) EXPECT_EQ(cos[row * 4], cos[0]);
  EXPECT_FLOAT_EQ(cos[0], static_cast<float>(std::cos(100.0)));
  // Backwards: the same cos, the opposite sin.
  std::swap(*request.mutable_positions(), *request.mutable_reposition()->mutable_from());
  const auto back = Ask(request);
  EXPECT_EQ(back->cos().raw(), moved->cos().raw());
  EXPECT_EQ(NumbersOf<float>(back->sin())[0], -NumbersOf<float>(moved->sin())[0]);
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
  request.set_role(v1::ROLE_V);
  ExpectFails(request, kInvalid, "role: got ROLE_V, want ROLE_Q or ROLE_K");
  request.set_role(v1::ROLE_Q);
  request.mutable_positions()->mutable_range()->set_begin(1 << 29);
  request.mutable_positions()->mutable_range()->set_end((1 << 29) + 1);
  ExpectFails(request, kOutOfRange, "positions: got 536870912");
  v1::GetTablesRequest move = Moved(1 << 29);
  ConfigOf(move).mutable_xpos()->set_scale_base(512);
  ExpectFails(move, kOutOfRange, "positions: got a move by 536870912");
}

TEST_F(GetTablesTest, WarnsOfAConfigAndOfPositionsPastTheModelsLength) {
  v1::GetTablesRequest request = Plain(0, 17);
  ConfigOf(request).set_max_position_embeddings(16);
  EXPECT_THAT(Ask(request)->warnings(),
              Contains(HasSubstr("positions: up to 16, past the model's 16")));
}

TEST_F(GetTablesTest, BadPositionsAreRefused) {
  v1::GetTablesRequest request = Plain(-1, 1);
  ExpectFails(request, kInvalid, "positions.range.begin: got -1");
  ExpectFails(Plain(5, 5), kInvalid, "positions.range.end: got 5, want more than begin, 5");
  ExpectFails(Plain(0, limits::kPositionMax + 2), kOutOfRange,
              "positions.range.end: got 1073741826, want at most 1073741825");
  ExpectFails(Plain(0, std::numeric_limits<int64_t>::max()), kOutOfRange, "positions.range.end");
  request.clear_positions();
  ExpectFails(request, kInvalid, "positions: got nothing, want exactly one of range, position_ids");
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  ExpectFails(request, kInvalid, "positions.position_ids.shape: got [0]");
  ids.add_shape(1);
  ids.add_shape(1);
  ids.add_numbers(1);
  ExpectFails(request, kInvalid, "positions.position_ids.shape: got [1, 1], want [rows]");
  ids.clear_shape();
  ids.set_numbers(0, 0.5);
  ExpectFails(request, kInvalid, "positions.position_ids.numbers[0]: got 0.5");
  ids.set_numbers(0, -3);
  ExpectFails(request, kInvalid, "positions.position_ids: got -3");
  ids.set_dtype(v1::DTYPE_FP32);
  ExpectFails(request, kInvalid, "positions.position_ids.dtype: got DTYPE_FP32");
}

TEST_F(GetTablesTest, BadFieldsAreRefused) {
  v1::GetTablesRequest request = Plain();
  request.clear_rope();
  ExpectFails(request, kInvalid, "rope: got nothing");
  request = Plain();
  request.set_dtype(v1::DTYPE_FP8_E4M3);
  ExpectFails(request, kInvalid,
              "dtype: got DTYPE_FP8_E4M3, want DTYPE_FP32, DTYPE_FP16, DTYPE_BF16 or DTYPE_FP64");
  request = Plain();
  request.set_layout(static_cast<v1::TableLayout>(9));
  ExpectFails(request, kInvalid, "layout: got 9, want a value of TableLayout");
  request = Plain();
  request.set_seq_len(0);
  ExpectFails(request, kInvalid, "seq_len: got 0, want a length from 1 to");
  request = Plain();
  request.set_head_dim(16);
  ExpectFails(request, kInvalid, "head_dim: got 16, want the config's 8");
  request = Plain();
  ConfigOf(request).clear_head_dim();
  ExpectFails(request, kInvalid, "rope.config.head_dim: got nothing");
  request = Plain();
  request.set_role(v1::ROLE_K);
  ExpectFails(request, kInvalid, "role: got ROLE_K, want it unset: without xpos");
  request = Plain();
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 64, "num_hidden_layers": 2, "no_rope_layers": [1, 0]})");
  request.mutable_rope()->set_layer(1);
  ExpectFails(request, kInvalid, "rope: got a layer that does not rotate");
}

TEST_F(GetTablesTest, BadMovesAreRefused) {
  v1::GetTablesRequest request = Moved(100);
  request.mutable_reposition()->mutable_from()->mutable_range()->set_end(3);
  ExpectFails(request, kInvalid, "reposition.from: got 3 rows, want 4, as positions");
  request.mutable_reposition()->clear_from();
  ExpectFails(request, kInvalid, "reposition.from: got nothing");
  request = Moved(100);
  request.mutable_reposition()->set_from_seq_len(-1);
  ExpectFails(request, kInvalid, "reposition.from_seq_len: got -1");
  request = Moved(100);
  request.mutable_rope()->set_precision(v1::PRECISION_HF);
  ExpectFails(request, kInvalid, "rope.precision: got PRECISION_HF with reposition");
  request = Moved(100);
  v1::RopeSpec& from = *request.mutable_reposition()->mutable_from_rope();
  from.set_model("nobody");
  ExpectFails(request, absl::StatusCode::kNotFound, "reposition.from_rope.model: got \"nobody\"");
  from = request.rope();
  from.set_pairing(v1::PAIRING_INTERLEAVED);
  ExpectFails(request, kInvalid, "reposition.from_rope.pairing: got a different pairing");
  from = request.rope();
  from.mutable_config()->set_rotary_dim(4);
  ExpectFails(request, kInvalid, "reposition.from_rope: got rotary_dim 4, want 8, as rope");
  from = request.rope();
  from.mutable_config()->mutable_xpos()->set_scale_base(512);
  ExpectFails(request, kInvalid, "reposition.from_rope: got a different embedding with xpos");
  from = request.rope();
  from.mutable_config()->set_rope_type("yarn");
  from.mutable_config()->set_factor(4);
  from.mutable_config()->set_original_max_position_embeddings(4096);
  from.mutable_config()->set_attention_factor(0);
  ExpectFails(request, kInvalid, "reposition.from_rope: got attention factor 0");
}

TEST_F(GetTablesTest, RowsAreBoundedAtTheLimit) {
  v1::GetTablesRequest request = Plain(0, kTablesRowsMax + 1);
  ExpectFails(request, kExhausted, "positions: got 65537 rows, want at most 65536 in one call");
  EXPECT_EQ(proto::PartsOf(Ask(request).status()).retry_delay_ms, 0);
  EXPECT_TRUE(admitted_.empty());
  EXPECT_THAT(Plan(Plain(0, kTablesRowsMax)), IsOk());
}

TEST_F(GetTablesTest, BytesAreBoundedAtTheLimitAndAtTheMessages) {
  // A row of 64 frequencies in fp32 has 512 bytes.
  v1::GetTablesRequest request = Plain(0, 32769);
  ConfigOf(request).set_head_dim(128);
  ExpectFails(request, kExhausted,
              "positions: got 32769 rows of 512 bytes, want at most 16777216 bytes in one call");
  request.mutable_positions()->mutable_range()->set_end(32768);
  EXPECT_THAT(Plan(request), IsOk());
  reply_bytes_max_ = 511;
  request.mutable_positions()->mutable_range()->set_end(1);
  ExpectFails(request, kExhausted, "want at most 511 bytes");
}

TEST_F(GetTablesTest, MemoryIsAdmittedOnceAndARefusalIsTheAnswer) {
  ASSERT_THAT(Plan(Moved(100)), IsOk());
  // Four rows: 4 columns of cos and sin in fp32, twice; two positions.
  EXPECT_THAT(admitted_, ElementsAre(4 * (2 * 32 + 16)));
  admit_ = absl::ResourceExhaustedError("request: full");
  ExpectFails(Plain(), kExhausted, "request: full");
}

TEST_F(GetTablesTest, LargeTableTakesManySteps) {
  ASSERT_THAT(Ask(Plain(0, 4096)), IsOk());
  EXPECT_EQ(steps_, 8);  // 512 rows of 4 columns each
}

}  // namespace
}  // namespace rope::server
