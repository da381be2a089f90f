#include "server/control/describe.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/error.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

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

TEST_F(DescribeTest, NoReplyIsLargerThanWhatWasAdmitted) {
  ASSERT_OK(answer, Ask(Large(65536, 8)));
  EXPECT_LE(static_cast<int64_t>(answer->ByteSizeLong()), admitted_.back());
}

TEST_F(DescribeTest, NothingIsComputedWithoutMemory) {
  admit_ = OutOfMemory();
  ExpectExhausted(Large(64, 1), "memory");
}

}  // namespace
}  // namespace rope::server
