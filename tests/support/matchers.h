// The matchers of GoogleMock by their names alone, for the tests of every namespace below rope.
#ifndef ROPE_TESTS_SUPPORT_MATCHERS_H_
#define ROPE_TESTS_SUPPORT_MATCHERS_H_

#include <gmock/gmock.h>

namespace rope {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

}  // namespace rope

#endif  // ROPE_TESTS_SUPPORT_MATCHERS_H_
