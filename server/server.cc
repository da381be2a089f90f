#include "server/server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/version.h"
#include "server/control/admin.h"
#include "server/control/limits.h"
#include "server/control_methods.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/limits.h"
#include "server/limits.h"
#include "server/memory/limits.h"
#include "server/models/limits.h"
#include "server/request/limits.h"
#include "server/request/request.h"
#include "server/start_log.h"
#include "server/telemetry/process.h"

namespace rope::server {
namespace {

// Time for connections to close by themselves once no call is left. A client that does not poll its
// connection acknowledges GOAWAY late or never.
constexpr absl::Duration kCloseGrace = absl::Milliseconds(500);

// Time for clients to take their replies once no request runs.
constexpr absl::Duration kReplyGrace = absl::Seconds(1);

std::string MakeInstanceId() {
  absl::BitGen random;
  return absl::StrFormat("%016x", absl::Uniform<uint64_t>(random));
}

std::vector<std::string> DeviceNames(const DeviceRouter& devices) {
  std::vector<std::string> names;
  for (const DeviceRouter::Device& device : devices.list()) names.push_back(device.name);
  return names;
}

// The names that health reports: the service, and each device.
std::vector<std::string> HealthNames(const DeviceRouter& devices) {
  std::vector<std::string> names = DeviceNames(devices);
  names.push_back("rope.v1.RopeService");
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const ServerOptions& options,
                                                       const Clock& clock,
                                                       const Batcher::Options& batches,
                                                       OnDeviceLost on_device_lost) {
  std::unique_ptr<Server> server(
      new Server(options, clock, MakeInstanceId(), std::move(on_device_lost)));  // owned by server
  ROPE_RETURN_IF_ERROR(server->Build(batches));
  return server;
}

Server::Server(const ServerOptions& options, const Clock& clock, std::string instance_id,
               OnDeviceLost on_device_lost)
    : options_(options),
      clock_(clock),
      instance_id_(std::move(instance_id)),
      shares_(options.memory_shares()),
      started_(clock.Now()),
      on_device_lost_(std::move(on_device_lost)),
      connections_({.all = options.max_connections, .owner = options.max_connections / 2},
                   options.trusted_proxies),
      reads_(clock),
      calls_({&in_flight_, &connections_, &reads_}) {}

Server::~Server() {
  Drain(absl::ZeroDuration());
}

absl::Status Server::Build(Batcher::Options batches) {
  const int threads = options_.threads > 0 ? options_.threads : ProcessorCount();
  auto devices = DeviceRouter::Create(options_.device, {.threads = threads}, clock_);
  if (!devices.ok()) return Prefixed("--device: ", devices.status());
  devices_ = *std::move(devices);
  devices_->set_on_fault([this](std::string_view device, const absl::Status& status) {
    OnDeviceFault(device, status);
  });
  tables_ = std::make_unique<kernels::TableCache>(shares_.tables);
  ROPE_ASSIGN_OR_RETURN(
      registry_, ModelRegistry::Create(options_.models, {.spec_bytes_max = shares_.specs,
                                                         .registered_bytes_max = shares_.models}));
  metrics_ = std::make_unique<Metrics>(proto::kVersion, Revision(), DeviceNames(*devices_));
  regions_ = std::make_unique<RegionTable>(options_.shared_memory);
  pool_ = std::make_unique<BufferPool>(shares_.pool, devices_->host_memory());
  admission_ = std::make_unique<Admission>(
      Admission::HalfForASession(limits::kAdmittedRequestsMax, shares_.requests));
  connection_watch_ = std::make_unique<ConnectionWatch>(connections_, WatchOptions());
  memory_watch_ = std::make_unique<MemoryWatch>(
      MemoryWatch::Options{shares_.receive, shares_.message, options_.receive_timeout},
      ProcessMemory([this] { return AccountedBytes(); },
                    [this] { return admission_->refusals().bytes; }),
      reads_, *connection_watch_, *pool_, clock_);
  executor_ = std::make_unique<Executor>(*devices_, *tables_, *pool_);
  batches.direct_slots = devices_->direct_slots(threads);
  batches.gathers_always = devices_->gathers_always();
  batches.direct_bytes_max = std::min(batches.direct_bytes_max, devices_->direct_bytes_max());
  batcher_ = std::make_unique<Batcher>(
      batches, clock_,
      [executor = executor_.get()](absl::Span<Slice> slices) { executor->Run(slices); },
      [metrics = metrics_.get()](const BatchReport& report) { metrics->CountBatch(report); });
  region_resolver_ = std::make_unique<RegionResolver>(*regions_, *pool_, shares_.message);
  prepared_ = std::make_unique<PreparedRotations>(
      *registry_, PreparedRotations::Options{.bytes_max = shares_.prepared});
  engine_ = std::make_unique<Engine>(
      *registry_, *prepared_, *admission_, *batcher_, *region_resolver_, clock_,
      Engine::Options{
          .reply_bytes_max = shares_.message,
          .overwritten = {limits::kOverwriteBytesMin, devices_->accelerator_bytes_min()}});
  rope_service_ = std::make_unique<RopeService>(
      RopeService::Parts{engine_.get(), metrics_.get(), &clock_, calls_, instance_id_,
                         shares_.message, admission_.get()});
  AddControlMethods(
      {registry_.get(), prepared_.get(), regions_.get(), &connections_, tables_.get(),
       &engine_->side_thread(), admission_.get(), shares_.message, [this] { return Info(); }},
      *rope_service_);
  health_ = std::make_unique<Health>(HealthNames(*devices_), calls_);
  reflection_ = std::make_unique<Reflection>(
      Reflection::Services{
          v1::GetServerInfoRequest::descriptor()->file()->FindServiceByName("RopeService"),
          grpc::health::v1::HealthCheckRequest::descriptor()->file()->FindServiceByName("Health")},
      calls_);
  unknown_methods_ =
      std::make_unique<UnknownMethods>(reflection_->service_names(), calls_, *metrics_);
  ROPE_RETURN_IF_ERROR(BuildRingLoop(threads));
  BuildGrpcServer(threads);
  ROPE_RETURN_IF_ERROR(Listen());
  ArmAndStart();
  LogStart({options_, shares_, threads, *devices_, *registry_, addresses_, metrics_address_});
  return absl::OkStatus();
}

ConnectionWatch::Options Server::WatchOptions() {
  ConnectionWatch::Options watch;
  watch.handshake_timeout = options_.handshake_timeout;
  watch.idle_timeout = options_.idle_timeout;
  watch.uses = [this] {
    std::vector<CallWatch::Use> uses = poll_loop_->Uses();
    for (const auto& listener : listeners_) uses.push_back(listener->HandingOn());
    return uses;
  };
  watch.has_memory = [this](int fd) {
    const uint64_t session = SessionOfDescriptor(fd);
    return !regions_->List(session).empty() ||
           (ring_loop_ != nullptr && ring_loop_->Serves(session));
  };
  return watch;
}

absl::Status Server::BuildRingLoop(int threads) {
  if (!options_.shared_memory.enabled) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(
      ring_loop_,
      RingLoop::Create(
          clock_, Spin(threads), [this](RingCall& call) { rope_service_->RotateLocal(call); },
          [this] { return batcher_->RunGathered(); }));
  return absl::OkStatus();
}

// With one processor polling only delays the thread whose event it waits for.
absl::Duration Server::Spin(int threads) const {
  return threads > 1 ? options_.poll_spin : absl::ZeroDuration();
}

// gRPC listens nowhere: it stops to accept for good once no file descriptor is left, gives every
// Unix client the peer name "unix:", and does not report when a connection ends, with which its
// regions must end.
void Server::BuildGrpcServer(int threads) {
  grpc::ServerBuilder builder;
  SetChannelArguments(shares_.message, builder);
  // The last resort: a bound on what gRPC holds of messages and keeps for each connection's next
  // one. It is a soft bound, and gRPC enforces it by ending a random stream.
  builder.SetResourceQuota(
      grpc::ResourceQuota("rope").Resize(static_cast<size_t>(shares_.transport)));
  builder.RegisterService(&rope_service_->service());
  builder.RegisterService(&health_->service());
  builder.RegisterService(&reflection_->service());
  builder.RegisterAsyncGenericService(&unknown_methods_->service());
  poll_loop_ = std::make_unique<PollLoop>(builder, PollThreads(threads), Spin(threads), [this] {
    // A read has started: poll once more, so that its request can gather with the others.
    if (reads_.HasNew()) return true;
    if (reads_.count() > 0) memory_watch_->Wake();
    return batcher_->RunGathered();
  });
  grpc_server_ = builder.BuildAndStart();
  ROPE_CHECK(grpc_server_ != nullptr);
}

absl::Status Server::Listen() {
  for (const std::string& address : options_.listen) {
    Listener::Options listening;
    listening.socket_mode = options_.socket_mode;
    listening.rings = ring_loop_.get();
    listening.connections = &connections_;
    listening.handshake_timeout = options_.handshake_timeout;
    const auto places = static_cast<int64_t>(2 * options_.listen.size());
    listening.pending_connections_max =
        std::clamp<int64_t>(DefaultMaxConnections() / places, 1, listening.pending_connections_max);
    listening.hand_on = [this](int fd) { grpc::AddInsecureChannelFromFd(grpc_server_.get(), fd); };
    ROPE_ASSIGN_OR_RETURN(auto listener,
                          Listener::Create(address, *regions_, std::move(listening)));
    addresses_.push_back(listener->address());
    listeners_.push_back(std::move(listener));
  }
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  const std::string& address = options_.metrics_listen;
  ROPE_ASSIGN_OR_RETURN(
      metrics_endpoint_,
      MetricsEndpoint::Listen(address, {.metrics = metrics_.get(),
                                        .gauges = [this] { return ReadGauges(); },
                                        .serving = [this] { return health_->serving(); }}));
  metrics_address_ =
      absl::StrCat(address.substr(0, address.rfind(':')), ":", metrics_endpoint_->port());
  return absl::OkStatus();
}

void Server::ArmAndStart() {
  for (const auto& queue : poll_loop_->queues()) {
    rope_service_->Arm(*queue, limits::kArmedCalls);
    health_->Arm(*queue);
    reflection_->Arm(*queue);
    unknown_methods_->Arm(*queue);
  }
  poll_loop_->Start();
  memory_watch_->Start();
  health_->SetServing(true);
}

void Server::StopAdvertising() {
  health_->SetServing(false);
}

// The order matters. Producers stop before consumers: listeners and streams, then the side thread,
// then the batcher, so that no request reaches a stage that has ended. The transports go last,
// because replies leave through them.
void Server::Drain(absl::Duration grace) {
  if (drained_) return;
  drained_ = true;
  if (grpc_server_ != nullptr) {  // null: Create failed early
    StopAdvertising();
    for (const auto& listener : listeners_) listener->StopListening();
    rope_service_->DrainStreams();
    engine_->side_thread().Drain(grace);
    batcher_->Drain(grace);  // from here on new calls are answered UNAVAILABLE
    // All requests are answered. A client that has not taken its reply after a second will not.
    in_flight_.AwaitNone(std::min(grace, kReplyGrace));
    if (ring_loop_ != nullptr) ring_loop_->Stop();
    health_->Shutdown();
    grpc_server_->Shutdown(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_micros(absl::ToInt64Microseconds(kCloseGrace), GPR_TIMESPAN)));
    in_flight_.AwaitNoneOpen();
    memory_watch_->Stop();  // it asks threads for their time
    listeners_.clear();
  }
  if (poll_loop_ != nullptr) poll_loop_->Shutdown();
}

void Server::EndDrain() {
  engine_->side_thread().StopWaiting();
  batcher_->StopWaiting();
  in_flight_.StopWaiting();
}

void Server::OnDeviceFault(std::string_view device, const absl::Status& status) {
  const std::string name(device);
  spdlog::error("device {}: {}; its work goes to {}", name, status.ToString(),
                std::string(devices_->host().name()));
  metrics_->CountDeviceFault(device);
  health_->SetFaulted(name);
  if (options_.device == "auto") return;
  // An operator who named this device wants a restart, not a slower server.
  StopAdvertising();
  if (on_device_lost_) on_device_lost_();
}

int64_t Server::AccountedBytes() const {
  return admission_->bytes() + pool_->kept_bytes() + tables_->bytes() + registry_->spec_bytes() +
         registry_->registered_bytes() + prepared_->size().bytes;
}

Gauges Server::ReadGauges() const {
  Gauges gauges;
  gauges.requests_in_flight = admission_->requests();
  gauges.admitted_bytes = admission_->bytes();
  gauges.streams = rope_service_->open_streams();
  gauges.models = registry_->model_count();
  const RegionTable::Statistics regions = regions_->statistics();
  gauges.regions = regions.regions;
  gauges.region_bytes = regions.bytes;
  gauges.regions_rejected = regions.rejected;
  gauges.rings = ring_loop_ == nullptr ? 0 : ring_loop_->count();
  gauges.draining = drained_;
  gauges.table_cache = tables_->statistics();
  gauges.table_cache_budget_bytes = tables_->budget_bytes();
  gauges.budgets = Budgets();
  gauges.log_drops = LogDrops();
  const auto closed = connection_watch_->closed();
  for (size_t i = 0; i < closed.size(); ++i) {
    gauges.connections_closed.emplace_back(
        ConnectionWatch::NameOf(static_cast<ConnectionWatch::CloseReason>(i)), closed[i]);
  }
  return gauges;
}

std::vector<BudgetUse> Server::Budgets() const {
  const Admission::Options& admitted = admission_->options();
  const Admission::Refusals refused = admission_->refusals();
  using CloseReason = ConnectionWatch::CloseReason;
  const auto closed = [all = connection_watch_->closed()](CloseReason reason) {
    return all[static_cast<size_t>(reason)];
  };
  const RegionTable::Statistics regions = regions_->statistics();
  const PreparedRotations::Size prepared = prepared_->size();
  const OwnerShares& connections = connections_.shares();
  return {
      {"connections",
       connections.bounds().all,
       connections.count(),
       {{"full", connections.refusals().full},
        {"owner_share", connections.refusals().owner_share}}},
      {"memory_bytes", options_.memory_bytes, memory_watch_->anonymous_bytes()},
      {"requests",
       admitted.requests_max,
       admission_->requests(),
       {{"full", refused.requests}, {"connection_share", refused.session_requests}}},
      {"request_bytes",
       admitted.bytes_max,
       admission_->bytes(),
       {{"full", refused.bytes},
        {"connection_share", refused.session_bytes},
        {"too_large", refused.too_large},
        {"untaken_reply", closed(CloseReason::kUntakenReplies)}}},
      {"receive_bytes",
       shares_.receive,
       memory_watch_->receiving_bytes(),
       {{"timeout", memory_watch_->late_calls()}, {"full", memory_watch_->ended_calls()}}},
      {"pool_bytes", shares_.pool, pool_->kept_bytes()},
      {"table_bytes", shares_.tables, tables_->bytes()},
      {"spec_bytes", registry_->options().spec_bytes_max, registry_->spec_bytes()},
      {"model_bytes", registry_->options().registered_bytes_max, registry_->registered_bytes()},
      {"prepared", prepared_->options().entries_max, prepared.entries},
      {"prepared_bytes", prepared_->options().bytes_max, prepared.bytes},
      {"region_bytes",
       options_.shared_memory.bytes_max,
       regions.bytes,
       {{"rejected", regions.rejected}}},
  };
}

v1::GetServerInfoResponse Server::Info() const {
  v1::GetServerInfoResponse info;
  info.set_version(proto::kVersion);
  info.set_instance_id(instance_id_);
  info.set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - started_));
  for (const DeviceRouter::Device& listed : devices_->list()) {
    v1::Device& device = *info.add_devices();
    device.set_name(listed.name);
    device.set_detail(listed.detail);
  }
  info.add_transports("inline");
  if (options_.shared_memory.enabled) {
    const auto is_unix = [](const std::string& a) { return absl::StartsWith(a, kUnixPrefix); };
    if (std::ranges::any_of(options_.listen, is_unix)) {
      info.add_transports("ring");
      info.add_transports("memfd");
    }
    info.add_transports("shm");
    info.set_shm_prefix(options_.shared_memory.prefix);
  }
  const std::pair<const char*, int64_t> bounds[] = {
      {"max_message_bytes", shares_.message},
      {"position_max", limits::kPositionMax},
      {"tensors_max", limits::kTensorsMax},
      {"tokens_max", limits::kTokensMax},
      {"config_json_bytes_max", limits::kConfigJsonBytesMax},
      {"describe_positions_max", limits::kDescribePositionsMax},
      {"tables_rows_max", limits::kTablesRowsMax},
      {"tables_bytes_max", std::min(limits::kTablesBytesMax, shares_.message)},
      {"concurrent_streams_max", limits::kConcurrentStreamsMax},
      {"registered_models_max", limits::kRegisteredModelsMax},
      {"regions_max", options_.shared_memory.regions_max},
      {"session_memory_bytes", options_.shared_memory.session_bytes_max},
      {"shared_memory_bytes", options_.shared_memory.bytes_max},
  };
  for (const auto& [name, value] : bounds) {
    v1::Limit& limit = *info.add_limits();
    limit.set_name(name);
    limit.set_value(value);
  }
  for (const BudgetUse& use : Budgets()) {
    v1::Budget& budget = *info.add_budgets();
    budget.set_name(std::string(use.name));
    budget.set_limit(use.limit);
    budget.set_used(use.used);
    for (const BudgetUse::Refusal& refusal : use.refusals) {
      v1::Refusal& added = *budget.add_refusals();
      added.set_reason(std::string(refusal.reason));
      added.set_count(refusal.count);
    }
  }
  *info.mutable_table_cache() = WriteStatistics(*tables_);
  return info;
}

}  // namespace rope::server
