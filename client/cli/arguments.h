// The arguments of one ropectl command, checked against the flags that it takes. CLI11 parses them
// (proto/flags/flags.h).
//
// Threading:  A value.
// Errors:     INVALID_ARGUMENT: an unknown or repeated flag; a value missing or not of its kind.
#ifndef ROPE_CLIENT_CLI_ARGUMENTS_H_
#define ROPE_CLIENT_CLI_ARGUMENTS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rope/status.h"

namespace rope::client {

enum class FlagKind {
  kSwitch,    // --name
  kText,      // --name=TEXT
  kTexts,     // --name=TEXT,TEXT, and again
  kInteger,   // --name=-3
  kNumber,    // --name=2.5, finite
  kIntegers,  // --name=0,1,2
  kDuration,  // --name=200ms
};

struct Flag {
  std::string name;
  FlagKind kind = FlagKind::kText;
  std::string value;  // what the help calls the value
  std::string help;
  bool environment = false;  // ROPE_NAME sets it too
};

// The flags of both, in this order.
std::vector<Flag> Joined(std::vector<Flag> first, const std::vector<Flag>& second);

class Arguments;

struct Command {
  std::string name;
  std::string positional;   // what the arguments without a flag are; empty: there are none
  std::string summary;      // one line
  std::vector<Flag> flags;  // of this command; those of every command are not here
  // Returns the exit status. An error is printed on stderr: one of Misused without its code, for
  // kExitUsage; any other with it, for kExitFailed.
  Result<int> (*run)(const Arguments& arguments) = nullptr;
  // Which server it asks: the one that --target names or the default one; that of --target, or the
  // engine in this process; none, so that it has no common flags.
  enum class Asks { kServer, kAny, kNobody } asks = Asks::kServer;
  // The exit statuses, for the help; empty: 0, 1, 2 as in commands.h. A command that states its own
  // ends with kExitUsage after any error.
  std::string exits = "";
};

std::string HelpOf(const Command& command);

class Arguments {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;  // by the flag's name

  // Flags are `--name=value` or `--name value`; after `--` there are none.
  static Result<Arguments> Parse(absl::Span<const absl::string_view> arguments,
                                 const Command& command);

  bool Has(absl::string_view name) const { return values_.find(name) != values_.end(); }
  // REQUIRES of each: the flag was declared with that kind.
  std::string Text(absl::string_view name) const;                // empty where it was not given
  std::vector<std::string> Texts(absl::string_view name) const;  // empty where it was not given
  std::optional<int64_t> Integer(absl::string_view name) const;
  std::optional<double> Number(absl::string_view name) const;
  std::vector<int64_t> Integers(absl::string_view name) const;  // empty where it was not given
  std::optional<std::chrono::nanoseconds> Duration(absl::string_view name) const;
  const std::vector<std::string>& positional() const { return positional_; }

 private:
  Values values_;
  std::vector<std::string> positional_;
};

// Reads and writes whole files.
//
// Errors:     NOT_FOUND: the file cannot be opened. OUT_OF_RANGE: it is larger than the limit.
//             UNKNOWN: it cannot be written.

// The path "-" means standard input.
Result<std::string> ReadFile(const std::string& path, int64_t bytes_max);

Status WriteFile(const std::string& path, absl::string_view first, absl::string_view second);

using Json = nlohmann::ordered_json;
// JSON as every command prints it: indented, with a newline at the end. Text that is not UTF-8 is
// replaced.
inline std::string JsonText(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

inline const Flag kJsonFlag = {"json", FlagKind::kSwitch, "", "Print JSON."};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_ARGUMENTS_H_
