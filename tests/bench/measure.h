// The registry of rope_bench's rows, and the timing that rows share.
//
// A row is one promise about speed or memory. Files of rows register themselves through a function
// that main.cc calls; a row measures its yardstick in the same run, side by side, because machines
// differ and drift.
#ifndef ROPE_TESTS_BENCH_MEASURE_H_
#define ROPE_TESTS_BENCH_MEASURE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rope::bench {

// The result of a row. The bar applies to `ratio`, or to `value` if there is no ratio.
struct Measurement {
  double value = 0;
  std::string unit;
  std::string yardstick = {};  // the thing compared with, and its figure
  std::optional<double> ratio = std::nullopt;
  // False: this machine cannot measure the row, and `yardstick` holds the reason.
  bool measured = true;
};

struct Row {
  std::string name;  // for example "embedded/rotate_bf16_new_output"
  std::string bar;   // ">= 0.9" or "<= 1"; empty: a figure for information
  std::function<Measurement()> measure;
};

// Whether a number satisfies a bar such as ">= 0.9" or "<= 1". REQUIRES: the bar is of that form.
bool Holds(const std::string& bar, double number);

// The times of all turns in seconds, for each function. The functions take turns; the first turn
// does not count.
std::vector<std::vector<double>> TakeTurns(const std::vector<std::function<void()>>& functions,
                                           int rounds);

// The fastest time of each function, in seconds. The functions take turns, so that other load on
// the machine affects all of them: at least `rounds` turns after one that does not count.
std::vector<double> MinSeconds(const std::vector<std::function<void()>>& functions, int rounds);

// The same, with the median of the turns.
std::vector<double> MedianSeconds(const std::vector<std::function<void()>>& functions, int rounds);

// Calls or answers a second of a server and of its yardstick.
struct Rates {
  std::vector<double> rope;
  std::vector<double> echo;
  std::vector<double> ratios;  // of each pair
};

// Measures both in turns; each goes first in every second turn. Turns are short and compared pair
// by pair, because the speed of a shared machine changes from second to second.
Rates InTurns(int rounds, const std::function<double()>& rope, const std::function<double()>& echo);

// "12.3 GB/s".
std::string GigabytesPerSecond(double bytes, double seconds);

// The rows of each file, and all rows.
std::vector<Row> EmbeddedRows();
std::vector<Row> MoveRows();
std::vector<Row> ServiceRows();
std::vector<Row> BystanderRows();
std::vector<Row> ShippedRows();
std::vector<Row> SharedMemoryRows();
std::vector<Row> PreparedRows();
std::vector<Row> ProcessRows();
std::vector<Row> AllRows();

// Sets this process up as the documentation asks of servers and clients, before any thread starts.
void Prepare();

// If `argument` names a mode (modes.h), runs that server or client and does not return. REQUIRES:
// before Prepare.
void ServeIfAsked(const std::string& argument);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_MEASURE_H_
