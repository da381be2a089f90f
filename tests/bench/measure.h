// What rope_bench is made of: a registry of rows, and the timing that rows share.
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

// What a row found. `ratio` is what the bar compares; without it, `value` is.
struct Measurement {
  double value = 0;
  std::string unit;
  std::string yardstick = {};  // what it was measured against, with its figure
  std::optional<double> ratio = std::nullopt;
  // False: this machine cannot measure it, and `yardstick` says why.
  bool measured = true;
};

struct Row {
  std::string name;  // for example "kernel/rotate_bf16_new_output"
  std::string bar;   // ">= 0.9" or "<= 1"; empty: a figure for information
  std::function<Measurement()> measure;
};

// Whether a number satisfies a bar such as ">= 0.9" or "<= 1". REQUIRES: the bar is of that form.
bool Holds(const std::string& bar, double number);

// Fastest seconds that one call of each function took. The functions take turns, so that what else
// happens on the machine hits all of them; at least `rounds` turns, and one turn first that does
// not count.
std::vector<double> MinSeconds(const std::vector<std::function<void()>>& functions, int rounds);

// The same, with the median of the turns.
std::vector<double> MedianSeconds(const std::vector<std::function<void()>>& functions, int rounds);

// What a server and its yardstick gave, a second.
struct Rates {
  std::vector<double> rope;
  std::vector<double> echo;
  std::vector<double> ratios;  // of each pair
};

// Both in turns, the one and the other first. Turns are short and compared pair by pair, because
// what a machine that others share gives changes by the second.
Rates InTurns(int rounds, const std::function<double()>& rope, const std::function<double()>& echo);

// "12.3 GB/s".
std::string GigabytesPerSecond(double bytes, double seconds);

// The rows of each file, and those that this build has.
std::vector<Row> KernelRows();
std::vector<Row> ServiceRows();
std::vector<Row> BystanderRows();
std::vector<Row> ShippedRows();
std::vector<Row> SharedMemoryRows();
std::vector<Row> ProcessRows();
std::vector<Row> ElsewhereRows();
std::vector<Row> AllRows();

// Sets this process up as the documentation asks of servers and clients, before any thread starts.
// Part of AllRows' file, because a build of kernels alone has nothing to set up.
void Prepare();

// Becomes a server or a client of a row and does not return where `argument` asks for that
// (modes.h). REQUIRES: before Prepare.
void ServeIfAsked(const std::string& argument);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_MEASURE_H_
