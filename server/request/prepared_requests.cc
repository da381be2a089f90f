#include "server/request/prepared_requests.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "kernels/status_macros.h"
#include "proto/wire/message_split.h"
#include "proto/wire/wire_cursor.h"
#include "server/limits.h"
#include "server/request/plan_rotation.h"
#include "server/request/positions.h"
#include "server/request/reply.h"
#include "server/request/request.h"

namespace rope::server {
namespace {

// Whether the elements of a tensor came as one payload and go back as one, so that the plan holds
// none of them.
bool IsPlain(const v1::Tensor& tensor, const TensorPlan& plan) {
  return proto::HasPayload(tensor.array()) && !plan.strides.has_value();
}

bool HasNumbers(const v1::Positions& positions) {
  return positions.seq_lens_size() > 0 || positions.starts().numbers_size() > 0 ||
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

// Where the elements of each tensor lie.
std::vector<std::optional<int64_t>> RegionBytes(const Request& request) {
  std::vector<std::optional<int64_t>> bytes(request.plan.tensors.size());
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    if (request.inputs[i].region != nullptr) bytes[i] = request.inputs[i].bytes;
  }
  return bytes;
}

int64_t InRegions(const std::vector<std::optional<int64_t>>& region_bytes) {
  return std::ranges::count_if(region_bytes, [](const auto& bytes) { return bytes.has_value(); });
}

// Undoes what RegionResolver did: it does that for each request anew.
void ForgetPlaces(TensorPlan& tensor) {
  tensor.input.fragments.clear();
  tensor.place = {};
  if (!tensor.store_strides.has_value()) return;
  tensor.output_strides = std::exchange(tensor.store_strides, std::nullopt);
}

// Whether the positions of other requests of this outline differ by their start alone.
bool MoveWithStart(const Prepared& prepared) {
  const auto payloads_of_tensors = static_cast<int64_t>(prepared.plan.tensors.size());
  return prepared.outline.payloads() + InRegions(prepared.region_bytes) == payloads_of_tensors;
}

// Whether token t is at `start` + t.
bool IsRun(const Plan& plan, int64_t start) {
  const std::vector<int64_t>& values = plan.positions[0];
  if (!plan.positions[1].empty() || std::ssize(values) != plan.tokens) return false;
  int64_t next = start;
  return std::ranges::all_of(values, [&next](int64_t position) { return position == next++; });
}

// Keeps of the plan's positions what others like it need: a start, or nothing of those of many
// tokens, which are read anew.
void KeepPositions(int64_t start, Prepared& prepared) {
  Plan& plan = prepared.plan;
  const bool moves = MoveWithStart(prepared);
  prepared.is_run = moves && IsRun(plan, start);
  const bool is_kept = moves && plan.tokens <= limits::kPreparedTokensMax;
  if (prepared.is_run || is_kept) prepared.start = start;
  if (prepared.is_run || !is_kept) plan.positions = {};
}

// Moves the positions of the plan from the start that they were prepared for to that of the
// request. False: one of them is not legal there, or there are none.
bool MovePositions(const Request& request, Plan& plan) {
  const std::optional<int64_t>& from = request.prepared->start;
  if (!from.has_value()) return false;
  const int64_t to = request.start.value_or(*from);
  if (!IsLegalPosition(to)) return false;
  if (request.prepared->is_run) {
    if (!IsLegalPosition(to + std::max<int64_t>(plan.tokens, 1) - 1)) return false;
    plan.positions[0].resize(static_cast<size_t>(plan.tokens));
    std::iota(plan.positions[0].begin(), plan.positions[0].end(), to);
    return true;
  }
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
    proto::ReaderMutexLock lock(&mutex_);
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
  proto::WriterMutexLock lock(&mutex_);
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
  // Elsewhere payloads decide more than positions and elements.
  const auto payloads = static_cast<int64_t>(request.split.payloads.size());
  auto region_bytes = RegionBytes(request);
  if (!outline.has_value() || outline->payloads() + InRegions(region_bytes) != payloads) return;
  auto prepared = std::make_shared<Prepared>(*std::move(outline));
  prepared->message = request.asked();
  prepared->plan = request.plan;
  prepared->region_bytes = std::move(region_bytes);
  Plan& plan = prepared->plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    prepared->reply_tensors.push_back(PrepareReplyTensor(request, i));
    ForgetPlaces(plan.tensors[i]);
  }
  prepared->reply_factor = ReplyFactor(plan);
  KeepPositions(request.asked().positions().start(), *prepared);
  prepared->registry_version = registry_version;
  proto::WriterMutexLock lock(&mutex_);
  all_.push_front(std::move(prepared));
  if (all_.size() > limits::kPreparedMax) all_.pop_back();
}

absl::Status PlanPrepared(Request& request, AdmitTensors admit) {
  const v1::RotateRequest& message = request.prepared->message;
  request.plan = request.prepared->plan;
  Plan& plan = request.plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    plan.tensors[i].input =
        proto::PayloadOf(message.tensors(static_cast<int>(i)).array(), request.split);
  }
  ROPE_RETURN_IF_ERROR(admit(plan));
  if (!MovePositions(request, plan)) ROPE_RETURN_IF_ERROR(ReadPositionsAgain(request));
  WarnPastLength(plan.resolved->config(), plan.positions, plan);
  return absl::OkStatus();
}

}  // namespace rope::server
