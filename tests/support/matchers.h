// The matchers of GoogleMock by their names alone, for the tests of every namespace below rope; and
// one for programs.
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

// What a program did: its exit status, and a matcher of what it printed.
MATCHER_P2(Exits, status, output, "") {
  *result_listener << "status " << arg.status << ": " << arg.output;
  return arg.status == status && ::testing::ExplainMatchResult(output, arg.output, result_listener);
}

}  // namespace rope

#endif  // ROPE_TESTS_SUPPORT_MATCHERS_H_
