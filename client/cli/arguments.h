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
  absl::string_view name;
  FlagKind kind = FlagKind::kText;
  absl::string_view value;  // what the help calls the value
  absl::string_view help;
  bool environment = false;  // ROPE_NAME sets it too
};

// The flags of both, in this order.
std::vector<Flag> Joined(std::vector<Flag> first, const std::vector<Flag>& second);

// A command line as its help describes it.
struct Usage {
  std::string program;      // as it is typed: "ropectl rotate"
  std::string summary;      // one line
  std::string positionals;  // what the arguments without a flag are; empty: there are none
  std::vector<Flag> flags;
  std::string footer = {};  // after the flags
};

// The help of such a command line.
std::string HelpOf(const Usage& usage);

class Arguments {
 public:
  // Flags are `--name=value` or `--name value`; after `--` there are none.
  static Result<Arguments> Parse(absl::Span<const absl::string_view> arguments, const Usage& usage);

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
  std::map<std::string, std::string, std::less<>> values_;
  std::vector<std::string> positional_;
};

// Reads and writes whole files.
//
// Errors:     NOT_FOUND: the file cannot be opened. OUT_OF_RANGE: it is larger than the limit.
//             UNKNOWN: it cannot be written.

// The path "-" means standard input.
Result<std::string> ReadFile(const std::string& path, int64_t bytes_max);

Status WriteFile(const std::string& path, absl::string_view first, absl::string_view second);

// JSON as every command prints it: indented, with a newline at the end. Text that is not UTF-8 is
// replaced.
inline std::string JsonText(const nlohmann::ordered_json& json) {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return json.dump(2, ' ', /*ensure_ascii=*/false, kReplace) + "\n";
}

inline constexpr Flag kJsonFlag = {"json", FlagKind::kSwitch, "", "Print JSON."};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_ARGUMENTS_H_
