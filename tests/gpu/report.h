// The report of rope_bench_cuda: one line for each row on standard output, and one line of JSON for
// each row in a file, written as soon as the row is measured.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_GPU_REPORT_H_
#define ROPE_TESTS_GPU_REPORT_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/bench/measure.h"
#include "tests/gpu/device.h"

namespace rope::bench {

// The result of a row. The JSON contains the Measurement, whose value is in microseconds or GB/s.
struct CudaMeasurement {
  Measurement measurement;
  Spread seconds = {};              // of one call; all 0: not a time
  double gigabytes_per_second = 0;  // 0: none
  double share = 0;                 // the yardstick's time over this one; 0: none
  std::string wrong = {};           // what is wrong with the result; empty: nothing
};

struct CudaRow {
  std::string name;
  std::string bar;  // as in measure.h
  std::function<CudaMeasurement()> measure;
};

// All rows (rows_device.cc): kernels and calls on tensors in device memory, and copies of the same
// bytes.
std::vector<CudaRow> DeviceRows();

// A result that was not measured, and why.
CudaMeasurement NotMeasured(const std::string& reason);

// Measures the rows whose names match a regular expression, with warm clocks, and prints each
// result at once, also to `json` in the format of rope_bench. Returns the number of wrong results.
int RunRows(const std::vector<CudaRow>& rows, const std::string& filter, std::ostream& json);

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_REPORT_H_
