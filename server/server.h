// Server: the core (core.h) behind gRPC, rings and the metrics page.
//
//   Create (serving) -> StopAdvertising (health NOT_SERVING, calls still run)
//                    -> Drain (refuses new calls, finishes the others; EndDrain cuts it short)
//
// If the GPU of --device=cuda is lost, health turns NOT_SERVING and OnDeviceLost runs. Until the
// caller drains the server, the CPU runs its requests.
//
// Threading:  Create, Drain and the destructor run on one thread, EndDrain and Reload on any. Each
//             part states its own rule.
// Ownership:  Members are declared in the order of their dependencies and destroyed in reverse.
// Errors:     Create: INVALID_ARGUMENT, UNIMPLEMENTED (device), NOT_FOUND (a file), UNAVAILABLE (an
//             address in use).
#ifndef ROPE_SERVER_SERVER_H_
#define ROPE_SERVER_SERVER_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rope/v1/rope_service.pb.h"
#include "server/clients/connection_watch.h"
#include "server/clients/limits.h"
#include "server/clock.h"
#include "server/core.h"
#include "server/engine/batcher.h"
#include "server/file_watch.h"
#include "server/grpc/health.h"
#include "server/grpc/memory_watch.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/tls_credentials.h"
#include "server/grpc/unknown_methods.h"
#include "server/housekeeper.h"
#include "server/ipc/listener.h"
#include "server/ipc/ring.h"
#include "server/options.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/metrics_endpoint.h"

namespace rope::server {

// The revision of the sources that this program was built from: what CMake was told
// (ROPE_REVISION), or git's short hash when CMake last ran; else "unknown". Defined in a source
// that CMake writes (CMakeLists.txt).
const char* Revision();

class Server {
 public:
  // Runs once, on any thread, when the GPU of --device=cuda is lost.
  using OnDeviceLost = std::function<void()>;

  // Creates a server that serves when Create returns. `clock` must outlive the server. The device
  // determines direct_slots of `batches`.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const ServerOptions& options,
                                                        const Clock& clock,
                                                        const Batcher::Options& batches = {},
                                                        OnDeviceLost on_device_lost = nullptr);
  // Drains with a grace of 0, unless Drain has run.
  ~Server() { Drain(absl::ZeroDuration()); }

  // Listening addresses with ports filled in: "127.0.0.1:50051", "unix:/run/rope.sock".
  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::string& metrics_address() const { return metrics_address_; }

  // Turns health to NOT_SERVING, so that load balancers choose other servers. Calls still run.
  void StopAdvertising() { health_->SetServing(false); }
  // Refuses new calls, finishes running ones, and ends all threads that serve calls. Side thread
  // and batcher each wait for `grace`; what still queues then is answered UNAVAILABLE.
  void Drain(absl::Duration grace);
  // Ends the waiting of a Drain on another thread, as if its grace had passed.
  void EndDrain();
  // Reads the files of access and TLS again. What cannot be used stays as it was. Any thread.
  void Reload();

 private:
  Server(const ServerOptions& options, const Clock& clock, OnDeviceLost on_device_lost);
  absl::Status Build(const Batcher::Options& batches);
  absl::Status BuildCore(int threads, const Batcher::Options& batches);
  ConnectionWatch::Options WatchOptions();
  absl::Status BuildRingLoop(int threads);
  void BuildGrpcServer(int threads);
  // Time for which a thread polls before it sleeps.
  absl::Duration Spin(int threads) const;
  absl::Status Listen();
  void HandOn(int fd, bool tls);
  void ArmAndStart();
  // One line about what runs; then, as warnings, one for each thing in its configuration that the
  // operator should know.
  void LogStart(int threads) const;
  std::vector<FileWatch*> WatchedFiles();
  // A look of the housekeeper. The side thread reads what has changed.
  absl::Duration LookAtFiles();
  Gauges ReadGauges() const;
  std::vector<BudgetUse> Budgets() const;
  void OnDeviceFault(std::string_view device, const absl::Status& status);
  v1::GetServerInfoResponse Info() const;  // what GetServerInfo answers

  const ServerOptions options_;
  const Clock& clock_;
  const MemoryShares shares_;
  const OnDeviceLost on_device_lost_;  // may be null

  std::atomic<bool> looks_at_files_ = false;
  std::shared_ptr<TlsCredentials> tls_;  // null: TCP without TLS
  std::unique_ptr<Core> core_;
  std::unique_ptr<RingLoop> ring_loop_;  // null without shared memory
  std::unique_ptr<Health> health_;
  std::unique_ptr<UnknownMethods> unknown_methods_;
  std::unique_ptr<PollLoop> poll_loop_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tls_acceptor_;  // null: no TLS
  std::unique_ptr<grpc::Server> grpc_server_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::string> addresses_;
  std::string metrics_address_;
  std::atomic<bool> drained_ = false;
  std::unique_ptr<ConnectionWatch> connection_watch_;
  std::unique_ptr<MemoryWatch> memory_watch_;
  std::unique_ptr<Housekeeper> housekeeper_;           // its looks read all budgets
  std::unique_ptr<MetricsEndpoint> metrics_endpoint_;  // last: reads all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_SERVER_H_
