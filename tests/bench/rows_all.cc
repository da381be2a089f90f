// All rows, and the processes that they start.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "kernels/check.h"
#include "server/process_setup.h"
#include "server/server.h"
#include "tests/bench/measure.h"
#include "tests/bench/modes.h"

namespace rope::bench {

std::vector<Row> AllRows() {
  std::vector<Row> rows = EmbeddedRows();
  for (const auto& more : {MoveRows(), BystanderRows(), ServiceRows(), ShippedRows(),
                           SharedMemoryRows(), PreparedRows(), ProcessRows()}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

void ServeOwn(const std::string& path, bool batching) {
  spdlog::set_level(spdlog::level::warn);
  server::ServerOptions options;
  options.listen = {"127.0.0.1:0", "unix:" + path};
  server::Batcher::Options batches;
  if (!batching) batches.requests_max = 1;
  const server::SteadyClock clock;
  const auto server = server::Server::Create(options, clock, batches);
  ROPE_CHECK(server.ok());
  for (const std::string& address : (*server)->addresses()) {
    std::printf("listening on %s\n", address.c_str());
  }
  std::fflush(stdout);
  while (true) pause();
}

void Prepare() {
  server::PrepareProcess();
}

void ServeIfAsked(const std::string& argument) {
  const auto path = [&argument](std::string_view flag) {
    return argument.rfind(flag, 0) == 0 ? argument.substr(flag.size()) : std::string();
  };
  // These two modes configure their allocator themselves.
  if (!path(kServeUntunedEcho).empty()) ServeUntunedEcho(path(kServeUntunedEcho));
  if (!path(kDrive).empty()) DriveMain(path(kDrive));
  Prepare();
  if (!path(kServeEcho).empty()) ServeEcho(path(kServeEcho));
  if (!path(kServeBatching).empty()) ServeOwn(path(kServeBatching), true);
  if (!path(kServeNoBatching).empty()) ServeOwn(path(kServeNoBatching), false);
}

}  // namespace rope::bench
