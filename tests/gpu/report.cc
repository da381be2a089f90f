#include "tests/gpu/report.h"

#include <cstdio>
#include <optional>
#include <regex>

namespace rope::bench {
namespace {

std::string NumberOrDash(const char* format, double number) {
  if (number == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, number);
  return text;
}

void PrintHeading() {
  std::printf("%-42s %11s %9s %8s %-8s %-5s %s\n", "name", "us", "GB/s", "share", "bar", "holds",
              "against");
}

void PrintLine(const CudaRow& row, const CudaMeasurement& found, std::optional<bool> holds) {
  const char* const verdict = !holds.has_value() ? "-" : *holds ? "yes" : "NO";
  std::printf("%-42s %11s %9s %8s %-8s %-5s %s\n", row.name.c_str(),
              NumberOrDash("%.2f", found.microseconds).c_str(),
              NumberOrDash("%.1f", found.gigabytes_per_second).c_str(),
              NumberOrDash("%.3f", found.share).c_str(), row.bar.empty() ? "-" : row.bar.c_str(),
              verdict, found.measurement.yardstick.c_str());
  std::fflush(stdout);
}

nlohmann::json ToJson(const CudaRow& row, const Measurement& found, std::optional<bool> holds) {
  nlohmann::json json = {{"name", row.name},
                         {"value", found.value},
                         {"unit", found.unit},
                         {"yardstick", found.yardstick},
                         {"bar", row.bar}};
  json["ratio"] = found.ratio.has_value() ? nlohmann::json(*found.ratio) : nlohmann::json();
  json["holds"] = holds.has_value() ? nlohmann::json(*holds) : nlohmann::json();
  if (!found.measured) json["value"] = nullptr;
  return json;
}

}  // namespace

nlohmann::json RunRows(const std::vector<CudaRow>& rows, const std::string& filter) {
  const std::regex expression(filter);
  nlohmann::json all = nlohmann::json::array();
  PrintHeading();
  for (const CudaRow& row : rows) {
    if (!std::regex_search(row.name, expression)) continue;
    const CudaMeasurement found = row.measure();
    const Measurement& measurement = found.measurement;
    std::optional<bool> holds;
    if (measurement.measured && !row.bar.empty()) {
      holds = Holds(row.bar, measurement.ratio.value_or(measurement.value));
    }
    PrintLine(row, found, holds);
    all.push_back(ToJson(row, measurement, holds));
  }
  return all;
}

}  // namespace rope::bench
