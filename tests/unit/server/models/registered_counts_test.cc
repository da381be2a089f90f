#include "server/models/registered_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

TEST(RegisteredCountsTest, OneOwnerGetsHalfOfThePlaces) {
  RegisteredCounts counts(limits::kRegisteredBytesMax);
  for (int64_t i = 0; i < limits::kRegisteredModelsMax / 2; ++i) {
    ASSERT_THAT(counts.Add("uid:1", 1), IsOk());
  }
  EXPECT_THAT(counts.Add("uid:1", 1),
              StatusIs(kExhausted, HasSubstr("name: got registered model number 513 of this "
                                             "client, want at most 512")));
  for (int64_t i = 0; i < limits::kRegisteredModelsMax / 2; ++i) {
    ASSERT_THAT(counts.Add("uid:2", 1), IsOk());
  }
  EXPECT_THAT(counts.Add("uid:3", 1),
              StatusIs(kExhausted,
                       AllOf(HasSubstr("number 1025, want at most 1024"), Not(HasSubstr("uid")))));
  counts.Remove("uid:1", 1);
  EXPECT_THAT(counts.Add("uid:3", 1), IsOk());
  EXPECT_THAT(counts.Add("uid:1", 1), StatusIs(kExhausted, HasSubstr("number 1025")));
  counts.Remove("uid:2", 1);
  EXPECT_THAT(counts.Add("uid:1", 1), IsOk()) << "its own place is free again";
}

TEST(RegisteredCountsTest, OneOwnerGetsHalfOfTheBytes) {
  RegisteredCounts counts(limits::kRegisteredBytesMax);
  constexpr int64_t kHalf = limits::kRegisteredBytesMax / 2;
  ASSERT_THAT(counts.Add("uid:1", kHalf - 1), IsOk());
  EXPECT_THAT(
      counts.Add("uid:1", 2),
      StatusIs(kExhausted, HasSubstr("rope: got 2 bytes of memory in addition to 8388607 of "
                                     "registered models of this client, want at most "
                                     "8388608")));
  ASSERT_THAT(counts.Add("uid:1", 1), IsOk());
  ASSERT_THAT(counts.Add("uid:2", kHalf), IsOk());
  EXPECT_THAT(
      counts.Add("uid:3", 1),
      StatusIs(kExhausted, HasSubstr("in addition to 16777216 of registered models, want")));
  counts.Remove("uid:2", kHalf);
  EXPECT_THAT(counts.Add("uid:3", kHalf), IsOk());
}

TEST(RegisteredCountsTest, ModelsWithoutBytesCountToo) {
  RegisteredCounts counts(limits::kRegisteredBytesMax);
  ASSERT_THAT(counts.Add("uid:1", 0), IsOk());
  counts.Remove("uid:1", 0);
  for (int64_t i = 0; i < limits::kRegisteredModelsMax / 2; ++i) {
    ASSERT_THAT(counts.Add("uid:1", 0), IsOk());
  }
  EXPECT_THAT(counts.Add("uid:1", 0), StatusIs(kExhausted, HasSubstr("number 513")));
}

}  // namespace
}  // namespace rope::server
