// ServerOptions: what an operator can set, read once from the command line.
//
// Threading:  Values.
// Errors:     INVALID_ARGUMENT, with the flag's name: "--listen: got X, want Y". NOT_FOUND: a file
//             that cannot be read.
#ifndef ROPE_SERVER_OPTIONS_H_
#define ROPE_SERVER_OPTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/clients/limits.h"
#include "server/clients/regions.h"
#include "server/grpc/tls_credentials.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/telemetry/log.h"

namespace rope::server {

// A quarter of the files that the process may open. Each connection takes two, and half of the
// files stay for the rest.
int64_t DefaultMaxConnections();

struct ServerOptions {
  std::vector<std::string> listen = {"127.0.0.1:50051"};  // HOST:PORT (port 0: any) or unix:PATH
  std::optional<mode_t> socket_mode;  // of Unix sockets; none: what the umask leaves
  TlsFiles tls;                       // of TCP; none: without TLS
  std::string access_file;            // access.h; empty: every client has every right
  bool reflection = true;             // serve gRPC's reflection, which asks for no right
  std::string device = "auto";        // auto, cpu, reference or cuda
  std::vector<ModelRegistry::ModelFile> models;
  std::string metrics_listen;  // HOST:PORT; empty: off
  RegionTotals::Options shared_memory;
  absl::Duration poll_spin = absl::Microseconds(200);  // zero: never
  absl::Duration drain_lead = absl::ZeroDuration();
  absl::Duration drain_timeout = absl::Seconds(10);  // below the 30 s of Kubernetes
  absl::Duration receive_timeout = absl::Minutes(1);
  absl::Duration handshake_timeout = absl::Seconds(10);
  absl::Duration idle_timeout = absl::Minutes(30);
  int64_t max_connections = DefaultMaxConnections();  // of all clients; half of it of one owner
  std::vector<std::string> trusted_proxies;           // owners (clients/peers.h): "uid:1000"
  int64_t available_bytes = AvailableMemory();        // no flag: what the defaults of memory go by
  int64_t memory_bytes = DefaultMemoryBytes(available_bytes);
  // None: a part of memory_bytes (DivideMemory).
  std::optional<int64_t> max_message_bytes;
  std::optional<int64_t> table_cache_bytes;
  int threads = 0;  // 0: as many as there are processors
  std::string log_level = "info";
  LogFormat log_format = LogFormat::kLogfmt;
  // Flags that change nothing, or not what they seem to, each with the reason.
  std::vector<std::string> warnings;

  MemoryShares memory_shares() const {
    return DivideMemory(memory_bytes, table_cache_bytes, max_message_bytes);
  }
};

// Reads --name=value arguments; `--help` is answered by Help() and the caller.
absl::StatusOr<ServerOptions> ParseOptions(const std::vector<std::string>& arguments);

// Why requests may use more memory than there is: shared memory takes more than `memory_bytes`
// leaves. Empty: it fits, or is off.
std::string SharedMemoryWarning(const ServerOptions& options);

// All flags with their meaning and default.
std::string Help();

}  // namespace rope::server

#endif  // ROPE_SERVER_OPTIONS_H_
