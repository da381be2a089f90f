// The real server inside this program.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>

#include "kernels/check.h"
#include "server/server.h"
#include "tests/bench/modes.h"

namespace rope::bench {

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

}  // namespace rope::bench
