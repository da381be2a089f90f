// The rows of a whole build.
#include <spdlog/spdlog.h>

#include <utility>

#include "server/grpc_options.h"
#include "tests/bench/measure.h"

namespace rope::bench {

std::vector<Row> AllRows() {
  std::vector<Row> rows = KernelRows();
  for (Row& row : ServiceRows()) rows.push_back(std::move(row));
  return rows;
}

void Prepare() {
  server::KeepMemory();
  spdlog::set_level(spdlog::level::warn);
}

}  // namespace rope::bench
