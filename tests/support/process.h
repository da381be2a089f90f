// A child process whose standard output and error a test reads; killed when it goes out of scope.
//
// Threading:  Confined to one thread, but for Signal and pid.
#ifndef ROPE_TESTS_SUPPORT_PROCESS_H_
#define ROPE_TESTS_SUPPORT_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "proto/ipc/file_descriptor.h"

namespace rope::testing {

class MemoryLimit;

class Process {
 public:
  // Where its standard error goes.
  enum class Errors {
    kOurs,    // to the test's own
    kOutput,  // where its output goes
    kPipe,    // into a pipe that ReadErrors alone reads
  };

  // Starts `arguments[0]`, under `limit` where there is one, which then outlives it.
  explicit Process(const std::vector<std::string>& arguments, Errors errors = Errors::kOurs,
                   const MemoryLimit* limit = nullptr);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of output without its end; empty at the end of the output.
  std::string ReadLine();
  // All output that is left.
  std::string ReadAll();
  // All of its standard error that is left; with Errors::kPipe.
  std::string ReadErrors();
  void Signal(int signal) const;
  // Waits for the end. The exit status, or -signal where one ended it.
  int Wait();
  // The same within `bound`; nullopt: it runs still.
  std::optional<int> WaitFor(std::chrono::milliseconds bound);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  proto::FileDescriptor output_;
  proto::FileDescriptor errors_;
};

// How a finished program ended, and what it printed (both streams).
struct Outcome {
  int status = 0;
  std::string output;
};
Outcome RunProgram(const std::vector<std::string>& arguments);

// Programs of the build.
std::string ServerProgram();
// The client that tests kill (tests/e2e/victim.cc).
std::string VictimProgram();
std::string RopectlProgram();

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_PROCESS_H_
