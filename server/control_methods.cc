#include "server/control_methods.h"

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/status_macros.h"
#include "server/control/admin.h"
#include "server/control/describe.h"
#include "server/control/tables.h"
#include "server/error.h"
#include "server/memory/peers.h"
#include "server/models/model_registry.h"
#include "server/request/prepared_rotation.h"

namespace rope::server {
namespace {

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
void AddSteps(Method method, const Planner<In, Out>& plan, const ControlParts& parts,
              RopeService& service) {
  service.AddMethod<In, Out>(
      method, [plan, &side_thread = *parts.side_thread](const In& request, const Caller& caller,
                                                        const Done<Out>& done) {
        side_thread.StartCall(caller.session, caller.owner,
                              std::make_unique<CallWork<In, Out>>(plan, request, caller, done),
                              caller.cancelled);
      });
}

// Adds a method that may take longer than a slice.
template <typename In, typename Out>
void AddStep(Method method, const Answer<In, Out>& answer, const ControlParts& parts,
             RopeService& service) {
  const auto plan = [answer](const In& request, const Caller& caller) -> Steps<Out> {
    return [answer, &request, caller](Out& response) -> absl::StatusOr<bool> {
      ROPE_ASSIGN_OR_RETURN(response, answer(request, caller));
      return true;
    };
  };
  AddSteps<In, Out>(method, plan, parts, service);
}

// Adds a method that is answered on the thread that received the call: it is quick, and answered
// while the server is busy or drains.
template <typename In, typename Out>
void AddImmediate(Method method, const Answer<In, Out>& answer, RopeService& service) {
  service.AddMethod<In, Out>(
      method, [answer](const In& request, const Caller& caller, const Done<Out>& done) {
        done(answer(request, caller));
      });
}

// Admits the memory of a call's answer.
auto AdmitFor(const ControlParts& parts, const Caller& caller) {
  return [&parts, &caller](int64_t bytes) {
    return parts.admission->Extend(caller.session, bytes, "request", *caller.permit,
                                   caller.identity == nullptr ? nullptr : caller.identity->use);
  };
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
  AddSteps<v1::DescribeRequest, v1::DescribeResponse>(
      Method::kDescribe,
      [parts](const auto& request, const Caller& caller) {
        return Describe(request, *parts.registry, parts.reply_bytes_max, AdmitFor(parts, caller));
      },
      parts, service);
  AddStep<v1::FingerprintRequest, v1::FingerprintResponse>(
      Method::kFingerprint,
      [parts](const auto& request, const Caller& caller) {
        return Fingerprint(request, *parts.registry, AdmitFor(parts, caller));
      },
      parts, service);
  AddImmediate<v1::ListModelsRequest, v1::ListModelsResponse>(
      Method::kListModels,
      [&registry](const auto& request, const Caller&) { return ListModels(request, registry); },
      service);
}

// A region belongs to the connection whose call is on its thread: a later call might be answered
// when the connection has closed, and another one has its number.
void AddRegionMethods(const ControlParts& parts, RopeService& service) {
  RegionTable& regions = *parts.regions;
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
  AddStep<v1::PrepareRequest, v1::PrepareResponse>(
      Method::kPrepare,
      [parts](const auto& request, const Caller& caller) {
        return PrepareCalls(parts, request, caller);
      },
      parts, service);
  AddImmediate<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
      Method::kGetServerInfo,
      [info = parts.server_info](const auto&, const Caller&) { return info(); }, service);
  AddImmediate<v1::ListConnectionsRequest, v1::ListConnectionsResponse>(
      Method::kListConnections,
      [&connections = *parts.connections](const auto& request, const Caller& caller) {
        // An identity that may call this sees what the server's own user sees.
        return ListConnections(request,
                               caller.identity == nullptr ? caller.owner : OwnerOfUser(geteuid()),
                               connections);
      },
      service);
  AddSteps<v1::GetTablesRequest, v1::GetTablesResponse>(
      Method::kGetTables,
      [parts](const auto& request, const Caller& caller) {
        return GetTables(request, caller.payloads, *parts.registry, parts.reply_bytes_max,
                         AdmitFor(parts, caller));
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
