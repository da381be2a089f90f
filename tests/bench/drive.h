// The client processes of rope_bench.
#ifndef ROPE_TESTS_BENCH_DRIVE_H_
#define ROPE_TESTS_BENCH_DRIVE_H_

#include <string>

namespace rope::bench {

// Runs the client that `text` describes (written by RunDrive), and prints its result.
[[noreturn]] void DriveMain(const std::string& text);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_DRIVE_H_
