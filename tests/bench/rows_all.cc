// The rows of a whole build.
#include <utility>

#include "server/grpc_options.h"
#include "tests/bench/echo_server.h"
#include "tests/bench/measure.h"

namespace rope::bench {

std::vector<Row> AllRows() {
  std::vector<Row> rows = KernelRows();
  for (Row& row : ServiceRows()) rows.push_back(std::move(row));
  return rows;
}

void Prepare() {
  server::KeepMemory();
}

void ServeIfAsked(const std::string& argument) {
  const std::string flag = kServeEcho;
  if (argument.rfind(flag, 0) == 0) ServeEcho(argument.substr(flag.size()));
}

}  // namespace rope::bench
