// The lines that a server logs when it starts.
#ifndef ROPE_SERVER_START_LOG_H_
#define ROPE_SERVER_START_LOG_H_

#include <string>
#include <vector>

#include "server/engine/device_router.h"
#include "server/models/model_registry.h"
#include "server/options.h"
#include "server/telemetry/log.h"

namespace rope::server {

// The revision of the sources that this program was built from: what CMake was told
// (ROPE_REVISION), or git's short hash when CMake last ran; else "unknown". Defined in a source
// that CMake writes (CMakeLists.txt).
const char* Revision();

// The log lines of a server that has started: one line about what runs, then one about each thing
// in its configuration that the operator should know.
//
// Limits:     kModelsShown names in the first line; kWarningsShown warnings of each model.

inline constexpr size_t kModelsShown = 16;
inline constexpr size_t kWarningsShown = 16;

// What has started.
struct Started {
  const ServerOptions& options;
  const MemoryShares& shares;
  int threads = 0;
  const DeviceRouter& devices;
  const ModelRegistry& models;
  const std::vector<std::string>& addresses;
  const std::string& metrics_address;  // empty: none
};

// The lines about a model file.
std::vector<LogLine> LinesOf(const ModelRegistry::FileReport& file);

// Level info: version, revision, limits, devices, addresses, models with the number of their
// warnings. Level warn: warnings of flags, presets that a file replaces, warnings of files.
void LogStart(const Started& started);

}  // namespace rope::server

#endif  // ROPE_SERVER_START_LOG_H_
