#include "server/server.h"

#include <google/protobuf/message.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "google/rpc/error_details.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/version.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/reflection.h"
#include "server/telemetry/log.h"
#include "server/telemetry/process.h"

namespace rope::server {
namespace {

// Time for connections to close by themselves once no call is left. A client that does not poll its
// connection acknowledges GOAWAY late or never.
constexpr absl::Duration kCloseGrace = absl::Milliseconds(500);

// A replaced file is read within this time.
constexpr absl::Duration kFilesPeriod = absl::Seconds(1);

// Time for clients to take their replies once no request runs.
constexpr absl::Duration kReplyGrace = absl::Seconds(1);

// gRPC's own, of reflection: one waits for calls, and each open stream takes one.
constexpr int kGrpcThreadsMax = 4;
constexpr char kReflectionName[] = "grpc.reflection.v1alpha.ServerReflection";

using FileReport = ModelRegistry::FileReport;

std::string DevicesOf(const DeviceRouter& devices) {
  return absl::StrJoin(devices.list(), ",",
                       [](std::string* out, const auto& device) { out->append(device.name); });
}

// "mine:2,other:0": the files' first models, with the number of their warnings.
std::string FilesOf(const std::vector<FileReport>& files) {
  constexpr size_t kShownMax = 16;
  const auto append = [](std::string* out, const FileReport& file) {
    absl::StrAppend(out, file.name, ":", file.warnings.size());
  };
  const auto shown = absl::MakeConstSpan(files).subspan(0, kShownMax);
  return absl::StrCat(absl::StrJoin(shown, ",", append), shown.size() < files.size() ? ",..." : "");
}

// Reads files that have changed, on the side thread: a slow file system then delays no look of the
// housekeeper.
class FileLook final : public SideThread::Work {
 public:
  // `runs` is false once it has ended.
  FileLook(std::vector<FileWatch*> files, std::atomic<bool>& runs)
      : files_(std::move(files)), runs_(runs) {}

  absl::StatusOr<bool> Step() override {
    for (FileWatch* const files : files_) files->Look();
    return true;
  }
  void End(const absl::Status&) override { runs_ = false; }

 private:
  const std::vector<FileWatch*> files_;
  std::atomic<bool>& runs_;
};

const char* TlsOf(const TlsFiles& tls) {
  if (!tls.enabled()) return "off";
  return tls.client_ca.empty() ? "server" : "mutual";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const ServerOptions& options,
                                                       const Clock& clock,
                                                       const Batcher::Options& batches,
                                                       OnDeviceLost on_device_lost) {
  std::unique_ptr<Server> server(
      new Server(options, clock, std::move(on_device_lost)));  // owned by server
  ROPE_RETURN_IF_ERROR(server->Build(batches));
  return server;
}

Server::Server(const ServerOptions& options, const Clock& clock, OnDeviceLost on_device_lost)
    : options_(options),
      clock_(clock),
      shares_(options.memory_shares()),
      on_device_lost_(std::move(on_device_lost)) {}

absl::Status Server::Build(const Batcher::Options& batches) {
  const int threads = options_.threads > 0 ? options_.threads : ProcessorCount();
  if (options_.tls.enabled()) {
    ROPE_ASSIGN_OR_RETURN(tls_, TlsCredentials::Load(options_.tls));
  }
  ROPE_RETURN_IF_ERROR(BuildCore(threads, batches));
  connection_watch_ = std::make_unique<ConnectionWatch>(core_->connections(), WatchOptions());
  memory_watch_ =
      std::make_unique<MemoryWatch>(MemoryWatch::Options{shares_.receive, options_.receive_timeout},
                                    ProcessMemory([this] { return core_->AccountedBytes(); }),
                                    core_->reads(), core_->pool(), clock_);
  health_ = std::make_unique<Health>(core_->HealthNames(), core_->calls());
  std::vector<std::string> services = {v1::RopeService::service_full_name(),
                                       grpc::health::v1::Health::service_full_name()};
  if (options_.reflection) services.emplace_back(kReflectionName);
  unknown_methods_ = std::make_unique<UnknownMethods>(services, core_->calls(), core_->metrics());
  ROPE_RETURN_IF_ERROR(BuildRingLoop(threads));
  BuildGrpcServer(threads);
  ROPE_RETURN_IF_ERROR(Listen());
  ArmAndStart();
  LogStart(threads);
  return absl::OkStatus();
}

absl::Status Server::BuildCore(int threads, const Batcher::Options& batches) {
  Core::Options options;
  options.device = options_.device;
  options.threads = threads;
  options.models = options_.models;
  options.shares = shares_;
  options.shared_memory = options_.shared_memory;
  options.max_connections = options_.max_connections;
  options.trusted_proxies = options_.trusted_proxies;
  options.access_file = options_.access_file;
  options.batches = batches;
  options.on_fault = [this](std::string_view device, const absl::Status& status) {
    OnDeviceFault(device, status);
  };
  options.logs_requests = true;
  options.revision = Revision();
  options.info = [this] { return Info(); };
  ROPE_ASSIGN_OR_RETURN(core_, Core::Create(std::move(options), clock_));
  return absl::OkStatus();
}

ConnectionWatch::Options Server::WatchOptions() {
  ConnectionWatch::Options watch;
  watch.handshake_timeout = options_.handshake_timeout;
  watch.idle_timeout = options_.idle_timeout;
  watch.has_memory = [this](Connection& connection) {
    return !connection.regions().List().empty() ||
           (ring_loop_ != nullptr && ring_loop_->Serves(connection.id()));
  };
  // Admitted bytes are used up, or errors that wait on streams exceed the receiving part.
  watch.needs_memory = [this, before = int64_t{0}]() mutable {
    const int64_t refused = core_->accounts().refusals(Resource::kRequestBytes).full;
    return std::exchange(before, refused) != refused ||
           memory_watch_->receiving_bytes() > shares_.receive;
  };
  return watch;
}

absl::Status Server::BuildRingLoop(int threads) {
  if (!options_.shared_memory.enabled) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(
      ring_loop_,
      RingLoop::Create(
          Spin(threads), [this](RingCall& call) { core_->rope_service().RotateLocal(call); },
          [this] { return core_->batcher().RunGathered(); }));
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
  // one, above all shares. It is a soft bound, and gRPC enforces it by ending a random stream.
  builder.SetResourceQuota(grpc::ResourceQuota("rope")
                               .Resize(static_cast<size_t>(options_.memory_bytes))
                               .SetMaxThreads(kGrpcThreadsMax));
  if (options_.reflection) {
    // The linker then keeps the schema by which tools print the details of errors.
    google::protobuf::LinkMessageReflection<google::rpc::ErrorInfo>();
  } else {
    builder.SetOption(std::make_unique<WithoutReflection>());
  }
  builder.RegisterService(&core_->rope_service().service());
  builder.RegisterService(&health_->service());
  builder.RegisterAsyncGenericService(&unknown_methods_->service());
  poll_loop_ = std::make_unique<PollLoop>(builder, PollThreads(threads), Spin(threads), [this] {
    // A read has started: poll once more, so that its request can gather with the others.
    if (core_->reads().HasNew()) return true;
    if (core_->reads().CountAll() > 0) housekeeper_->Wake();
    return core_->batcher().RunGathered();
  });
  if (tls_ != nullptr) {
    builder.AddChannelArgument(
        GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
        static_cast<int>(absl::ToInt64Milliseconds(options_.handshake_timeout)));
    tls_acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        TlsCredentials::ForGrpc(tls_));
  }
  grpc_server_ = builder.BuildAndStart();
  ROPE_CHECK(grpc_server_ != nullptr);
}

absl::Status Server::Listen() {
  for (const std::string& address : options_.listen) {
    Listener::Options listening;
    listening.socket_mode = options_.socket_mode;
    listening.rings = ring_loop_.get();
    listening.handshake_timeout = options_.handshake_timeout;
    const auto places = static_cast<int64_t>(2 * options_.listen.size());
    listening.pending_connections_max =
        std::clamp<int64_t>(DefaultMaxConnections() / places, 1, listening.pending_connections_max);
    listening.tls = tls_ != nullptr && !absl::StartsWith(address, kUnixPrefix);
    if (core_->access() != nullptr) {
      listening.admit_memory = [access = core_->access()](const std::string& owner) {
        return access->Admit({.owner = owner}, Right::kRotate).status();
      };
    }
    listening.hand_on = [this, tls = listening.tls](int fd) { HandOn(fd, tls); };
    ROPE_ASSIGN_OR_RETURN(auto listener,
                          Listener::Create(address, core_->connections(), std::move(listening)));
    addresses_.push_back(listener->address());
    listeners_.push_back(std::move(listener));
  }
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  const std::string& address = options_.metrics_listen;
  ROPE_ASSIGN_OR_RETURN(
      metrics_endpoint_,
      MetricsEndpoint::Listen(address,
                              {.metrics = [this] { return core_->metrics().Collect(ReadGauges()); },
                               .serving = [this] { return health_->serving(); }}));
  metrics_address_ =
      absl::StrCat(address.substr(0, address.rfind(':')), ":", metrics_endpoint_->port());
  return absl::OkStatus();
}

void Server::ArmAndStart() {
  for (const auto& queue : poll_loop_->queues()) {
    core_->rope_service().Arm(*queue);
    health_->Arm(*queue);
    unknown_methods_->Arm(*queue);
  }
  memory_watch_->Start();
  housekeeper_ = std::make_unique<Housekeeper>(std::vector<Housekeeper::Look>{
      [this] { return memory_watch_->Look(); },
      [this] { return connection_watch_->Look(clock_.Now()); }, [this] { return LookAtFiles(); }});
  poll_loop_->Start();
  health_->SetServing(true);
}

// gRPC takes no credentials with a descriptor. With TLS its acceptor does the handshake, and names
// the connection by the peer's address.
void Server::HandOn(int fd, bool tls) {
  if (!tls) return grpc::AddInsecureChannelFromFd(grpc_server_.get(), fd);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd;
  tls_acceptor_->HandleNewConnection(&connection);
}

void Server::LogStart(int threads) const {
  const std::vector<FileReport>& files = core_->registry().file_reports();
  Log(spdlog::level::info,
      LogLine("started")
          .Word("version", proto::kVersion)
          .Word("revision", Revision())
          .Number("pid", getpid())
          .Word("devices", DevicesOf(core_->devices()))
          .Number("threads", threads)
          .Number("memory_bytes", options_.memory_bytes)
          .Number("max_message_bytes", shares_.message)
          .Number("table_cache_bytes", shares_.tables)
          .Number("shared_memory_bytes",
                  options_.shared_memory.enabled ? options_.shared_memory.bytes_max : 0)
          .Word("listen", absl::StrJoin(addresses_, ","))
          .Word("metrics_listen", metrics_address_.empty() ? "off" : metrics_address_)
          .Word("tls", TlsOf(options_.tls))
          .Word("access", options_.access_file.empty() ? "everybody" : "file")
          .Number("models", static_cast<int64_t>(core_->registry().models().size()))
          .Word("model_files", files.empty() ? "none" : FilesOf(files)));
  for (const std::string& flag : options_.warnings) Log(spdlog::level::warn, LogLine(flag));
  for (const FileReport& file : files) {
    for (const LogLine& line : file.LogLines()) Log(spdlog::level::warn, line);
  }
}

std::vector<FileWatch*> Server::WatchedFiles() {
  std::vector<FileWatch*> watched;
  if (tls_ != nullptr) watched.push_back(&tls_->files());
  if (core_->access() != nullptr) watched.push_back(&core_->access()->file());
  return watched;
}

absl::Duration Server::LookAtFiles() {
  std::vector<FileWatch*> files = WatchedFiles();
  if (!files.empty() && !looks_at_files_.exchange(true)) {
    constexpr uint64_t kNoSession = 0;
    core_->side_thread().StartRequest(
        kNoSession, std::make_unique<FileLook>(std::move(files), looks_at_files_));
  }
  return kFilesPeriod;
}

void Server::Reload() {
  for (FileWatch* const files : WatchedFiles()) files->Reload();
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
    core_->rope_service().DrainStreams();
    core_->side_thread().Drain(grace);
    core_->batcher().Drain(grace);  // from here on new calls are answered UNAVAILABLE
    // All requests are answered. A client that has not taken its reply after a second will not.
    core_->in_flight().AwaitNone(std::min(grace, kReplyGrace));
    if (ring_loop_ != nullptr) ring_loop_->Stop();
    health_->Shutdown();
    grpc_server_->Shutdown(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_micros(absl::ToInt64Microseconds(kCloseGrace), GPR_TIMESPAN)));
    core_->in_flight().AwaitNoneOpen();
    listeners_.clear();
  }
  if (poll_loop_ != nullptr) poll_loop_->Shutdown();
}

void Server::EndDrain() {
  core_->side_thread().StopWaiting();
  core_->batcher().StopWaiting();
  core_->in_flight().StopWaiting();
}

void Server::OnDeviceFault(std::string_view device, const absl::Status& status) {
  const std::string name(device);
  Log(spdlog::level::err,
      LogLine(absl::StrCat("device ", name, ": ", status.ToString(), "; later work goes to ",
                           std::string(core_->devices().host().name()))));
  core_->metrics().CountDeviceFault(device);
  health_->SetFaulted(name);
  // An operator who named this device wants a restart, not a slower server.
  StopAdvertising();
  if (on_device_lost_) on_device_lost_();
}

Gauges Server::ReadGauges() const {
  Gauges gauges;
  gauges.requests_in_flight = core_->accounts().held(Resource::kRequests);
  gauges.streams = core_->rope_service().open_streams();
  gauges.models = static_cast<int64_t>(core_->registry().models().size());
  gauges.regions = core_->region_totals().regions;
  gauges.rings = ring_loop_ == nullptr ? 0 : ring_loop_->count();
  gauges.draining = drained_;
  gauges.table_cache = core_->tables().statistics();
  gauges.budgets = Budgets();
  gauges.log_drops = LogDrops();
  if (tls_ != nullptr) {
    gauges.certificate_expiry = tls_->expiry();
    gauges.tls_failures = tls_->files().failures();
  }
  gauges.connections_closed = core_->connections().closed();
  return gauges;
}

std::vector<BudgetUse> Server::Budgets() const {
  std::vector<BudgetUse> budgets = {
      core_->accounts().UseOf(Resource::kConnections, "connections"),
      {"memory_bytes", options_.memory_bytes, memory_watch_->anonymous_bytes()},
      {"receive_bytes",
       shares_.receive,
       memory_watch_->receiving_bytes(),
       {{"timeout", memory_watch_->late_calls()}, {"full", memory_watch_->ended_calls()}}},
  };
  const auto untaken = static_cast<size_t>(CloseReason::kUntakenReplies);
  for (BudgetUse& budget : core_->Budgets()) {
    if (budget.name == "request_bytes") {
      budget.refusals.push_back({"untaken_reply", core_->connections().closed()[untaken].second});
    }
    budgets.push_back(std::move(budget));
  }
  return budgets;
}

v1::GetServerInfoResponse Server::Info() const {
  v1::GetServerInfoResponse info = core_->Info(Budgets());
  info.add_transports("inline");
  const auto is_unix = [](const std::string& a) { return absl::StartsWith(a, kUnixPrefix); };
  if (options_.shared_memory.enabled && std::ranges::any_of(options_.listen, is_unix)) {
    info.add_transports("ring");
    info.add_transports("memfd");
  }
  return info;
}

}  // namespace rope::server
