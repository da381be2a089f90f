// Calls of a program that uses the C++ client, with what each gives it as text: all methods, all
// dtypes of tensors, prepared calls and errors. skew_test.cc records what they send.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_E2E_SKEW_CALLS_H_
#define ROPE_TESTS_E2E_SKEW_CALLS_H_

#include <functional>
#include <map>
#include <string>

#include "rope/client.h"

namespace rope::testing {

// One or more calls. Returns what a program of version 0.9.0 reads in the replies, a line a field.
using SkewCall = std::function<std::string(const client::Client&)>;

// By name. A call that was recorded with a release stays as it is: a change is another call.
const std::map<std::string, SkewCall>& SkewCalls();

}  // namespace rope::testing

#endif  // ROPE_TESTS_E2E_SKEW_CALLS_H_
