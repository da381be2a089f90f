// rope_server: flags -> Server -> wait for a signal or a lost device -> drain -> exit status. No
// logic.
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "proto/flags/flags.h"
#include "proto/version.h"
#include "server/clients/connections.h"
#include "server/clock.h"
#include "server/grpc/poll_loop.h"
#include "server/options.h"
#include "server/process_setup.h"
#include "server/server.h"
#include "server/telemetry/log.h"
#include "server/telemetry/process.h"

namespace {

using rope::server::Log;
using rope::server::LogKind;
using rope::server::LogLine;

// The device that --device names is lost: only a new process gets another context of it.
constexpr int kExitDeviceLost = 3;

// With this signal the process tells its main thread that the device is lost.
int DeviceLostSignal() {
  return SIGRTMIN;
}

// Blocks the stop signals, which it returns, and the others of AwaitStopSignal before any thread
// starts, so that only sigwait and sigtimedwait get them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigset_t all = signals;
  sigaddset(&all, SIGHUP);
  sigaddset(&all, DeviceLostSignal());
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // the write fails with EFBIG, which its caller handles
  return signals;
}

// Protobuf's messages about a client's bytes, at debug level: the client gets them in its answer,
// and clients must not be able to fill the log.
void LogProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  rope::server::LogLimited(LogKind::kProtobuf, spdlog::level::debug,
                           LogLine("protobuf: " + rope::server::Quoted(message)));
}

// gRPC's error lines. That of a failed handshake stands in the line of its connection too.
void LogGrpc(gpr_log_func_args* line) {
  const bool is_told = rope::server::Connections::NoteFailedHandshake(line->message);
  rope::server::LogLimited(LogKind::kGrpc, is_told ? spdlog::level::debug : spdlog::level::warn,
                           LogLine("grpc: " + rope::server::Quoted(line->message)));
}

// Sends all log lines of the process through `logger`, because the writers of the libraries block
// on standard error. If GRPC_VERBOSITY is set, gRPC keeps its own writer.
void TakeLogs(const std::shared_ptr<spdlog::logger>& logger, const std::string& level) {
  spdlog::set_default_logger(logger);
  spdlog::set_level(spdlog::level::from_str(level));
  google::protobuf::SetLogHandler(&LogProtobuf);
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(&LogGrpc);
}

// Waits for a stop signal or the loss of the device, which it returns. At SIGHUP the server reads
// its files again.
int AwaitStopSignal(sigset_t signals, rope::server::Server& server) {
  sigaddset(&signals, DeviceLostSignal());
  sigaddset(&signals, SIGHUP);
  while (true) {
    int received = 0;
    sigwait(&signals, &received);
    if (received != SIGHUP) return received;
    Log(spdlog::level::info,
        LogLine("SIGHUP: reads the files of access and TLS again; flags stay"));
    server.Reload();
  }
}

// Waits for a stop, then for the lead time or a stop signal. Returns the exit status.
int WaitForStop(const sigset_t& signals, const rope::server::Clock& clock,
                rope::server::Server& server, absl::Duration lead) {
  const int received = AwaitStopSignal(signals, server);
  const bool device_lost = received == DeviceLostSignal();
  const std::string why = device_lost ? "device lost" : "signal " + std::to_string(received);
  Log(spdlog::level::info,
      LogLine(why + ": not serving, draining after " + absl::FormatDuration(lead)));
  server.StopAdvertising();
  const absl::Time end = clock.Now() + lead;
  timespec wait;
  do {  // SIGCONT, or a handled signal, interrupts the call and not the lead time
    wait = absl::ToTimespec(std::max(end - clock.Now(), absl::ZeroDuration()));
  } while (sigtimedwait(&signals, nullptr, &wait) < 0 && errno == EINTR);
  return device_lost ? kExitDeviceLost : 0;
}

// Drains. A signal meanwhile ends the waiting at once.
void Drain(const sigset_t& signals, rope::server::Server& server, absl::Duration timeout) {
  std::atomic<bool> drained = false;
  std::thread impatient([&] {
    const timespec period = absl::ToTimespec(absl::Milliseconds(50));
    while (!drained) {
      if (sigtimedwait(&signals, nullptr, &period) < 0) continue;
      Log(spdlog::level::info, LogLine("signal: not waiting any longer"));
      server.EndDrain();
    }
  });
  server.Drain(timeout);
  drained = true;
  impatient.join();
}

int Serve(const rope::server::ServerOptions& options, const sigset_t& signals) {
  const rope::server::SteadyClock clock;
  auto server =
      rope::server::Server::Create(options, clock, {}, [] { kill(getpid(), DeviceLostSignal()); });
  if (!server.ok()) {
    std::fprintf(stderr, "rope_server: %s\n", std::string(server.status().message()).c_str());
    return 1;
  }
  for (const std::string& address : (*server)->addresses()) {
    std::printf("listening on %s\n", address.c_str());
  }
  if (!(*server)->metrics_address().empty()) {
    std::printf("metrics on http://%s/metrics\n", (*server)->metrics_address().c_str());
  }
  std::fflush(stdout);
  const int status = WaitForStop(signals, clock, **server, options.drain_lead);
  Drain(signals, **server, options.drain_timeout);
  Log(spdlog::level::info, LogLine("drained"));
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  rope::server::PrepareProcess();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "-h" || argument == "--help") {
      return std::printf("%s", rope::server::Help().c_str()) < 0;
    }
    if (argument == "--version") {
      return std::printf("rope_server %s\n", rope::proto::kVersion) < 0;
    }
  }
  const auto options = rope::server::ParseOptions(arguments);
  if (!options.ok()) {
    std::fprintf(stderr, "rope_server: %s\n", std::string(options.status().message()).c_str());
    return rope::proto::kExitUsage;
  }
  rope::server::LimitArenas(rope::server::PollThreads(rope::server::ProcessorCount()));
  const sigset_t signals = BlockSignals();
  const rope::server::LogOutput log(STDERR_FILENO, options->log_format);
  TakeLogs(log.logger(), options->log_level);
  return Serve(*options, signals);
}
