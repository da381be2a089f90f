// The report of rope_bench_cuda: one line for each row on standard output, and the same rows as
// JSON.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_GPU_REPORT_H_
#define ROPE_TESTS_GPU_REPORT_H_

#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/bench/measure.h"

namespace rope::bench {

// The result of a row. The JSON contains the Measurement, whose value is in microseconds or GB/s.
struct CudaMeasurement {
  Measurement measurement;
  double microseconds = 0;
  double gigabytes_per_second = 0;  // 0: none
  double share = 0;                 // the yardstick's time over this one; 0: none
};

struct CudaRow {
  std::string name;
  std::string bar;  // as in measure.h
  std::function<CudaMeasurement()> measure;
};

// Measures the rows whose names match a regular expression, prints each result at once, and returns
// all of them in the format of rope_bench.
nlohmann::json RunRows(const std::vector<CudaRow>& rows, const std::string& filter);

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_REPORT_H_
