#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "proto/file_descriptor.h"
#include "tests/support/memory_limit.h"

namespace rope::testing {
namespace {

[[noreturn]] void RunChild(const std::vector<std::string>& arguments, int output, bool join_errors,
                           const MemoryLimit* limit) {
  if (limit != nullptr) limit->Enter();
  dup2(output, STDOUT_FILENO);
  if (join_errors) dup2(output, STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  std::perror(argv[0]);
  _exit(127);
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, bool join_errors,
                 const MemoryLimit* limit) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) RunChild(arguments, pipe_ends[1], join_errors, limit);
  close(pipe_ends[1]);
  output_ = pipe_ends[0];
}

Process::~Process() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(output_);
}

std::string Process::ReadLine() {
  std::string line;
  char c = 0;
  while (read(output_, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

std::string Process::ReadAll() {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(output_, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

void Process::Signal(int signal) const {
  kill(pid_, signal);
}

int Process::Wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::optional<int> Process::WaitFor(std::chrono::milliseconds bound) {
  const proto::FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd ended = {.fd = process.get(), .events = POLLIN, .revents = 0};
  if (poll(&ended, 1, static_cast<int>(bound.count())) <= 0) return std::nullopt;
  return Wait();
}

Outcome RunProgram(const std::vector<std::string>& arguments) {
  Process process(arguments, /*join_errors=*/true);
  Outcome outcome;
  outcome.output = process.ReadAll();
  outcome.status = process.Wait();
  return outcome;
}

std::string ServerProgram() {
  return ROPE_BINARY_DIR "/bin/rope_server";
}
std::string RopectlProgram() {
  return ROPE_BINARY_DIR "/bin/ropectl";
}

}  // namespace rope::testing
