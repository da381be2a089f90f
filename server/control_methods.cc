#include "server/control_methods.h"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/status_macros.h"
#include "server/control/admin.h"
#include "server/control/describe.h"
#include "server/control/jobs.h"
#include "server/control/tables.h"
#include "server/control/warm_up.h"
#include "server/engine/engine.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/request/prepared_rotation.h"

namespace rope::server {
namespace {

using Caller = RopeService::Caller;

template <typename Out>
using Done = RopeService::Done<Out>;
using JobPtr = std::unique_ptr<StepWorker::Job>;

// The embeddings that a request names. A registration resolves those of every layer.
template <typename In>
bool HasLongSpec(const In& request, const ModelRegistry& registry) {
  if constexpr (std::is_same_v<In, v1::RegisterModelRequest>) {
    return true;
  } else if constexpr (requires { request.rotate(); }) {
    return TakesLongToFind(request.rotate(), registry);
  } else if constexpr (requires { request.rope(); }) {
    int64_t head_dim = 0;
    if constexpr (requires { request.head_dim(); }) head_dim = request.head_dim();
    if (registry.TakesLong(request.rope(), head_dim)) return true;
    if constexpr (requires { request.reposition(); }) {
      return registry.TakesLong(request.reposition().from_rope(), head_dim);
    }
    return false;
  } else {
    return false;
  }
}

// Whether the call takes longer than the thread that received it may spend.
template <typename In>
bool TakesLong(const In& request, const Caller& caller, const ModelRegistry& registry) {
  return caller.message_bytes > limits::kControlHereBytesMax || HasLongSpec(request, registry);
}

// Answers through the job's Done in any case.
void RunJob(const ControlParts& parts, JobPtr job, const Caller& caller) {
  if (job->IsShort()) return StepWorker::RunHere(*job);
  const absl::Status status = parts.worker->Start(job, caller.session, caller.cancelled);
  if (!status.ok()) job->Done(status);
}

// Adds a method that answers in one step: here, or on the worker's thread if it takes long.
template <typename In, typename Out>
void AddImmediate(Method method,
                  std::function<absl::StatusOr<Out>(const In&, const Caller&)> answer,
                  const ControlParts& parts, RopeService& service) {
  service.AddMethod<In, Out>(
      method, [parts, answer = std::move(answer)](const In& request, const Caller& caller,
                                                  const Done<Out>& done) {
        if (!TakesLong(request, caller, *parts.registry)) return done(answer(request, caller));
        const auto later = [answer, &request, caller] { return answer(request, caller); };
        RunJob(parts, std::make_unique<AnswerJob<Out>>(later, done), caller);
      });
}

// Adds a method whose answer is a job. `make` returns the job, which answers through `done`.
template <typename In, typename Out>
void AddJob(
    Method method,
    std::function<absl::StatusOr<JobPtr>(const In&, const Caller&, const Done<Out>& done)> make,
    const ControlParts& parts, RopeService& service) {
  service.AddMethod<In, Out>(
      method, [parts, make = std::move(make)](const In& request, const Caller& caller,
                                              const Done<Out>& done) {
        if (TakesLong(request, caller, *parts.registry)) {
          const auto later = [make, &request, caller, done] { return make(request, caller, done); };
          return RunJob(parts, std::make_unique<PlannedJob<Out>>(later, done), caller);
        }
        absl::StatusOr<JobPtr> job = make(request, caller, done);
        if (!job.ok()) return done(job.status());
        RunJob(parts, *std::move(job), caller);
      });
}

absl::Status Admit(const ControlParts& parts, const Caller& caller, int64_t bytes) {
  return parts.admission->Extend(caller.session, bytes, "request", *caller.permit);
}

absl::StatusOr<JobPtr> WarmUp(const ControlParts& parts, const v1::WarmUpRequest& request,
                              const WarmUpDone& done) {
  ROPE_ASSIGN_OR_RETURN(WarmUpPlan plan,
                        PlanWarmUp(request, *parts.registry, parts.tables->budget_bytes()));
  return MakeWarmUp(std::move(plan), *parts.tables, done);
}

absl::StatusOr<JobPtr> GetTables(const ControlParts& parts, const v1::GetTablesRequest& request,
                                 const Caller& caller, const TablesDone& done) {
  const auto admit = [&](int64_t bytes) { return Admit(parts, caller, bytes); };
  ROPE_ASSIGN_OR_RETURN(TablesPlan plan, PlanTables(request, caller.payloads, *parts.registry,
                                                    parts.reply_bytes_max, admit));
  return MakeTables(std::move(plan), done);
}

absl::StatusOr<JobPtr> Describe(const ControlParts& parts, const v1::DescribeRequest& request,
                                const Caller& caller, const DescribeDone& done) {
  const auto admit = [&](int64_t bytes) { return Admit(parts, caller, bytes); };
  ROPE_ASSIGN_OR_RETURN(DescribePlan plan,
                        PlanDescribe(request, *parts.registry, parts.reply_bytes_max, admit));
  return MakeDescribe(std::move(plan), done);
}

absl::StatusOr<v1::PrepareResponse> PrepareCalls(const ControlParts& parts,
                                                 const v1::PrepareRequest& request,
                                                 const Caller& caller) {
  ROPE_ASSIGN_OR_RETURN(auto prepared, Prepare(request, caller.payloads, *parts.registry));
  v1::PrepareResponse response;
  response.set_prepared_id(prepared->id);
  for (const std::string& warning : prepared->plan.warnings) response.add_warnings(warning);
  ROPE_RETURN_IF_ERROR(parts.prepared->Keep(std::move(prepared), caller.session));
  return response;
}

void AddModelMethods(const ControlParts& parts, RopeService& service) {
  ModelRegistry& registry = *parts.registry;
  AddJob<v1::DescribeRequest, v1::DescribeResponse>(
      Method::kDescribe,
      [parts](const auto& request, const Caller& caller, const auto& done) {
        return Describe(parts, request, caller, done);
      },
      parts, service);
  AddImmediate<v1::ListModelsRequest, v1::ListModelsResponse>(
      Method::kListModels,
      [&registry](const auto& request, const Caller&) { return ListModels(request, registry); },
      parts, service);
  AddImmediate<v1::RegisterModelRequest, v1::RegisterModelResponse>(
      Method::kRegisterModel,
      [&registry](const auto& request, const Caller& caller) {
        return RegisterModel(request, caller.owner, registry);
      },
      parts, service);
  AddImmediate<v1::UnregisterModelRequest, v1::UnregisterModelResponse>(
      Method::kUnregisterModel,
      [&registry](const auto& request, const Caller& caller) {
        return UnregisterModel(request, caller.owner, registry);
      },
      parts, service);
}

void AddRegionMethods(const ControlParts& parts, RopeService& service) {
  RegionTable& regions = *parts.regions;
  AddImmediate<v1::RegisterRegionRequest, v1::RegisterRegionResponse>(
      Method::kRegisterRegion,
      [&regions](const auto& request, const Caller& caller) {
        return RegisterRegion(request, caller.session, regions);
      },
      parts, service);
  service.AddMethod<v1::UnregisterRegionRequest, v1::UnregisterRegionResponse>(
      Method::kUnregisterRegion,
      [&regions](const auto& request, const Caller& caller, const UnregisterRegionDone& done) {
        UnregisterRegion(request, caller.session, regions, done);
      });
  AddImmediate<v1::ListRegionsRequest, v1::ListRegionsResponse>(
      Method::kListRegions,
      [&regions](const auto&, const Caller& caller) {
        return ListRegions(caller.session, regions);
      },
      parts, service);
}

void AddServerMethods(const ControlParts& parts, RopeService& service) {
  AddImmediate<v1::PrepareRequest, v1::PrepareResponse>(
      Method::kPrepare,
      [parts](const auto& request, const Caller& caller) {
        return PrepareCalls(parts, request, caller);
      },
      parts, service);
  AddImmediate<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      Method::kGetServerInfo,
      [info = parts.server_info](const auto&, const Caller&) { return info(); }, parts, service);
  AddJob<v1::WarmUpRequest, v1::WarmUpResponse>(
      Method::kWarmUp,
      [parts](const auto& request, const Caller&, const auto& done) {
        return WarmUp(parts, request, done);
      },
      parts, service);
  AddJob<v1::GetTablesRequest, v1::GetTablesResponse>(
      Method::kGetTables,
      [parts](const auto& request, const Caller& caller, const auto& done) {
        return GetTables(parts, request, caller, done);
      },
      parts, service);
}

}  // namespace

void AddControlMethods(const ControlParts& parts, RopeService& service) {
  AddModelMethods(parts, service);
  AddRegionMethods(parts, service);
  AddServerMethods(parts, service);
}

}  // namespace rope::server
