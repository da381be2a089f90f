#include "proto/flags/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/nearest_name.h"
#include "proto/version.h"

namespace rope::proto {
namespace {

constexpr size_t kNameColumn = 40;

// An argument that no flag takes.
absl::Status Unknown(const CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& flag : option->get_lnames()) flags.push_back(absl::StrCat("--", flag));
  }
  const std::string nearest =
      absl::StartsWith(name, "-") ? NearestName(name, flags) : std::string();
  return absl::InvalidArgumentError(absl::StrCat(
      "command line: got \"", argument, "\", want a flag that --help lists", DidYouMean(nearest)));
}

}  // namespace

std::optional<int64_t> ParseSize(std::string_view text) {
  constexpr std::pair<std::string_view, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"", 0}};
  for (const auto& [unit, shift] : kUnits) {
    absl::string_view digits(text.data(), text.size());
    int64_t number = 0;
    if (!absl::ConsumeSuffix(&digits, absl::string_view(unit.data(), unit.size()))) continue;
    const bool legal = digits.find_first_not_of("0123456789") == absl::string_view::npos;
    if (!legal || !absl::SimpleAtoi(digits, &number) || number > (INT64_MAX >> shift)) {
      return std::nullopt;
    }
    return number << shift;
  }
  return std::nullopt;
}

std::optional<absl::Duration> ParseDuration(std::string_view text) {
  absl::Duration duration;
  const bool read = absl::ParseDuration(absl::string_view(text.data(), text.size()), &duration);
  if (!read || duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return std::nullopt;
  }
  return duration;
}

std::string Refuse(const std::string& got, const std::string& want) {
  return absl::StrCat("got \"", got, "\", want ", want);
}

Check IntegerBetween(int64_t min, int64_t max) {
  const std::string want = absl::StrCat("a whole number from ", min, " to ", max);
  return [=](const std::string& text) {
    int64_t number = 0;
    const bool fits = absl::SimpleAtoi(text, &number) && number >= min && number <= max;
    return fits ? std::string() : Refuse(text, want);
  };
}

Check SizeBetween(int64_t min, int64_t max) {
  const std::string want = absl::StrCat("bytes from ", min, " to ", max, ", for example 64MiB");
  return [=](const std::string& text) {
    const std::optional<int64_t> bytes = ParseSize(text);
    const bool fits = bytes.has_value() && *bytes >= min && *bytes <= max;
    return fits ? std::string() : Refuse(text, want);
  };
}

Check DurationBetween(absl::Duration min, absl::Duration max) {
  const std::string want = absl::StrCat("a duration from ", absl::FormatDuration(min), " to ",
                                        absl::FormatDuration(max), ", for example 5s or 200ms");
  return [=](const std::string& text) {
    const std::optional<absl::Duration> duration = ParseDuration(text);
    const bool fits = duration.has_value() && *duration >= min && *duration <= max;
    return fits ? std::string() : Refuse(text, want);
  };
}

std::unique_ptr<CLI::App> NewApp(const std::string& program, const std::string& description) {
  auto app = std::make_unique<CLI::App>(description, program);
  app->set_help_flag("-h,--help", "Print this text.");
  app->set_version_flag("--version", absl::StrCat(program, " ", kVersion), "Print the version.");
  app->get_formatter()->column_width(kNameColumn);
  app->allow_extras();
  app->allow_config_extras(CLI::config_extras_mode::error);
  return app;
}

std::string EnvironmentName(const std::string& flag) {
  return absl::StrCat("ROPE_", absl::AsciiStrToUpper(flag));
}

void ReadEnvironment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || !option->get_configurable()) continue;  // help, version
    option->envname(EnvironmentName(option->get_lnames().front()));
  }
}

std::vector<std::string> MisspeltVariables(const CLI::App& app) {
  std::vector<std::string> read;
  for (const CLI::Option* option : app.get_options()) read.push_back(option->get_envname());
  std::vector<std::string> misspelt;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    const std::string nearest =
        absl::StartsWith(name, "ROPE_") ? NearestName(name, read) : std::string();
    if (nearest.empty() || nearest == name || Edits(name, nearest) > 2) continue;
    misspelt.push_back(absl::StrCat(name, ": is not read", DidYouMean(nearest)));
  }
  return misspelt;
}

absl::Status ParseFlags(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  for (const std::string& argument : app.remaining()) {
    if (argument != "--") return Unknown(app, argument);
  }
  return absl::OkStatus();
}

}  // namespace rope::proto
