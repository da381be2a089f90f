#include "server/prepared_requests.h"

#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
#include "proto/message_split.h"
#include "server/limits.h"
#include "server/positions.h"
#include "server/reply.h"
#include "server/request.h"

namespace rope::server {
namespace {

// Whether the elements of a tensor came as one payload and go back as one, so that the plan holds
// none of them.
bool IsPlain(const v1::Tensor& tensor, const TensorPlan& plan) {
  return proto::HasPayload(tensor.array()) && !plan.strides.has_value() &&
         plan.place.region == nullptr;
}

// Whether the values that the outline leaves open decide nothing but the positions of the plan.
bool MayBePrepared(const Request& request) {
  const Plan& plan = request.plan;
  const kernels::ResolvedRope* const resolved = plan.resolved.get();
  if (resolved == nullptr || resolved->DependsOnSeqLen() || resolved->position_range())
    return false;
  if (!plan.token_scales.empty()) return false;
  if (WarningPastLength(resolved->config().max_position_embeddings, plan.positions).has_value())
    return false;
  // Regions belong to a session; payloads of other arrays are not in the outline's count.
  if (!request.inputs.empty() || !request.held_regions.empty()) return false;
  if (request.outline->payloads() != static_cast<int64_t>(request.split.payloads.size())) {
    return false;
  }
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (!IsPlain(request.message.tensors(static_cast<int>(i)), plan.tensors[i])) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Prepared> PreparedRequests::Find(
    absl::Span<const std::string_view> fragments, proto::RequestOutline::Values& values) const {
  const int64_t version = registry_.version();
  absl::ReaderMutexLock lock(&mutex_);
  for (const std::shared_ptr<const Prepared>& prepared : all_) {
    if (prepared->registry_version != version) continue;
    if (prepared->outline.Matches(fragments, values)) return prepared;
  }
  return nullptr;
}

bool PreparedRequests::Wants(int64_t message_bytes) {
  absl::MutexLock lock(&mutex_);
  const bool came_before = std::ranges::find(sizes_, message_bytes) != sizes_.end();
  sizes_.push_front(message_bytes);
  if (sizes_.size() > limits::kPreparedMax) sizes_.pop_back();
  return came_before;
}

void PreparedRequests::Keep(Request& request, int64_t registry_version) {
  if (!MayBePrepared(request)) return;
  auto prepared = std::make_shared<Prepared>(*std::move(request.outline));
  prepared->message = request.message;
  prepared->plan = request.plan;
  Plan& plan = prepared->plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    plan.tensors[i].input.fragments.clear();
    AppendReplyTensor(request, i, prepared->reply_tensors.emplace_back());
  }
  plan.positions = {};
  prepared->registry_version = registry_version;
  absl::MutexLock lock(&mutex_);
  all_.push_front(std::move(prepared));
  if (all_.size() > limits::kPreparedMax) all_.pop_back();
}

absl::Status PlanPrepared(Request& request) {
  const v1::RotateRequest& message = request.prepared->message;
  request.plan = request.prepared->plan;
  Plan& plan = request.plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    plan.tensors[i].input =
        proto::PayloadOf(message.tensors(static_cast<int>(i)).array(), request.split);
  }
  const v1::Positions* asked = &message.positions();
  if (request.start.has_value()) {
    auto& positions = *google::protobuf::Arena::CreateMessage<v1::Positions>(&request.arena);
    positions = *asked;
    positions.set_start(*request.start);
    asked = &positions;
  }
  const kernels::RopeConfig& config = plan.resolved->config();
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(*asked, request.split, plan.tensors.front().layout,
                                      config.mrope.has_value(), "positions"));
  if (auto warning = WarningPastLength(config.max_position_embeddings, positions.values);
      warning.has_value()) {
    plan.warnings.push_back(*std::move(warning));
  }
  plan.positions = std::move(positions.values);
  return absl::OkStatus();
}

}  // namespace rope::server
