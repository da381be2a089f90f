#include "server/error.h"

#include <gtest/gtest.h>

#include <exception>
#include <new>
#include <string>

#include "absl/status/statusor.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

TEST(WithinMemoryTest, FailedAllocationIsAStatus) {
  const auto fail = [] { std::rethrow_exception(std::make_exception_ptr(std::bad_alloc())); };
  const auto status = WithinMemory([&] {
    fail();
    return absl::OkStatus();
  });
  EXPECT_EQ(status, OutOfMemory());
  const auto result = WithinMemory([&]() -> absl::StatusOr<int> {
    fail();
    return 7;
  });
  EXPECT_EQ(result.status(), OutOfMemory());
  EXPECT_EQ(WithinMemory([]() -> absl::StatusOr<int> { return 7; }).value(), 7);
}

TEST(ShortTextTest, LeavesShortOnesAndCutsLongOnes) {
  const auto max = static_cast<size_t>(limits::kErrorBytesMax);
  const std::string fits(max, 'x');
  EXPECT_EQ(ShortText(fits), fits);
  const std::string cut = ShortText(fits + "y");
  EXPECT_EQ(cut.size(), max);
  EXPECT_THAT(cut, EndsWith("x..."));
  EXPECT_EQ(ShortText("0123456789", 8), "01234...");
}

TEST(ShortTextTest, CutsBetweenCharacters) {
  const auto max = static_cast<size_t>(limits::kErrorBytesMax);
  for (size_t before = 0; before < 4; ++before) {
    std::string message(before, 'x');
    while (message.size() <= max) message += "\xE2\x82\xAC";  // a euro sign, three bytes
    const std::string cut = ShortText(message);
    EXPECT_LE(cut.size(), max);
    EXPECT_EQ((cut.size() - before) % 3, 0U) << before;
    EXPECT_THAT(cut, EndsWith("\xE2\x82\xAC..."));
  }
}

}  // namespace
}  // namespace rope::server
