// rope_bench [--json] [--filter=REGEX]: measures what the project promises about speed and memory.
//
// Exits 0 whether or not the bars hold; 2 on a flag it does not know.
#include <cstdio>
#include <iostream>
#include <optional>
#include <regex>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tests/bench/measure.h"

namespace {

struct Flags {
  bool help = false;
  bool json = false;
  std::string filter;
};

std::optional<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    constexpr std::string_view kFilter = "--filter=";
    if (argument == "-h" || argument == "--help") {
      flags.help = true;
    } else if (argument == "--json") {
      flags.json = true;
    } else if (argument.substr(0, kFilter.size()) == kFilter) {
      flags.filter = argument.substr(kFilter.size());
    } else {
      return std::nullopt;
    }
  }
  return flags;
}

struct Result {
  rope::bench::Row row;
  rope::bench::Measurement measurement;
  std::optional<bool> holds;
};

Result Measure(const rope::bench::Row& row) {
  Result result{row, row.measure(), std::nullopt};
  const rope::bench::Measurement& found = result.measurement;
  if (found.measured && !row.bar.empty()) {
    result.holds = rope::bench::Holds(row.bar, found.ratio.value_or(found.value));
  }
  return result;
}

void PrintHeading() {
  std::printf("%-44s %14s %8s %-9s %-6s %s\n", "name", "value", "ratio", "bar", "holds", "against");
}

void PrintLine(const Result& result) {
  const rope::bench::Measurement& found = result.measurement;
  const std::string ratio = found.ratio.has_value() ? std::to_string(*found.ratio) : "-";
  const char* const holds = !result.holds.has_value() ? "-" : *result.holds ? "yes" : "NO";
  std::printf("%-44s %9.4g %-6s %6.6s %-9s %-6s %s\n", result.row.name.c_str(), found.value,
              found.unit.c_str(), ratio.c_str(), result.row.bar.c_str(), holds,
              found.yardstick.c_str());
  std::fflush(stdout);
}

nlohmann::json ToJson(const Result& result) {
  const rope::bench::Measurement& found = result.measurement;
  nlohmann::json json = {{"name", result.row.name},
                         {"value", found.value},
                         {"unit", found.unit},
                         {"yardstick", found.yardstick},
                         {"bar", result.row.bar}};
  json["ratio"] = found.ratio.has_value() ? nlohmann::json(*found.ratio) : nlohmann::json();
  json["holds"] = result.holds.has_value() ? nlohmann::json(*result.holds) : nlohmann::json();
  if (!found.measured) json["value"] = nullptr;
  return json;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) rope::bench::ServeIfAsked(argv[1]);
  rope::bench::Prepare();
  const std::optional<Flags> flags = ParseFlags(argc, argv);
  if (!flags.has_value() || flags->help) {
    (flags.has_value() ? std::cout : std::cerr) << "usage: rope_bench [--json] [--filter=REGEX]\n";
    return flags.has_value() ? 0 : 2;
  }
  const std::regex filter(flags->filter);
  nlohmann::json all = nlohmann::json::array();
  if (!flags->json) PrintHeading();
  for (const rope::bench::Row& row : rope::bench::AllRows()) {
    if (!std::regex_search(row.name, filter)) continue;
    const Result result = Measure(row);
    if (flags->json) {
      all.push_back(ToJson(result));
    } else {
      PrintLine(result);
    }
  }
  if (flags->json) std::cout << all.dump(2) << "\n";
  return 0;
}
