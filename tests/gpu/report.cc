#include "tests/gpu/report.h"

#include <cstdio>
#include <optional>
#include <regex>

#include "nlohmann/json.hpp"

namespace rope::bench {
namespace {

std::string NumberOrDash(const char* format, double number) {
  if (number == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, number);
  return text;
}

std::string SpreadText(const Spread& seconds) {
  if (seconds.median == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "-%.1f%% +%.1f%%", 100 * (1 - seconds.low / seconds.median),
                100 * (seconds.high / seconds.median - 1));
  return text;
}

void PrintHeading() {
  std::printf("%-44s %11s %-14s %8s %7s %-8s %-5s %5s %s\n", "name", "us", "spread", "GB/s",
              "share", "bar", "holds", "MHz", "against");
}

void PrintLine(const CudaRow& row, const CudaMeasurement& found, std::optional<bool> holds,
               double megahertz) {
  const char* const verdict = !found.wrong.empty() ? "WRONG"
                              : !holds.has_value() ? "-"
                              : *holds             ? "yes"
                                                   : "NO";
  std::printf(
      "%-44s %11s %-14s %8s %7s %-8s %-5s %5.0f %s\n", row.name.c_str(),
      NumberOrDash("%.2f", found.seconds.median * 1e6).c_str(), SpreadText(found.seconds).c_str(),
      NumberOrDash("%.1f", found.gigabytes_per_second).c_str(),
      NumberOrDash("%.3f", found.share).c_str(), row.bar.empty() ? "-" : row.bar.c_str(), verdict,
      megahertz, (found.wrong.empty() ? found.measurement.yardstick : found.wrong).c_str());
  std::fflush(stdout);
}

nlohmann::json ToJson(const CudaRow& row, const CudaMeasurement& result, std::optional<bool> holds,
                      double megahertz) {
  const Measurement& found = result.measurement;
  nlohmann::json json = {{"name", row.name},
                         {"value", found.value},
                         {"unit", found.unit},
                         {"yardstick", found.yardstick},
                         {"bar", row.bar},
                         {"us_low", result.seconds.low * 1e6},
                         {"us_high", result.seconds.high * 1e6},
                         {"sm_mhz", megahertz},
                         {"wrong", result.wrong}};
  json["ratio"] = found.ratio.has_value() ? nlohmann::json(*found.ratio) : nlohmann::json();
  json["holds"] = holds.has_value() ? nlohmann::json(*holds) : nlohmann::json();
  if (!found.measured) json["value"] = nullptr;
  return json;
}

}  // namespace

CudaMeasurement NotMeasured(const std::string& reason) {
  CudaMeasurement result;
  result.measurement.measured = false;
  result.measurement.unit = "us";
  result.measurement.yardstick = "not measured: " + reason;
  return result;
}

int RunRows(const std::vector<CudaRow>& rows, const std::string& filter, std::ostream& json) {
  const std::regex expression(filter);
  int wrong = 0;
  PrintHeading();
  for (const CudaRow& row : rows) {
    if (!std::regex_search(row.name, expression)) continue;
    const CudaMeasurement found = row.measure();
    const double megahertz = WarmMegahertz();
    const Measurement& measurement = found.measurement;
    std::optional<bool> holds;
    if (measurement.measured && found.wrong.empty() && !row.bar.empty()) {
      holds = Holds(row.bar, measurement.ratio.value_or(measurement.value));
    }
    if (!found.wrong.empty()) ++wrong;
    PrintLine(row, found, holds, megahertz);
    json << ToJson(row, found, holds, megahertz).dump() << std::endl;
  }
  return wrong;
}

}  // namespace rope::bench
