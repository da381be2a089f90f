// Lint: what is wrong with, doubtful about, or read in several ways in one config.json.
//
// Threading:  Pure functions; any thread.
// Limits:     As kernels::ModelConfig; any bytes are accepted.
#ifndef ROPE_CLIENT_CLI_LINT_LINT_H_
#define ROPE_CLIENT_CLI_LINT_LINT_H_

#include "absl/strings/string_view.h"
#include "client/cli/lint/finding.h"

namespace rope::client {

// Lints the rotary embedding of every layer type of `text`.
FileReport LintText(absl::string_view file, absl::string_view text, const EngineFilter& filter);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_LINT_H_
