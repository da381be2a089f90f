#include "server/telemetry/load_report.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "tests/support/fake_clock.h"

namespace rope::server {
namespace {

// The fields of a message that has only doubles.
std::map<int, double> FieldsOf(const std::string& message) {
  std::map<int, double> fields;
  for (size_t i = 0; i + 9 <= message.size(); i += 9) {
    EXPECT_EQ(message[i] & 7, 1) << "64 bits";
    double value = 0;
    std::memcpy(&value, message.data() + i + 1, sizeof(value));
    fields[message[i] >> 3] = value;
  }
  return fields;
}

TEST(LoadReportTest, SaysWhatTheLastTenthOfASecondWas) {
  testing::FakeClock clock;
  absl::Duration processor_time = absl::Seconds(5);
  int64_t requests = 1000;
  double utilization = 0.25;
  LoadReport report({.processors = 2,
                     .processor_time = [&] { return processor_time; },
                     .requests = [&] { return requests; },
                     .utilization = [&] { return utilization; }},
                    clock);
  EXPECT_EQ(FieldsOf(report.Bytes()), (std::map<int, double>{{1, 0}, {6, 0}, {9, 0}}))
      << "nothing is known yet";
  clock.Advance(absl::Milliseconds(500));
  processor_time += absl::Milliseconds(250);
  requests += 40;
  const std::map<int, double> half = {{1, 0.25}, {6, 80}, {9, 0.25}};
  EXPECT_EQ(FieldsOf(report.Bytes()), half);
  clock.Advance(absl::Milliseconds(99));
  requests += 1000;
  utilization = 1;
  EXPECT_EQ(FieldsOf(report.Bytes()), half) << "the sources are asked ten times a second";
  clock.Advance(absl::Milliseconds(1));
  EXPECT_EQ(FieldsOf(report.Bytes()), (std::map<int, double>{{1, 0}, {6, 10'000}, {9, 1}}));
}

}  // namespace
}  // namespace rope::server
