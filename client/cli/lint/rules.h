// Rules: the kinds of findings. Each has an id that scripts may name and that never changes, a
// weight, and a section of RULES.md with the id as its title. They are data, in rules.json of
// kernels/config.
//
// Threading:  Constants; any thread.
#ifndef ROPE_CLIENT_CLI_LINT_RULES_H_
#define ROPE_CLIENT_CLI_LINT_RULES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/config/remark.h"

namespace rope::client {

// In ascending order.
enum class Weight {
  kNote,     // as published files have it; worth knowing
  kReading,  // another engine reads the config differently, or was not compared
  kWarning,  // valid, and probably a mistake
  kError,    // the config is refused, or cannot be meant
};

// "note", "reading", "warning" or "error".
absl::string_view Name(Weight weight);

struct Rule {
  std::string id;
  Weight weight;
  std::string summary;  // a sentence
};

// Rules of lint itself; the others are kinds of remarks.
inline constexpr absl::string_view kSyntax = "syntax";
inline constexpr absl::string_view kMissingValue = "missing-value";
inline constexpr absl::string_view kInvalidValue = "invalid-value";
inline constexpr absl::string_view kNotSupported = "not-supported";
inline constexpr absl::string_view kTowerNotSupported = "tower-not-supported";
inline constexpr absl::string_view kReadDifferently = "read-differently";
inline constexpr absl::string_view kScaledDifferently = "scaled-differently";
inline constexpr absl::string_view kNoSuchRotation = "no-such-rotation";
inline constexpr absl::string_view kVersionNotCompared = "version-not-compared";

// All rules, the heaviest first.
absl::Span<const Rule> Rules();

// nullptr: there is no such rule.
const Rule* FindRule(absl::string_view id);

// REQUIRES: there is such a rule.
const Rule& RuleOf(absl::string_view id);
const Rule& RuleOf(kernels::RemarkKind kind);

// Where the rule is explained: a place in this repository.
std::string HelpLink(const Rule& rule);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_RULES_H_
