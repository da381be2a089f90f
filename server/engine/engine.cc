#include "server/engine/engine.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/dtype/dtype.h"
#include "kernels/status_macros.h"
#include "kernels/tables/page_builder.h"
#include "proto/ipc/ring.h"
#include "proto/wire/message_split.h"
#include "server/engine/job_tiler.h"
#include "server/error.h"
#include "server/request/plan.h"
#include "server/request/region_resolver.h"
#include "server/request/rotation_plan.h"
#include "server/request/tensor_reader.h"
#include "server/request/validate.h"

namespace rope::server {

// Plans a request on the side thread, which answers it if it is refused.
class Engine::Planning final : public SideThread::Work {
 public:
  Planning(Engine& engine, std::unique_ptr<Request> request)
      : engine_(engine), request_(std::move(request)) {}

  absl::StatusOr<bool> Step() override {
    if (request_->arrival.IsCancelled()) {
      return MakeError({.reason = Reason::kCancelled}, "request: cancelled while it waited");
    }
    ROPE_RETURN_IF_ERROR(engine_.MakePlan(*request_, /*may_take_long=*/true));
    ROPE_RETURN_IF_ERROR(engine_.batcher_.Queue(request_));
    return true;
  }
  void End(const absl::Status& status) override {
    if (status.ok()) return;
    const Request::Done done = std::move(request_->done);
    done(std::move(request_), status);
  }

 private:
  Engine& engine_;
  std::unique_ptr<Request> request_;
};

Engine::Engine(ModelRegistry& registry, PreparedRotations& prepared, Batcher& batcher,
               const Clock& clock, const Options& options, const DeviceRotation& devices)
    : registry_(registry),
      prepared_(prepared),
      batcher_(batcher),
      clock_(clock),
      options_(options),
      devices_(devices),
      side_thread_(clock) {}

absl::Status Engine::Submit(std::unique_ptr<Request>& request) {
  ROPE_RETURN_IF_ERROR(
      request->permit.Admit(*request->arrival.account, DecodedBytes(*request), "request"));
  const absl::Status status = PlanOrEnqueue(request);
  if (!status.ok()) request->permit = Permit();
  return status;
}

absl::Status Engine::PlanOrEnqueue(std::unique_ptr<Request>& request) {
  const std::string& id = request->call().prepared_id();
  if (!id.empty()) {
    ROPE_ASSIGN_OR_RETURN(request->prepared, prepared_.Find(id));
  }
  if (request->arrival.queue != nullptr) return EnqueueOnDevice(request);
  const int64_t admitted = request->permit.bytes();
  const bool may_take_long = request->arrival.transport == Transport::kInProcess;
  const absl::Status status = MakePlan(*request, may_take_long);
  if (IsNeedsSideThread(status)) {  // which plans from the beginning
    request->plan = Plan();         // what it holds, no permit counts any more
    request->permit.Shrink(admitted);
    const uint64_t session = request->arrival.session;
    side_thread_.StartRequest(session, std::make_unique<Planning>(*this, std::move(request)));
    return absl::OkStatus();
  }
  ROPE_RETURN_IF_ERROR(status);
  return batcher_.Enqueue(request);
}

absl::Status Engine::EnqueueOnDevice(std::unique_ptr<Request>& request) {
  ROPE_RETURN_IF_ERROR(MakePlan(*request, /*may_take_long=*/true));
  ROPE_RETURN_IF_ERROR(WithoutExceptions([&]() -> absl::Status {
    ROPE_ASSIGN_OR_RETURN(request->run.device,
                          devices_.Enqueue(request->plan, *request->arrival.queue));
    return absl::OkStatus();
  }));
  request->stages.execute = Microseconds(clock_.Now() - request->run.enqueued);
  const Request::Done done = std::move(request->done);
  done(std::move(request), absl::OkStatus());
  return absl::OkStatus();
}

absl::Status Engine::MakePlan(Request& request, bool may_take_long) {
  ROPE_RETURN_IF_ERROR(WithoutExceptions([&] { return FillPlan(request, may_take_long); }));
  request.run.enqueued = clock_.Now();
  request.stages.validate =
      Microseconds(request.run.enqueued - request.arrival.received) - request.stages.decode;
  return absl::OkStatus();
}

// In the order of the work: no memory is taken before it is admitted.
absl::Status Engine::FillPlan(Request& request, bool may_take_long) {
  const v1::RotateRequest& fixed = request.fixed();
  const v1::RotateRequest& call = request.call();
  RegionResolver source(request);
  Plan& plan = request.plan;
  Ropes own;  // of a request without a prepared_id
  if (request.prepared != nullptr) {
    ROPE_RETURN_IF_ERROR(BeginCall(*request.prepared, request.decoded.message(), plan));
    plan.may_take_long = may_take_long;
  } else {
    plan = Plan();
    plan.may_take_long = may_take_long;
    ROPE_RETURN_IF_ERROR(PrepareFixed(fixed, source, registry_, own, plan));
  }
  if (!may_take_long && PlanningBytes(call, plan) > limits::kPlanHereBytesMax) {
    return NeedsSideThread();
  }
  ROPE_RETURN_IF_ERROR(request.permit.Grow(PagesBytes(call, plan), "paged_tokens"));
  ROPE_RETURN_IF_ERROR(PlanElements(fixed, call, source, plan));
  ROPE_RETURN_IF_ERROR(source.Place());
  const Ropes& ropes = request.prepared != nullptr ? request.prepared->ropes : own;
  if (request.arrival.queue != nullptr) return PlanDevice(fixed, call, ropes, source, plan);
  ROPE_RETURN_IF_ERROR(CheckOnHost(plan));
  SetDestinations(*request.decoded.bytes, options_.overwritten_min, plan);
  ROPE_RETURN_IF_ERROR(request.permit.Grow(RunningBytes(fixed, call, plan), "request"));
  ROPE_RETURN_IF_ERROR(BoundJobs(plan));
  ROPE_RETURN_IF_ERROR(PlanPositions(fixed, call, ropes, source, plan));
  ROPE_RETURN_IF_ERROR(CheckReplyBytes(request));
  return request.permit.Grow(PlannedBytes(plan), "positions");
}

absl::Status Engine::CheckReplyBytes(const Request& request) const {
  const int64_t bytes = ReplyBytes(request.plan);
  ROPE_RETURN_IF_ERROR(CheckAtMost(bytes, options_.reply_bytes_max, "output", " bytes in the reply",
                                   " (--max_message_bytes), or outputs in regions"));
  if (request.arrival.transport != Transport::kRing) return absl::OkStatus();
  constexpr auto kSlot = static_cast<int64_t>(proto::kRingMessageBytes);
  const int64_t most = bytes + ReplyTextBytesMax(request);
  if (most <= kSlot) return absl::OkStatus();
  return MakeError(
      Reason::kLimitExceeded, "reply", absl::StrCat("up to ", most, " bytes"),
      absl::StrCat("at most ", kSlot, " in a ring: put outputs into regions, or call without it"));
}

namespace {

// The largest estimate. A few of them add up without overflow.
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 64;
// Up to this size, a permit counts only frequencies made for lengths; SpecCache counts the others.
constexpr int64_t kUncountedFrequencyBytes = 16 * limits::kKiB;

int64_t Product(int64_t a, int64_t b) {
  const auto product = kernels::CheckedMultiply(a, b);
  return product.has_value() ? std::min(*product, kMost) : kMost;
}

int64_t Sum(int64_t a, int64_t b) {
  return std::min(a + b, kMost);  // neither is above kMost
}

// Elements of an array as its shape claims them, which nothing has checked yet.
int64_t ClaimedElements(const v1::Array& array) {
  if (array.shape().empty()) return 0;
  int64_t elements = 1;
  for (const int64_t length : array.shape()) {
    elements = Product(elements, std::max<int64_t>(length, 0));
  }
  return elements;
}

// Bytes of the tensor's result: raw bytes, plus the encoded numbers if it goes out as numbers.
int64_t ResultBytes(const TensorPlan& of) {
  constexpr int64_t kNumberBytes = 16;
  const bool typed = of.IsInReply() && of.numbers;
  return Product(of.elements(),
                 kernels::ElementBytes(of.output_dtype) + (typed ? kNumberBytes : 0));
}

}  // namespace

int64_t DecodedBytes(const Request& request) {
  const auto skeleton = static_cast<int64_t>(request.decoded.split.skeleton.size());
  return Sum(request.arrival.message_bytes, Product(skeleton, limits::kSkeletonFactor));
}

int64_t PlanningBytes(const v1::RotateRequest& values, const Plan& plan) {
  // An angle costs a sine and a cosine, some thirty times as much as a copy.
  constexpr int64_t kAngleFactor = 16;
  const Layout& layout = plan.tensors.front().layout;
  int64_t tokens = 1;  // of an empty tensor: an axis that is not empty may have positions
  for (const TokenAxis& axis : layout.token_axes) tokens *= std::max<int64_t>(axis.length, 1);
  int64_t numbers = tokens;
  for (const v1::Positions* given : {&values.positions(), &values.reposition().from()}) {
    numbers = Sum(numbers, ClaimedElements(given->position_ids()));
    // Each sequence may have a start as well.
    numbers = Sum(numbers, Product(ClaimedElements(given->cu_seqlens()), 2));
  }
  // Each tensor's place is compared with that of each other one.
  const auto tensors = static_cast<int64_t>(plan.tensors.size());
  const int64_t slots = Sum(PagesBytes(values, plan), tensors > 64 ? 8 * tensors * tensors : 0);
  const int64_t moves = ClaimedElements(values.reposition().by());
  const int64_t positions = Sum(slots, Product(Sum(numbers, moves), sizeof(int64_t)));
  if (!values.has_rows() || moves == 1) return positions;
  const int64_t arrays = values.rows().has_angles() ? kAngleFactor : 2;
  const int64_t pairs = std::min(layout.head_dim, kernels::kHeadDimMax) / 2;
  // Rows of a move are checked where they are, which takes a quarter of the time of a copy.
  const auto number = static_cast<int64_t>(values.has_reposition() ? 1 : sizeof(float));
  return Sum(positions, Product(Product(tokens, pairs), arrays * number));
}

int64_t RunningBytes(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                     const Plan& plan) {
  const int64_t positions = fixed.operation() == v1::OPERATION_REPOSITION ? 2 : 1;
  int64_t bytes = Product(Product(plan.tokens, positions), limits::kTokenBytes);
  if (fixed.has_rows() && (positions == 1 || CopiesMovedRows(values.rows()))) {
    // A cosine and a sine for each pair, of a move of two rows.
    const int64_t head_dim = plan.tensors.front().layout.head_dim;
    bytes = Sum(bytes, Product(Product(plan.tokens, head_dim), positions * sizeof(float)));
  }
  for (const TensorPlan& tensor : plan.tensors) {
    bytes = Sum(bytes, static_cast<int64_t>(tensor.typed.size()));
    if (tensor.TakesBuffer()) bytes = Sum(bytes, ResultBytes(tensor));
    if (!tensor.IsGathered()) continue;
    const int64_t tensor_bytes = tensor.layout.tokens() * tensor.token_bytes();
    bytes = Sum(bytes, std::min(tensor_bytes, limits::kSliceBytesMax));
  }
  return bytes;
}

int64_t PlannedBytes(const Plan& plan) {
  // Embeddings of many channels may be in no cache, so that the plan alone keeps them.
  const int64_t kept = FrequencyBytes(plan);
  const int64_t frequencies = kept > kUncountedFrequencyBytes ? kept : plan.frequency_bytes;
  if (!plan.rotates || plan.row_sets.empty() || plan.row_sets.front().runs.empty()) {
    return frequencies;
  }
  const kernels::Frequencies& of_first = *plan.row_sets.front().runs.front().frequencies;
  const int64_t pages = std::ssize(plan.row_sets) * (plan.mrope == nullptr ? 1 : 3);
  const int64_t rows = pages * kernels::BuildBytes(of_first, kernels::kPageRows);
  return Sum(frequencies, rows > limits::kUncountedBuildBytes ? rows : 0);
}

int64_t ReplyBytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.IsInReply()) bytes = Sum(bytes, ResultBytes(tensor));
  }
  return bytes;
}

int64_t ReplyTextBytesMax(const Request& request) {
  constexpr int64_t kHeadBytes = 128;   // factor, device, stage times
  constexpr int64_t kFieldBytes = 16;   // tag and length of a field, at most
  constexpr int64_t kTensorBytes = 8;   // tag and length of a tensor; a longer length of its array
  constexpr int64_t kScaleBytes = 23;   // the scale of an fp8 result, and what saturated
  constexpr int64_t kRegionBytes = 24;  // in place of the asked tensor's
  const v1::RotateRequest& fixed = request.fixed();
  int64_t bytes = kHeadBytes + static_cast<int64_t>(request.arrival.id.size());
  for (const std::string& warning : request.plan.warnings) {
    bytes += kFieldBytes + static_cast<int64_t>(warning.size());
  }
  for (size_t i = 0; i < request.plan.tensors.size(); ++i) {
    const v1::Tensor& tensor = fixed.tensors(static_cast<int>(i));
    const auto asked_region = static_cast<int64_t>(tensor.array().region().ByteSizeLong());
    bytes += kTensorBytes + static_cast<int64_t>(tensor.ByteSizeLong());
    if (kernels::IsFloat8(request.plan.tensors[i].output_dtype)) bytes += kScaleBytes;
    bytes += std::max<int64_t>(kRegionBytes - asked_region, 0);
  }
  for (const v1::Strides& strides : fixed.output().strides()) {
    bytes += kFieldBytes + static_cast<int64_t>(strides.ByteSizeLong());
  }
  return bytes;
}

}  // namespace rope::server
