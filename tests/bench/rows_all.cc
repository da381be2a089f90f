// All rows, and the processes that they start.
#include <string_view>

#include "server/process_setup.h"
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
