#include "client/cli/arguments.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace rope::client {
namespace {

Status Wrong(absl::string_view name, absl::string_view got, absl::string_view want) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("--", name, ": got ", got.empty() ? "nothing" : got, ", want ", want));
}

bool IsInteger(absl::string_view text) {
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value);
}

Status CheckValue(const Flag& flag, absl::string_view value) {
  double number = 0;
  switch (flag.kind) {
    case FlagKind::kSwitch:
    case FlagKind::kText:
      return {};
    case FlagKind::kInteger:
      return IsInteger(value) ? Status() : Wrong(flag.name, value, "an integer");
    case FlagKind::kNumber:
      if (absl::SimpleAtod(value, &number) && std::isfinite(number)) return {};
      return Wrong(flag.name, value, "a number");
    case FlagKind::kIntegers:
      for (const absl::string_view part : absl::StrSplit(value, ',')) {
        if (!IsInteger(part)) return Wrong(flag.name, value, "integers such as 0,1,2");
      }
      return {};
  }
  return {};
}

}  // namespace

Result<Arguments> Arguments::Parse(absl::Span<const absl::string_view> arguments,
                                   absl::Span<const Flag> flags) {
  Arguments parsed;
  bool flags_end = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (!flags_end && argument == "--") {
      flags_end = true;
      continue;
    }
    if (flags_end || !absl::StartsWith(argument, "-") || argument == "-") {
      parsed.positional_.emplace_back(argument);
      continue;
    }
    argument.remove_prefix(absl::StartsWith(argument, "--") ? 2 : 1);
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    const auto flag = std::find_if(flags.begin(), flags.end(),
                                   [name](const Flag& known) { return known.name == name; });
    if (flag == flags.end()) {
      return Status(StatusCode::kInvalidArgument,
                    absl::StrCat("got the unknown flag ", arguments[i]));
    }
    absl::string_view value;
    const bool is_switch = flag->kind == FlagKind::kSwitch;
    if (equals != absl::string_view::npos) {
      value = argument.substr(equals + 1);
      if (is_switch) return Wrong(name, value, "no value");
    } else if (!is_switch) {
      if (++i == arguments.size()) return Wrong(name, "", flag->value);
      value = arguments[i];
    }
    if (Status status = CheckValue(*flag, value); !status.ok()) return status;
    if (!parsed.values_.emplace(name, value).second) return Wrong(name, "two values", "one");
  }
  return parsed;
}

std::string Arguments::Text(absl::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::string() : it->second;
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
  if (!Has(name)) return values;
  for (const absl::string_view part : absl::StrSplit(Text(name), ',')) {
    int64_t value = 0;
    if (absl::SimpleAtoi(part, &value)) values.push_back(value);
  }
  return values;
}

}  // namespace rope::client
