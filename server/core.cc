#include "server/core.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"
#include "proto/version.h"
#include "server/clients/peers.h"
#include "server/control/admin.h"
#include "server/control/describe.h"
#include "server/control/tables.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/request/plan.h"

namespace rope::server {
namespace {

std::string MakeInstanceId() {
  absl::BitGen random;
  return absl::StrFormat("%016x", absl::Uniform<uint64_t>(random));
}

std::vector<std::string> DeviceNames(const DeviceRouter& devices) {
  std::vector<std::string> names;
  for (const DeviceRouter::Device& device : devices.list()) names.push_back(device.name);
  return names;
}

std::vector<std::string> ModelNames(const ModelRegistry& registry) {
  std::vector<std::string> names;
  for (const auto& [name, model] : registry.models()) names.push_back(name);
  return names;
}

using Caller = RopeService::Caller;

template <typename Out>
using Done = RopeService::Done<Out>;
// Answers in one step.
template <typename In, typename Out>
using Answer = std::function<absl::StatusOr<Out>(const In&, const Caller&)>;
// Plans an answer of several steps.
template <typename In, typename Out>
using Planner = std::function<absl::StatusOr<Steps<Out>>(const In&, const Caller&)>;

// A call on the side thread, which its first step plans.
template <typename In, typename Out>
class CallWork final : public SideThread::Work {
 public:
  CallWork(const Planner<In, Out>& plan, const In& request, const Caller& caller, Done<Out> done)
      : plan_([plan, &request, caller] { return plan(request, caller); }), done_(std::move(done)) {}

  absl::StatusOr<bool> Step() override {
    if (steps_ == nullptr) {
      ROPE_ASSIGN_OR_RETURN(steps_, plan_());
      plan_ = nullptr;  // frees the request, unless the steps need it
    }
    return steps_(response_);
  }
  void End(const absl::Status& status) override {
    if (!status.ok()) return done_(status);
    done_(std::move(response_));
  }

 private:
  std::function<absl::StatusOr<Steps<Out>>()> plan_;
  const Done<Out> done_;
  Steps<Out> steps_;
  Out response_;
};

template <typename In, typename Out>
void AddSteps(RopeService& service, SideThread& side_thread, Method method,
              const Planner<In, Out>& plan) {
  service.AddMethod<In, Out>(
      method, [plan, &side_thread](const In& request, const Caller& caller, const Done<Out>& done) {
        side_thread.StartCall(caller.call.connection().id(), caller.call.account(),
                              std::make_unique<CallWork<In, Out>>(plan, request, caller, done),
                              caller.call.cancelled());
      });
}

// Adds a method that may take longer than a slice.
template <typename In, typename Out>
void AddStep(RopeService& service, SideThread& side_thread, Method method,
             const Answer<In, Out>& answer) {
  const auto plan = [answer](const In& request, const Caller& caller) -> Steps<Out> {
    return [answer, &request, caller](Out& response) -> absl::StatusOr<bool> {
      ROPE_ASSIGN_OR_RETURN(response, answer(request, caller));
      return true;
    };
  };
  AddSteps<In, Out>(service, side_thread, method, plan);
}

// Adds a method that is answered on the thread that received the call: it is quick, and answered
// while the server is busy or drains.
template <typename In, typename Out>
void AddImmediate(RopeService& service, Method method, const Answer<In, Out>& answer) {
  service.AddMethod<In, Out>(
      method, [answer](const In& request, const Caller& caller, const Done<Out>& done) {
        done(answer(request, caller));
      });
}

// Admits the memory of a call's answer.
auto AdmitFor(const Caller& caller) {
  return [&caller](int64_t bytes) {
    return caller.permit->Admit(*caller.call.account(), bytes, "request");
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<Core>> Core::Create(Options options, const Clock& clock) {
  std::unique_ptr<Core> core(new Core(std::move(options), clock));  // owned by core
  ROPE_RETURN_IF_ERROR(core->Build());
  return core;
}

Core::Core(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      instance_id_(MakeInstanceId()),
      started_(clock.Now()),
      accounts_({.connections = options_.max_connections,
                 .requests = limits::kAdmittedRequestsMax,
                 .request_bytes = options_.shares.requests,
                 .region_bytes = options_.shared_memory.bytes_max},
                clock),
      region_totals_(options_.shared_memory),
      connections_(accounts_, region_totals_, options_.trusted_proxies),
      reads_(clock),
      calls_({&in_flight_, &connections_, &reads_}) {}

absl::Status Core::Build() {
  const MemoryShares& shares = options_.shares;
  if (!options_.access_file.empty()) {
    ROPE_ASSIGN_OR_RETURN(access_, Access::Load(options_.access_file, accounts_));
    calls_.access = access_.get();
  }
  auto devices = DeviceRouter::Create(options_.device, {.threads = options_.threads});
  if (!devices.ok()) return Prefixed("--device: ", devices.status());
  devices_ = *std::move(devices);
  devices_->set_on_fault(options_.on_fault);
  tables_ = std::make_unique<kernels::TableCache>(shares.tables);
  ROPE_ASSIGN_OR_RETURN(registry_, ModelRegistry::Create(options_.models, shares.specs));
  metrics_ = std::make_unique<Metrics>(proto::kVersion, options_.revision, DeviceNames(*devices_),
                                       ModelNames(*registry_));
  pool_ = std::make_unique<BufferPool>(shares.pool);
  executor_ = std::make_unique<Executor>(*devices_, *tables_, *pool_);
  Batcher::Options batches = options_.batches;
  batches.direct_slots = devices_->direct_slots(options_.threads);
  batcher_ = std::make_unique<Batcher>(
      batches, clock_,
      [executor = executor_.get()](absl::Span<Slice> slices) { executor->Run(slices); },
      [metrics = metrics_.get()](const BatchReport& report) { metrics->CountBatch(report); });
  prepared_ =
      std::make_unique<PreparedRotations>(PreparedRotations::Options{.bytes_max = shares.prepared});
  device_executor_ = std::make_unique<kernels::DeviceExecutor>(options_.device_table_bytes);
  engine_ = std::make_unique<Engine>(*registry_, *prepared_, *batcher_, clock_,
                                     Engine::Options{.reply_bytes_max = shares.message},
                                     DeviceRotation{device_executor_.get(), tables_.get()});
  rope_service_ = std::make_unique<RopeService>(
      RopeService::Parts{engine_.get(), metrics_.get(), &clock_, calls_, instance_id_,
                         shares.message, options_.logs_requests});
  AddPlannedMethods();
  AddImmediateMethods();
  return absl::OkStatus();
}

void Core::AddPlannedMethods() {
  const int64_t bytes_max = options_.shares.message;
  AddSteps<v1::DescribeRequest, v1::DescribeResponse>(
      *rope_service_, side_thread(), Method::kDescribe,
      [this, bytes_max](const auto& request, const Caller& caller) {
        return Describe(request, *registry_, bytes_max, AdmitFor(caller));
      });
  AddStep<v1::FingerprintRequest, v1::FingerprintResponse>(
      *rope_service_, side_thread(), Method::kFingerprint,
      [this](const auto& request, const Caller& caller) {
        return Fingerprint(request, *registry_, AdmitFor(caller));
      });
  AddSteps<v1::GetTablesRequest, v1::GetTablesResponse>(
      *rope_service_, side_thread(), Method::kGetTables,
      [this, bytes_max](const auto& request, const Caller& caller) {
        return GetTables(request, caller.payloads, *registry_, bytes_max, AdmitFor(caller));
      });
  AddStep<v1::PrepareRequest, v1::PrepareResponse>(
      *rope_service_, side_thread(), Method::kPrepare,
      [this](const auto& request, const Caller& caller) -> absl::StatusOr<v1::PrepareResponse> {
        ROPE_ASSIGN_OR_RETURN(auto prepared, Prepare(request, caller.payloads, *registry_));
        v1::PrepareResponse response;
        response.set_prepared_id(prepared->id);
        for (const std::string& warning : prepared->plan.warnings) response.add_warnings(warning);
        ROPE_RETURN_IF_ERROR(prepared_->Keep(std::move(prepared), caller.call.account()->owner()));
        return response;
      });
}

// A region belongs to the connection whose call is on its thread: a later call might be answered
// when the connection has closed, and another one has its number.
void Core::AddImmediateMethods() {
  AddImmediate<v1::RegisterRegionRequest, v1::RegisterRegionResponse>(
      *rope_service_, Method::kRegisterRegion,
      [](const auto& request, const Caller& caller) -> absl::StatusOr<v1::RegisterRegionResponse> {
        v1::RegisterRegionResponse response;
        ROPE_ASSIGN_OR_RETURN(const uint64_t id,
                              caller.call.connection().regions().AddId(request.region_id()));
        response.set_region_id(id);
        return response;
      });
  rope_service_->AddMethod<v1::UnregisterRegionRequest, v1::UnregisterRegionResponse>(
      Method::kUnregisterRegion, [](const auto& request, const Caller& caller,
                                    const Done<v1::UnregisterRegionResponse>& done) {
        Regions::Released released;
        if (request.wait()) released = [done] { done(v1::UnregisterRegionResponse()); };
        const absl::Status status =
            caller.call.connection().regions().Unregister(request.region_id(), std::move(released));
        if (!status.ok()) return done(status);
        if (!request.wait()) done(v1::UnregisterRegionResponse());
      });
  AddImmediate<v1::ListRegionsRequest, v1::ListRegionsResponse>(
      *rope_service_, Method::kListRegions, [](const auto&, const Caller& caller) {
        v1::ListRegionsResponse response;
        for (const Regions::Listed& listed : caller.call.connection().regions().List()) {
          v1::Region& region = *response.add_regions();
          region.set_region_id(listed.id);
          region.set_byte_size(listed.bytes);
          region.set_kind("memfd");
        }
        return response;
      });
  AddImmediate<v1::ListModelsRequest, v1::ListModelsResponse>(
      *rope_service_, Method::kListModels,
      [this](const auto& request, const Caller&) { return ListModels(request, *registry_); });
  AddImmediate<v1::ListConnectionsRequest, v1::ListConnectionsResponse>(
      *rope_service_, Method::kListConnections, [this](const auto& request, const Caller& caller) {
        // An identity that may call this sees what the server's own user sees.
        const bool has_identity = caller.call.identity() != nullptr;
        return ListConnections(
            request, has_identity ? OwnerOfUser(geteuid()) : caller.call.account()->owner(),
            connections_);
      });
  AddImmediate<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      *rope_service_, Method::kGetServerInfo, [this](const auto&, const Caller&) {
        return options_.info ? options_.info() : Info(Budgets());
      });
}

std::vector<std::string> Core::HealthNames() const {
  std::vector<std::string> names = DeviceNames(*devices_);
  names.push_back("rope.v1.RopeService");
  return names;
}

int64_t Core::AccountedBytes() const {
  return accounts_.held(Resource::kRequestBytes) + pool_->kept_bytes() + tables_->bytes() +
         registry_->spec_bytes() + prepared_->size().bytes;
}

std::vector<BudgetUse> Core::Budgets() const {
  const PreparedRotations::Size prepared = prepared_->size();
  return {
      accounts_.UseOf(Resource::kRequests, "requests"),
      accounts_.UseOf(Resource::kRequestBytes, "request_bytes"),
      {"pool_bytes", options_.shares.pool, pool_->kept_bytes()},
      {"table_bytes", options_.shares.tables, tables_->bytes()},
      {"spec_bytes", registry_->spec_bytes_max(), registry_->spec_bytes()},
      {"prepared", prepared_->options().entries_max, prepared.entries},
      {"prepared_bytes", prepared_->options().bytes_max, prepared.bytes},
      {"region_bytes",
       options_.shared_memory.bytes_max,
       accounts_.held(Resource::kRegionBytes),
       {{"rejected", region_totals_.rejected}}},
  };
}

v1::GetServerInfoResponse Core::Info(const std::vector<BudgetUse>& budgets) const {
  v1::GetServerInfoResponse info;
  info.set_version(proto::kVersion);
  info.set_instance_id(instance_id_);
  info.set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - started_));
  for (const DeviceRouter::Device& listed : devices_->list()) {
    v1::Device& device = *info.add_devices();
    device.set_name(listed.name);
    device.set_detail(listed.detail);
  }
  const std::pair<const char*, int64_t> bounds[] = {
      {"max_message_bytes", options_.shares.message},
      {"position_max", limits::kPositionMax},
      {"tensors_max", limits::kTensorsMax},
      {"tokens_max", limits::kTokensMax},
      {"config_json_bytes_max", limits::kConfigJsonBytesMax},
      {"describe_positions_max", kDescribePositionsMax},
      {"tables_rows_max", kTablesRowsMax},
      {"tables_bytes_max", std::min(kTablesBytesMax, options_.shares.message)},
      {"concurrent_streams_max", limits::kConcurrentStreamsMax},
      {"regions_max", options_.shared_memory.regions_max},
      {"session_memory_bytes", options_.shared_memory.session_bytes_max},
      {"shared_memory_bytes", options_.shared_memory.bytes_max},
  };
  for (const auto& [name, value] : bounds) {
    v1::Limit& limit = *info.add_limits();
    limit.set_name(name);
    limit.set_value(value);
  }
  for (const BudgetUse& use : budgets) {
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
