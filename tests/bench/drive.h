// The client processes of rope_bench.
#ifndef ROPE_TESTS_BENCH_DRIVE_H_
#define ROPE_TESTS_BENCH_DRIVE_H_

#include <string>

namespace rope::bench {

// Does what `text`, of RunDrive, says, and prints what came of it.
[[noreturn]] void DriveMain(const std::string& text);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_DRIVE_H_
