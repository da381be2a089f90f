// The commands of ropectl.
//
// Threading:  Functions only; they print, and block on the server.
#ifndef ROPE_CLIENT_CLI_COMMANDS_H_
#define ROPE_CLIENT_CLI_COMMANDS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cli/arguments.h"
#include "rope/client.h"
#include "rope/status.h"

namespace rope::client {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a call, a file or a comparison
inline constexpr int kExitUsage = 2;

// In the order of the help.
absl::Span<const Command> Commands();

// Runs the command that `arguments` (without the program's name) ask for; returns the exit status.
int RunRopectl(absl::Span<const absl::string_view> arguments);

// INVALID_ARGUMENT: wrong usage.
Status Misused(std::string message);

// The value that flag `name` chooses by its text. The first value is the default; one
// without a text cannot be named. INVALID_ARGUMENT: another text.
template <typename T>
Result<T> ChoiceOf(const Arguments& arguments, absl::string_view name,
                   const std::vector<std::pair<absl::string_view, T>>& choices) {
  if (!arguments.Has(name)) return choices.front().second;
  const std::string text = arguments.Text(name);
  std::string known;
  for (const auto& [choice, value] : choices) {
    if (choice.empty()) continue;
    if (choice == text) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", choice);
  }
  return Misused(absl::StrCat("--", name, ": got ", text, ", want one of ", known));
}

// The value of side A (0) or B (1): the only one is that of both. Unset: there is none.
template <typename T>
std::optional<T> OfSide(size_t which, const std::vector<T>& values) {
  if (values.empty()) return std::nullopt;
  return values[std::min(which, values.size() - 1)];
}

// The dtype that flag `name` chooses among `dtypes`; unset: it is not given.
Result<std::optional<DType>> DTypeOf(const Arguments& arguments, absl::string_view name,
                                     std::initializer_list<DType> dtypes);
// A layer that flag `name` gives. INVALID_ARGUMENT: a negative one.
Result<std::optional<int32_t>> LayerOf(const Arguments& arguments, const std::string& name);

// As --target and --timeout say, the flags of every command that asks a server.
// `options.timeout` is bounded by that of a call.
Result<Client> ConnectTo(const Arguments& arguments, ConnectOptions options = {});
// Of a command that can do without a server: the engine in this process, unless --target is given.
// NOT_FOUND: a model that is no preset, or a config_id, without --target.
Result<Client> ConnectToAny(const Arguments& arguments);
CallOptions CallOptionsOf(const Arguments& arguments);

// Flags that name a rotary embedding, and what they say. An error that is not Misused: a config
// that cannot be read.
std::vector<Flag> WithRopeFlags(const std::vector<Flag>& flags);
// With a `prefix` the flags' names begin with it, but for pairing, compat and precision, and the
// positional arguments name no config.
Result<RopeSpec> RopeSpecOf(const Arguments& arguments, const std::string& prefix = "");
// The text of a config.json of at most 1 MiB, as the server takes it; of a preset's name, where
// there is no such file, that of the preset. A GGUF file is wrong usage.
Result<std::string> ReadConfig(const std::string& path);
// Flags with the prefix "from_", for commands that move rotated vectors, and whether one is given.
std::vector<Flag> FromRopeFlags();
bool HasFromRope(const Arguments& arguments);
Result<std::optional<Pairing>> PairingOf(const Arguments& arguments);

Command ConnectionsCommand();
Command DescribeCommand();
Command DiffCommand();
Command FingerprintCommand();
Command HealthCommand();
Command InfoCommand();
Command LintCommand();
Command LoadCommand();
Command ModelsCommand();
Command RepositionCommand();
Command RotateCommand();
Command SameCommand();
Command TablesCommand();
Command VerifyCommand();

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_COMMANDS_H_
