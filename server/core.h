// Core: the server behind its transports: devices, tables, models, memory, the engine and the
// rope.v1 service. Server (server.h) brings it calls over gRPC and through rings; embedded/ makes
// them in its own process.
//
// Threading:  Create and the destructor run on one thread. Each part states its own rule.
// Ownership:  Parts are declared in the order of their dependencies and destroyed in reverse. What
//             makes calls must have ended before. `clock` must outlive it.
// Errors:     Create: INVALID_ARGUMENT, UNIMPLEMENTED (device), NOT_FOUND (a model file).
#ifndef ROPE_SERVER_CORE_H_
#define ROPE_SERVER_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend/cuda/device_executor.h"
#include "kernels/tables/table_cache.h"
#include "rope/v1/rope_service.pb.h"
#include "server/clients/access.h"
#include "server/clients/account.h"
#include "server/clients/buffer_pool.h"
#include "server/clients/connections.h"
#include "server/clients/limits.h"
#include "server/clients/regions.h"
#include "server/clock.h"
#include "server/engine/batcher.h"
#include "server/engine/engine.h"
#include "server/engine/executor.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/grpc/rope_service.h"
#include "server/models/model_registry.h"
#include "server/request/prepared_rotation.h"
#include "server/telemetry/metrics.h"

namespace rope::server {

class Core {
 public:
  struct Options {
    std::string device = "cpu";  // auto, cpu, reference or cuda
    int threads = 1;
    std::vector<ModelRegistry::ModelFile> models = {};
    MemoryShares shares = {};
    RegionTotals::Options shared_memory = {};
    int64_t max_connections = 0;  // of all clients
    std::vector<std::string> trusted_proxies = {};
    std::string access_file = {};    // empty: every client has every right
    int64_t device_table_bytes = 0;  // of each GPU, for calls whose tensors lie there
    // The device determines direct_slots.
    Batcher::Options batches = {};
    DeviceRouter::OnFault on_fault = {};
    // Whether the log has lines about requests.
    bool logs_requests = false;
    std::string revision = "unknown";  // of the sources, for the metrics
    // What GetServerInfo answers. Null: Info of Budgets.
    std::function<v1::GetServerInfoResponse()> info = {};
  };

  static absl::StatusOr<std::unique_ptr<Core>> Create(Options options, const Clock& clock);

  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // The names that health knows: the service, and each device.
  std::vector<std::string> HealthNames() const;
  // Budgets of requests, buffers, tables and models.
  std::vector<BudgetUse> Budgets() const;
  // Bytes that a budget counts: requests, free pool buffers, tables, specs, models and prepared
  // requests.
  int64_t AccountedBytes() const;
  // Version, devices, limits, table cache, and `budgets`; without transports.
  v1::GetServerInfoResponse Info(const std::vector<BudgetUse>& budgets) const;

  CallsInFlight& in_flight() { return in_flight_; }
  DeviceRouter& devices() { return *devices_; }
  const kernels::TableCache& tables() const { return *tables_; }
  const ModelRegistry& registry() const { return *registry_; }
  Metrics& metrics() { return *metrics_; }
  RegionTotals& region_totals() { return region_totals_; }
  Accounts& accounts() { return accounts_; }
  Connections& connections() { return connections_; }
  Access* access() { return access_.get(); }  // null: every client has every right
  BufferPool& pool() { return *pool_; }
  MessageReads& reads() { return reads_; }
  const QueueCall::Parts& calls() const { return calls_; }
  Batcher& batcher() { return *batcher_; }
  SideThread& side_thread() { return engine_->side_thread(); }
  RopeService& rope_service() { return *rope_service_; }

 private:
  Core(Options options, const Clock& clock);
  absl::Status Build();
  // Add the methods of the control plane, before the service is armed: those that the side thread
  // answers, and those that the thread of the call answers.
  void AddPlannedMethods();
  void AddImmediateMethods();

  const Options options_;
  const Clock& clock_;
  const std::string instance_id_;
  const absl::Time started_;

  CallsInFlight in_flight_;
  Accounts accounts_;
  RegionTotals region_totals_;
  Connections connections_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<DeviceRouter> devices_;
  std::unique_ptr<kernels::TableCache> tables_;
  std::unique_ptr<ModelRegistry> registry_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<BufferPool> pool_;
  MessageReads reads_;
  QueueCall::Parts calls_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<PreparedRotations> prepared_;
  std::unique_ptr<kernels::DeviceExecutor> device_executor_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RopeService> rope_service_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CORE_H_
