// A child process whose standard output and error a test reads; the destructor kills it.
//
// Threading:  Confined to one thread, except Signal and pid.
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
  // The destination of its standard error.
  enum class Errors {
    kOurs,    // the test's own standard error
    kOutput,  // the pipe of its standard output
    kPipe,    // a separate pipe, read by ReadErrorLine and ReadErrors alone
  };

  // Starts `arguments[0]`, under `limit` if there is one, which must outlive the process.
  explicit Process(const std::vector<std::string>& arguments, Errors errors = Errors::kOurs,
                   const MemoryLimit* limit = nullptr);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of output without its newline; empty at the end of the output.
  std::string ReadLine();
  // All remaining output.
  std::string ReadAll();
  // The same two of standard error. REQUIRES: Errors::kPipe.
  std::string ReadErrorLine();
  std::string ReadErrors();
  // SIGSTOP: returns once the process has stopped, which it does when it gets to it.
  void Signal(int signal) const;
  // Waits for the end. Returns the exit status, or -signal if a signal ended the process.
  int Wait();
  // The same within `bound`; nullopt: the process is still running.
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

// The path by which this program was started. A packed program is started by a script, and
// /proc/self/exe is then the packed loader.
std::string OwnProgram();
// The server beside this program, as in a pack, or else the one of the build.
std::string ServerProgram();
// Programs of the build.
// The client that tests kill (tests/e2e/victim.cc).
std::string VictimProgram();
std::string RopectlProgram();

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_PROCESS_H_
