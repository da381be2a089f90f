// Lint: what is wrong with, doubtful about, or read in several ways in one config.json.
//
// Threading:  Pure functions; any thread.
// Limits:     As kernels::ModelConfig; any bytes are accepted.
#ifndef ROPE_CLIENT_CLI_LINT_LINT_H_
#define ROPE_CLIENT_CLI_LINT_LINT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/lint/finding.h"
#include "kernels/config/config_json.h"

namespace rope::client {

// Lints the rotary embedding of every layer type of `text`, and of each sub-config that has rope
// parameters. If `sub_config` names a sub-config, lints that one alone.
FileReport LintText(absl::string_view file, absl::string_view text, const EngineFilter& filter,
                    absl::string_view sub_config = "");

// Lints a file that is no text (GGUF), from the `config` that was read. Its findings have no line.
FileReport LintModel(absl::string_view file, const absl::StatusOr<kernels::ModelConfig>& config,
                     const EngineFilter& filter);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_LINT_H_
