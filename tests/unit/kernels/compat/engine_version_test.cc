#include "kernels/compat/engine_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rope::kernels {
namespace {

TEST(ParseReleaseTest, NumbersCompareAsVersions) {
  EXPECT_LT(ParseRelease("0.9.2"), ParseRelease("0.10.0"));
  EXPECT_LT(ParseRelease("0.10"), ParseRelease("0.10.1.1"));
  EXPECT_EQ(ParseRelease("1.0"), ParseRelease("1.0.0"));
  EXPECT_EQ(ParseRelease("0.5.10.post1"), ParseRelease("0.5.10"));
}

TEST(ParseReleaseTest, OtherTextsAreNone) {
  for (const char* text : {"", "abc", "0.12.", ".1", "0..1", "v1", "1.-2", "0c1e57098", "1.0.post",
                           "1.0.postx", "99999999999999999999", " 1"}) {
    EXPECT_FALSE(ParseRelease(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace rope::kernels
