// What lint prints: text for people, JSON, and SARIF 2.1.0 for GitHub code scanning.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_LINT_LINT_OUTPUT_H_
#define ROPE_CLIENT_CLI_LINT_LINT_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/lint/lint.h"
#include "rope/status.h"

namespace rope::client {

// "FILE:LINE: WEIGHT: message [layer types] [rule]", one line a finding; for several files a table
// after them. Control characters of the files are escaped.
std::string LintPage(const std::vector<FileReport>& reports);

// An array with an object for each file.
std::string LintJson(const std::vector<FileReport>& reports);

// One run, with all rules; readings and notes have the level note.
// Files that cannot be read are notifications of the run.
std::string LintSarif(const std::vector<FileReport>& reports);

// Baseline: findings that a team has accepted, in a file beside its models, so that lint speaks of
// new ones only. A finding is known again by its file, rule, sub-config and message, wherever its
// line went.
//
// Limits:     64 MiB of JSON; RemoveKnown accepts any bytes.

inline constexpr int64_t kBaselineBytesMax = int64_t{64} << 20;

// An array with an object a finding, sorted, one line each.
std::string BaselineText(const std::vector<FileReport>& reports);

// Removes the findings of a baseline's text. INVALID_ARGUMENT: the text is no baseline.
Status RemoveKnown(absl::string_view baseline, std::vector<FileReport>& reports);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_LINT_OUTPUT_H_
