#include "server/telemetry/load_report.h"

#include <bit>

namespace rope::server {
namespace {

constexpr absl::Duration kEvery = absl::Milliseconds(100);

// A field of type double, as Protobuf writes it.
void Append(int field, double value, std::string& message) {
  constexpr int kFixed64 = 1;
  message.push_back(static_cast<char>(field << 3 | kFixed64));
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 0; shift < 64; shift += 8) message.push_back(static_cast<char>(bits >> shift));
}

}  // namespace

std::string LoadReport::Write(double processors, double requests_per_second, double utilization) {
  std::string message;
  Append(1, processors, message);           // cpu_utilization
  Append(6, requests_per_second, message);  // rps_fractional
  Append(9, utilization, message);          // application_utilization
  return message;
}

LoadReport::Sample LoadReport::Take() const {
  return {clock_.Now(), sources_.processor_time(), sources_.requests()};
}

std::string LoadReport::Bytes() {
  proto::MutexLock lock(&mutex_);
  if (clock_.Now() < last_.at + kEvery) return bytes_;
  const Sample now = Take();
  if (last_.at != absl::InfinitePast()) {
    const double seconds = absl::ToDoubleSeconds(now.at - last_.at);
    const double busy = absl::ToDoubleSeconds(now.processor_time - last_.processor_time);
    bytes_ =
        Write(busy / seconds / sources_.processors,
              static_cast<double>(now.requests - last_.requests) / seconds, sources_.utilization());
  }
  last_ = now;
  return bytes_;
}

}  // namespace rope::server
