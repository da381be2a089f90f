#include "server/prepared_requests.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "kernels/status_macros.h"
#include "proto/message_split.h"
#include "proto/wire_cursor.h"
#include "server/limits.h"
#include "server/plan_rotation.h"
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

bool HasNumbers(const v1::Positions& positions) {
  return positions.seq_len_size() > 0 || positions.starts().numbers_size() > 0 ||
         positions.position_ids().numbers_size() > 0 || positions.cu_seqlens().numbers_size() > 0;
}

// Whether the values that the outline leaves open decide nothing but the positions of the plan.
bool MayBePrepared(const Request& request) {
  const Plan& plan = request.plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (!IsPlain(request.asked().tensors(static_cast<int>(i)), plan.tensors[i])) return false;
  }
  const kernels::ResolvedRope* const resolved = plan.resolved.get();
  if (resolved == nullptr) return false;
  if (resolved->DependsOnSeqLen() || resolved->position_range()) return false;
  if (!plan.token_scales.empty()) return false;
  // The next one's would be other numbers, and these are compared as text.
  if (HasNumbers(request.asked().positions())) return false;
  return !WarningPastLength(resolved->config().max_position_embeddings, plan.positions);
}

// Whether the positions of other requests of this outline differ by their start alone. Those of
// many tokens are read anew instead of being kept.
bool MayMove(const Prepared& prepared) {
  const auto payloads_of_tensors = static_cast<int64_t>(prepared.plan.tensors.size());
  return prepared.outline.payloads() == payloads_of_tensors &&
         prepared.plan.tokens <= limits::kPreparedTokensMax;
}

// Moves the positions of the plan from the start that they were prepared for to that of the
// request. False: one of them is not legal there, or there are none.
bool MovePositions(const Request& request, Plan& plan) {
  const std::optional<int64_t>& from = request.prepared->start;
  if (!from.has_value()) return false;
  const int64_t to = request.start.value_or(*from);
  if (!IsLegalPosition(to)) return false;
  for (std::vector<int64_t>& values : plan.positions) {
    for (int64_t& position : values) {
      position += to - *from;
      if (!IsLegalPosition(position)) return false;
    }
  }
  return true;
}

absl::Status ReadPositionsAgain(Request& request) {
  Plan& plan = request.plan;
  v1::Positions asked = request.prepared->message.positions();
  if (request.start.has_value()) asked.set_start(*request.start);
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(asked, request.split, plan.tensors.front().layout,
                                      plan.resolved->config().mrope.has_value(), "positions"));
  plan.positions = std::move(positions.values);
  return absl::OkStatus();
}

}  // namespace

std::shared_ptr<const Prepared> PreparedRequests::Find(
    absl::Span<const std::string_view> fragments, proto::RequestOutline::Values& values) const {
  const int64_t version = registry_.version();
  const int64_t bytes = proto::WireCursor(fragments).size();
  absl::InlinedVector<std::shared_ptr<const Prepared>, 2> candidates;  // compared without the lock
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (const std::shared_ptr<const Prepared>& prepared : all_) {
      if (prepared->registry_version != version) continue;
      if (prepared->outline.message_bytes() == bytes) candidates.push_back(prepared);
    }
  }
  for (std::shared_ptr<const Prepared>& candidate : candidates) {
    if (candidate->outline.Matches(fragments, values)) return std::move(candidate);
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
  proto::RequestOutline::Values values;
  const auto& fragments = request.parsed->kept_fragments;
  if (Find(fragments, values) != nullptr) return;  // another thread was first
  auto outline = proto::RequestOutline::Of(fragments);
  // Elsewhere payloads lie in regions, which belong to a session, or decide more than positions.
  const auto payloads = static_cast<int64_t>(request.split.payloads.size());
  if (!outline.has_value() || outline->payloads() != payloads) return;
  auto prepared = std::make_shared<Prepared>(*std::move(outline));
  prepared->message = request.asked();
  prepared->plan = request.plan;
  Plan& plan = prepared->plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    plan.tensors[i].input.fragments.clear();
    AppendReplyTensor(request, i, prepared->reply_tensors.emplace_back());
  }
  prepared->reply_factor = ReplyFactor(plan);
  if (MayMove(*prepared)) {
    prepared->start = request.asked().positions().start();
  } else {
    plan.positions = {};
  }
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
  if (!MovePositions(request, plan)) ROPE_RETURN_IF_ERROR(ReadPositionsAgain(request));
  WarnPastLength(plan.resolved->config(), plan.positions, plan);
  return absl::OkStatus();
}

}  // namespace rope::server
