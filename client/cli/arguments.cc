#include "client/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "proto/flags/flags.h"

namespace rope::client {
namespace {

bool IsInteger(absl::string_view text) {
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value);
}

// What a value of the kind has to be; empty where it is right.
std::string WantOf(FlagKind kind, const std::string& value) {
  double number = 0;
  switch (kind) {
    case FlagKind::kSwitch:
    case FlagKind::kText:
    case FlagKind::kTexts:
      return {};
    case FlagKind::kInteger:
      return IsInteger(value) ? "" : "an integer";
    case FlagKind::kNumber:
      return absl::SimpleAtod(value, &number) && std::isfinite(number) ? "" : "a number";
    case FlagKind::kIntegers:
      for (const absl::string_view part : absl::StrSplit(value, ',')) {
        if (!IsInteger(part)) return "integers such as 0,1,2";
      }
      return {};
    case FlagKind::kDuration:
      return proto::ParseDuration(value).has_value() ? "" : "a duration, for example 5s or 200ms";
  }
  return {};
}

// The parser of a command line, which fills `values` and `positional`.
std::unique_ptr<CLI::App> AppOf(const Command& command, Arguments::Values& values,
                                std::vector<std::string>& positional) {
  auto app = proto::NewApp("ropectl " + command.name, command.summary);
  for (const Flag& flag : command.flags) {
    const std::string& name = flag.name;
    const auto check = [kind = flag.kind](const std::string& value) {
      const std::string want = WantOf(kind, value);
      return want.empty() ? want : absl::StrCat("got ", value, ", want ", want);
    };
    CLI::Option* option = nullptr;
    if (flag.kind == FlagKind::kSwitch) {
      option = app->add_flag_callback(
          absl::StrCat("--", name), [&values, name] { values[name]; }, flag.help);
    } else {
      option =
          app->add_option_function<std::string>(
                 absl::StrCat("--", name),
                 [&values, name](const std::string& value) { values[name] = value; }, flag.help)
              ->type_name(flag.value)
              ->check(check);
    }
    if (flag.kind == FlagKind::kTexts) {
      option->multi_option_policy(CLI::MultiOptionPolicy::Join);  // with \n between them
    }
    if (flag.environment) option->envname(proto::EnvironmentName(name));
  }
  if (!command.exits.empty()) app->footer(command.exits);
  if (!command.positional.empty()) app->add_option(command.positional, positional, "");
  return app;
}

Result<std::string> ReadStream(const std::string& path, std::istream& stream, int64_t bytes_max) {
  constexpr size_t kChunk = size_t{1} << 20;
  std::string text;
  while (stream) {
    const size_t before = text.size();
    text.resize(before + kChunk);
    stream.read(text.data() + before, kChunk);
    text.resize(before + static_cast<size_t>(stream.gcount()));
    if (static_cast<int64_t>(text.size()) > bytes_max) {
      return Status(StatusCode::kOutOfRange,
                    absl::StrCat(path, ": got more than ", bytes_max, " bytes, want at most that"));
    }
  }
  return text;
}

}  // namespace

std::vector<Flag> Joined(std::vector<Flag> first, const std::vector<Flag>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string HelpOf(const Command& command) {
  Arguments::Values values;
  std::vector<std::string> positional;
  return AppOf(command, values, positional)->help();
}

Result<Arguments> Arguments::Parse(absl::Span<const absl::string_view> arguments,
                                   const Command& command) {
  Arguments parsed;
  const std::unique_ptr<CLI::App> app = AppOf(command, parsed.values_, parsed.positional_);
  const absl::Status status =
      proto::ParseFlags(*app, std::vector<std::string>(arguments.begin(), arguments.end()));
  if (!status.ok()) {
    return Status(StatusCode::kInvalidArgument, std::string(status.message()));
  }
  for (const std::string& warning : proto::MisspeltVariables(*app)) {
    std::cerr << "ropectl: warning: " << warning << "\n";
  }
  return parsed;
}

std::string Arguments::Text(absl::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::string() : it->second;
}

std::vector<std::string> Arguments::Texts(absl::string_view name) const {
  return absl::StrSplit(Text(name), absl::ByAnyChar(",\n"), absl::SkipEmpty());
}

std::optional<int64_t> Arguments::Integer(absl::string_view name) const {
  int64_t value = 0;
  if (!absl::SimpleAtoi(Text(name), &value)) return std::nullopt;
  return value;
}

std::optional<double> Arguments::Number(absl::string_view name) const {
  double value = 0;
  if (!absl::SimpleAtod(Text(name), &value)) return std::nullopt;
  return value;
}

std::vector<int64_t> Arguments::Integers(absl::string_view name) const {
  std::vector<int64_t> values;
  for (const absl::string_view part : absl::StrSplit(Text(name), ',')) {
    int64_t value = 0;
    if (absl::SimpleAtoi(part, &value)) values.push_back(value);
  }
  return values;
}

std::optional<std::chrono::nanoseconds> Arguments::Duration(absl::string_view name) const {
  const std::optional<absl::Duration> duration = proto::ParseDuration(Text(name));
  if (!Has(name) || !duration.has_value()) return std::nullopt;
  return absl::ToChronoNanoseconds(*duration);
}

Result<std::string> ReadFile(const std::string& path, int64_t bytes_max) {
  if (path == "-") return ReadStream("standard input", std::cin, bytes_max);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  // Opening a directory succeeds; reading it fails.
  if (!file || (file.peek() == std::ifstream::traits_type::eof() && file.bad())) {
    return Status(StatusCode::kNotFound,
                  absl::StrCat(path, ": cannot be read (", std::strerror(errno), ")"));
  }
  file.clear();
  return ReadStream(path, file, bytes_max);
}

Status WriteFile(const std::string& path, absl::string_view first, absl::string_view second) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(first.data(), static_cast<std::streamsize>(first.size()));
  file.write(second.data(), static_cast<std::streamsize>(second.size()));
  file.close();
  if (file) return {};
  return Status(StatusCode::kUnknown,
                absl::StrCat(path, ": cannot be written (", std::strerror(errno), ")"));
}

}  // namespace rope::client
