#include "tests/bench/servers.h"

#include <fstream>
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

std::string KeyFile() {
  return absl::StrCat(Folder(), "/server.key");
}

std::string AccessFile() {
  const std::string path = absl::StrCat(Folder(), "/access.json");
  // The digest is of kToken.
  std::ofstream(path) << R"({"identities": [{"name": "bench", "rights": ["rotate"],
    "tokens_sha256": ["3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0"]}]})";
  return path;
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
    case Kind::kTls:
      return {testing::ServerProgram(),
              "--listen=127.0.0.1:0",
              absl::StrCat("--listen=unix:", path),
              "--log_level=warn",
              absl::StrCat("--tls_cert=", CertificateFile()),
              absl::StrCat("--tls_key=", KeyFile())};
    case Kind::kAccessFile:
      return {testing::ServerProgram(), "--listen=127.0.0.1:0",
              absl::StrCat("--listen=unix:", path), "--log_level=warn",
              absl::StrCat("--access_file=", AccessFile())};
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

const std::string& CertificateFile() {
  static const std::string made = [] {
    const std::string path = absl::StrCat(Folder(), "/server.pem");
    testing::Process openssl({"/bin/sh",
                              "-c",
                              "exec openssl \"$@\" 2>/dev/null",
                              "sh",
                              "req",
                              "-x509",
                              "-newkey",
                              "ec",
                              "-pkeyopt",
                              "ec_paramgen_curve:prime256v1",
                              "-nodes",
                              "-days",
                              "1",
                              "-subj",
                              "/CN=bench",
                              "-addext",
                              "subjectAltName=IP:127.0.0.1",
                              "-keyout",
                              KeyFile(),
                              "-out",
                              path});
    return openssl.Wait() == 0 ? path : std::string();
  }();
  return made;
}

std::string Target(Kind kind, Socket socket) {
  const Running& running = Get(kind);
  return socket == Socket::kTcp ? running.tcp : absl::StrCat("unix:", running.path);
}

pid_t ProcessOf(Kind kind) {
  return Get(kind).process->pid();
}

}  // namespace rope::bench
