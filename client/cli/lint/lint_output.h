// What lint prints: text for people, JSON, and SARIF 2.1.0 for GitHub code scanning.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_LINT_LINT_OUTPUT_H_
#define ROPE_CLIENT_CLI_LINT_LINT_OUTPUT_H_

#include <string>
#include <vector>

#include "client/cli/lint/lint.h"

namespace rope::client {

// "FILE:LINE: WEIGHT: message [layer types] [rule]", one line a finding; for several files a table
// after them. Control characters of the files are escaped.
std::string LintPage(const std::vector<FileReport>& reports);

// An array with an object for each file.
std::string LintJson(const std::vector<FileReport>& reports);

// One run, with all rules; readings and notes have the level note.
// Files that cannot be read are notifications of the run.
std::string LintSarif(const std::vector<FileReport>& reports);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_LINT_OUTPUT_H_
