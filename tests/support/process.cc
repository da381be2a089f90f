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
#include <filesystem>
#include <utility>

#include "proto/ipc/file_descriptor.h"
#include "tests/support/memory_limit.h"

namespace rope::testing {
namespace {

struct Pipe {
  proto::FileDescriptor read;
  proto::FileDescriptor write;
};

Pipe NewPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  return {proto::FileDescriptor(ends[0]), proto::FileDescriptor(ends[1])};
}

[[noreturn]] void RunChild(const std::vector<std::string>& arguments, int output, int errors,
                           const MemoryLimit* limit) {
  if (limit != nullptr) limit->Enter();
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  std::perror(argv[0]);
  _exit(127);
}

std::string ReadLineOf(int fd) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(fd, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, Errors errors,
                 const MemoryLimit* limit) {
  Pipe output = NewPipe();
  Pipe own_errors;
  int to = STDERR_FILENO;
  if (errors == Errors::kOutput) to = output.write.get();
  if (errors == Errors::kPipe) {
    own_errors = NewPipe();
    to = own_errors.write.get();
  }
  pid_ = fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) RunChild(arguments, output.write.get(), to, limit);
  output_ = std::move(output.read);
  errors_ = std::move(own_errors.read);
}

Process::~Process() {
  if (pid_ <= 0) return;
  Signal(SIGKILL);
  Wait();
}

std::string Process::ReadLine() {
  return ReadLineOf(output_.get());
}

std::string Process::ReadErrorLine() {
  return ReadLineOf(errors_.get());
}

std::string Process::ReadAll() {
  return ReadToEnd(output_.get());
}

std::string Process::ReadErrors() {
  return ReadToEnd(errors_.get());
}

void Process::Signal(int signal) const {
  if (pid_ <= 0) std::abort();  // kill would signal every process
  kill(pid_, signal);
  if (signal != SIGSTOP) return;
  siginfo_t stopped{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED) != 0) std::abort();
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
  Process process(arguments, Process::Errors::kOutput);
  Outcome outcome;
  outcome.output = process.ReadAll();
  outcome.status = process.Wait();
  return outcome;
}

std::string OwnProgram() {
  const std::string name = program_invocation_name;
  return name.find('/') == std::string::npos ? "/proc/self/exe" : name;  // found on PATH
}

std::string ServerProgram() {
  const auto beside = std::filesystem::path(OwnProgram()).replace_filename("rope_server");
  if (std::filesystem::exists(beside)) return beside;
  return ROPE_BINARY_DIR "/bin/rope_server";
}

std::string VictimProgram() {
  return ROPE_BINARY_DIR "/tests/rope_victim";
}
std::string RopectlProgram() {
  return ROPE_BINARY_DIR "/bin/ropectl";
}

}  // namespace rope::testing
