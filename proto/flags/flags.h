// Flags of the project's programs: one style of values, help, errors and exit status. CLI11 parses;
// this adds sizes, durations and the nearest name of an unknown flag.
//
// A flag may be given as --name=VALUE or --name VALUE, and by the environment variable ROPE_NAME
// where the program says so. Help is -h or --help, the version --version. Wrong usage ends a
// program with exit status 2.
//
// Threading:  Functions only; an App is confined to its thread.
// Errors:     INVALID_ARGUMENT, with the flag's name: "--listen: got "x", want HOST:PORT".
#ifndef ROPE_PROTO_FLAGS_FLAGS_H_
#define ROPE_PROTO_FLAGS_FLAGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

// Who uses an App includes <CLI/CLI.hpp>, which takes long to compile.
namespace CLI {
class App;
}  // namespace CLI

namespace rope::proto {

inline constexpr int kExitUsage = 2;

// "64MiB", "5KiB", "3GiB", "77" (bytes). nullopt: another text, a negative size, or more than 63
// bits hold.
std::optional<int64_t> ParseSize(std::string_view text);

// "5s", "200ms", "1m30s", "0". nullopt: another text, a negative duration, or an infinite one.
std::optional<absl::Duration> ParseDuration(std::string_view text);

// A check of a flag's value for CLI11: empty text where the value is right, else what Refuse says.
using Check = std::function<std::string(const std::string& value)>;

// What a check answers for a wrong value: got "X", want Y.
std::string Refuse(const std::string& got, const std::string& want);

// Both bounds included.
Check IntegerBetween(int64_t min, int64_t max);
Check SizeBetween(int64_t min, int64_t max);
Check DurationBetween(absl::Duration min, absl::Duration max);

// An empty App in the project's style: -h, --version, a column for names. `program`: as it is
// typed.
std::unique_ptr<CLI::App> NewApp(const std::string& program, const std::string& description);

// The environment variable of a flag: ROPE_DRAIN_LEAD for drain_lead.
std::string EnvironmentName(const std::string& flag);

// Lets every flag of `app` be set by its environment variable.
void ReadEnvironment(CLI::App& app);

// Variables of the environment that are not read, and are one or two characters off one that is:
// "ROPE_LISTN: is not read; did you mean ROPE_LISTEN?".
std::vector<std::string> MisspeltVariables(const CLI::App& app);

// Parses the arguments, without the program's name.
absl::Status ParseFlags(CLI::App& app, std::vector<std::string> arguments);

}  // namespace rope::proto

#endif  // ROPE_PROTO_FLAGS_FLAGS_H_
