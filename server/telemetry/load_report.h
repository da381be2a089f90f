// LoadReport: how busy the server is, for load balancers that take ORCA's reports with each answer:
// the trailer "endpoint-load-metrics-bin", an xds.data.orca.v3.OrcaLoadReport. gRPC 1.51 declares a
// recorder of it that is in none of its packaged libraries.
//
// Threading:  Thread-safe. Bytes takes a lock for a copy; one caller in a tenth of a second also
//             asks the sources.
// Ownership:  What the sources refer to, and `clock`, must outlive it.
#ifndef ROPE_SERVER_TELEMETRY_LOAD_REPORT_H_
#define ROPE_SERVER_TELEMETRY_LOAD_REPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"

namespace rope::server {

class LoadReport {
 public:
  static constexpr char kTrailer[] = "endpoint-load-metrics-bin";

  struct Sources {
    int processors = 1;                                        // that the server uses
    std::function<absl::Duration()> processor_time = nullptr;  // of the process, since it started
    std::function<int64_t()> requests = nullptr;               // answered, since it started
    std::function<double()> utilization = nullptr;             // of its budgets, 0 to 1
  };

  LoadReport(Sources sources, const Clock& clock)
      : sources_(std::move(sources)), clock_(clock), bytes_(Write(0, 0, 0)) {}

  // The report over the last tenth of a second or more. Processor time is 1 if all processors were
  // busy. Before the first report is due: all 0.
  std::string Bytes();

 private:
  struct Sample {
    absl::Time at = absl::InfinitePast();
    absl::Duration processor_time = absl::ZeroDuration();
    int64_t requests = 0;
  };

  static std::string Write(double processors, double requests_per_second, double utilization);
  Sample Take() const;

  const Sources sources_;
  const Clock& clock_;
  proto::Mutex mutex_;
  Sample last_ ABSL_GUARDED_BY(mutex_);
  std::string bytes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOAD_REPORT_H_
