#include "tests/bench/servers.h"

#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/modes.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

struct Running {
  std::unique_ptr<testing::Process> process;
  std::string tcp;
  std::string path;
};

// The folder of this process's files.
const std::string& Folder() {
  static const std::string folder = testing::TemporaryFolder();
  return folder;
}

std::vector<std::string> CommandLine(Kind kind, const std::string& path) {
  const std::string self = testing::OwnProgram();
  switch (kind) {
    case Kind::kRope:
      return {testing::ServerProgram(), "--listen=127.0.0.1:0",
              absl::StrCat("--listen=unix:", path), "--log_level=warn"};
    case Kind::kSharedMemory:
      return {testing::ServerProgram(), "--listen=127.0.0.1:0",
              absl::StrCat("--listen=unix:", path), "--log_level=warn", "--enable_shared_memory"};
    case Kind::kEcho:
      return {self, absl::StrCat(kServeEcho, path)};
    case Kind::kUntunedEcho:
      return {self, absl::StrCat(kServeUntunedEcho, path)};
    case Kind::kBatching:
      return {self, absl::StrCat(kServeBatching, path)};
    case Kind::kNoBatching:
      return {self, absl::StrCat(kServeNoBatching, path)};
  }
  return {};
}

Running& Get(Kind kind) {
  static std::map<Kind, Running> all;
  Running& running = all[kind];
  if (running.process == nullptr) {
    running.path = absl::StrCat(Folder(), "/", static_cast<int>(kind), ".sock");
    running.process = std::make_unique<testing::Process>(CommandLine(kind, running.path));
    const std::string line = running.process->ReadLine();  // "listening on 127.0.0.1:PORT"
    running.tcp = line.substr(line.rfind(' ') + 1);
    running.process->ReadLine();  // the Unix socket
  }
  return running;
}

}  // namespace

std::string Target(Kind kind, Socket socket) {
  const Running& running = Get(kind);
  return socket == Socket::kTcp ? running.tcp : absl::StrCat("unix:", running.path);
}

pid_t ProcessOf(Kind kind) {
  return Get(kind).process->pid();
}

}  // namespace rope::bench
