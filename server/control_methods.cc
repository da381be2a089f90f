#include "server/control_methods.h"

#include <memory>
#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "server/control/admin.h"
#include "server/control/describe.h"
#include "server/control/tables.h"
#include "server/control/warm_up.h"
#include "server/request/prepared_rotation.h"

namespace rope::server {
namespace {

using Caller = RopeService::Caller;

// Adds a method that answers before it returns.
template <typename In, typename Out>
void AddImmediate(Method method,
                  std::function<absl::StatusOr<Out>(const In&, const Caller&)> answer,
                  RopeService& service) {
  service.AddMethod<In, Out>(method,
                             [answer = std::move(answer)](const In& request, const Caller& caller,
                                                          const RopeService::Done<Out>& done) {
                               done(answer(request, caller));
                             });
}

// Answers through the job's Done in any case.
void RunJob(const ControlParts& parts, std::unique_ptr<StepWorker::Job> job, const Caller& caller) {
  const absl::Status status = parts.worker->Start(job, caller.session, caller.cancelled);
  if (!status.ok()) job->Done(status);
}

void WarmUp(const ControlParts& parts, const v1::WarmUpRequest& request, const Caller& caller,
            WarmUpDone done) {
  absl::StatusOr<WarmUpPlan> plan =
      PlanWarmUp(request, *parts.registry, parts.tables->budget_bytes());
  if (!plan.ok()) return done(plan.status());
  RunJob(parts, MakeWarmUp(*std::move(plan), *parts.tables, std::move(done)), caller);
}

void GetTables(const ControlParts& parts, const v1::GetTablesRequest& request, const Caller& caller,
               TablesDone done) {
  const auto admit = [&](int64_t bytes) -> absl::Status {
    ROPE_ASSIGN_OR_RETURN(*caller.permit, parts.admission->Admit(caller.session, bytes));
    return absl::OkStatus();
  };
  absl::StatusOr<TablesPlan> plan =
      PlanTables(request, caller.payloads, *parts.registry, parts.reply_bytes_max, admit);
  if (!plan.ok()) return done(plan.status());
  RunJob(parts, MakeTables(*std::move(plan), std::move(done)), caller);
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

void AddModelMethods(ModelRegistry& registry, RopeService& service) {
  AddImmediate<v1::DescribeRequest, v1::DescribeResponse>(
      Method::kDescribe,
      [&registry](const auto& request, const Caller&) { return Describe(request, registry); },
      service);
  AddImmediate<v1::ListModelsRequest, v1::ListModelsResponse>(
      Method::kListModels,
      [&registry](const auto& request, const Caller&) { return ListModels(request, registry); },
      service);
  AddImmediate<v1::RegisterModelRequest, v1::RegisterModelResponse>(
      Method::kRegisterModel,
      [&registry](const auto& request, const Caller& caller) {
        return RegisterModel(request, caller.owner, registry);
      },
      service);
  AddImmediate<v1::UnregisterModelRequest, v1::UnregisterModelResponse>(
      Method::kUnregisterModel,
      [&registry](const auto& request, const Caller& caller) {
        return UnregisterModel(request, caller.owner, registry);
      },
      service);
}

void AddRegionMethods(RegionTable& regions, RopeService& service) {
  AddImmediate<v1::RegisterRegionRequest, v1::RegisterRegionResponse>(
      Method::kRegisterRegion,
      [&regions](const auto& request, const Caller& caller) {
        return RegisterRegion(request, caller.session, regions);
      },
      service);
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
      service);
}

void AddServerMethods(const ControlParts& parts, RopeService& service) {
  AddImmediate<v1::PrepareRequest, v1::PrepareResponse>(
      Method::kPrepare,
      [parts](const auto& request, const Caller& caller) {
        return PrepareCalls(parts, request, caller);
      },
      service);
  AddImmediate<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      Method::kGetServerInfo,
      [info = parts.server_info](const auto&, const Caller&) { return info(); }, service);
  service.AddMethod<v1::WarmUpRequest, v1::WarmUpResponse>(
      Method::kWarmUp, [parts](const auto& request, const Caller& caller, WarmUpDone done) {
        WarmUp(parts, request, caller, std::move(done));
      });
  service.AddMethod<v1::GetTablesRequest, v1::GetTablesResponse>(
      Method::kGetTables, [parts](const auto& request, const Caller& caller, TablesDone done) {
        GetTables(parts, request, caller, std::move(done));
      });
}

}  // namespace

void AddControlMethods(const ControlParts& parts, RopeService& service) {
  AddModelMethods(*parts.registry, service);
  AddRegionMethods(*parts.regions, service);
  AddServerMethods(parts, service);
}

}  // namespace rope::server
