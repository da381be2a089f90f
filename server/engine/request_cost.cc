#include "server/engine/request_cost.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/checked_math.h"
#include "kernels/dtype/dtype.h"
#include "kernels/tables/table_cache.h"
#include "proto/wire/message_split.h"
#include "server/limits.h"

namespace rope::server {
namespace {

// The largest estimate. A few of them add up without overflow.
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 64;

int64_t Product(int64_t a, int64_t b) {
  const auto product = kernels::CheckedMultiply(a, b);
  return product.has_value() ? std::min(*product, kMost) : kMost;
}

int64_t Sum(int64_t a, int64_t b) {
  return std::min(a + b, kMost);  // neither is above kMost
}

// Bytes of an array as its message claims them: of the payload, or for an array in a region of as
// many 8-byte elements as its shape has.
int64_t ClaimedBytes(const v1::Array& array, const proto::SplitMessage& split) {
  constexpr int64_t kElementBytes = 8;
  if (proto::HasPayload(array)) return std::min(proto::PayloadOf(array, split).bytes, kMost);
  if (!array.has_region()) return 0;  // numbers, which are parsed already
  int64_t bytes = kElementBytes;
  for (const int64_t length : array.shape()) bytes = Product(bytes, std::max<int64_t>(length, 0));
  return bytes;
}

int64_t PositionBytes(const v1::Positions& positions, const proto::SplitMessage& split) {
  int64_t bytes = ClaimedBytes(positions.starts(), split);
  bytes = Sum(bytes, ClaimedBytes(positions.position_ids(), split));
  return Sum(bytes, ClaimedBytes(positions.cu_seqlens(), split));
}

// Tokens of the first tensor, from its layout letters and shape.
int64_t ClaimedTokens(const v1::RotateRequest& asked) {
  if (asked.tensors_size() == 0) return 0;
  const v1::Tensor& tensor = asked.tensors(0);
  int64_t tokens = 1;
  const int axes =
      std::min<int>(tensor.array().shape_size(), static_cast<int>(tensor.layout().size()));
  for (int i = 0; i < axes; ++i) {
    const char letter = tensor.layout()[static_cast<size_t>(i)];
    if (letter == 'H' || letter == 'D') continue;
    tokens = Product(tokens, std::max<int64_t>(tensor.array().shape(i), 0));
  }
  return tokens;
}

// Bytes of the tensor's result: raw bytes, plus the encoded numbers if it goes out as numbers.
int64_t ResultBytes(const TensorPlan& of) {
  constexpr int64_t kNumberBytes = 16;
  const int64_t element = kernels::ElementBytes(of.output_dtype);
  const bool typed = IsInReply(of.destination) && of.numbers;
  const int64_t elements =
      Product(Product(of.layout.tokens(), of.layout.heads), of.layout.head_dim);
  return Product(elements, typed ? element + kNumberBytes : element);
}

// Whether rows are made for this request alone: differences, mrope rows of several axes, and
// frequencies that depend on the sequence length.
bool MakesRows(const Plan& plan) {
  const auto alone = [](const TokenRun& run) {
    return run.from != nullptr || !run.frequencies->cacheable;
  };
  return plan.mrope != nullptr || std::ranges::any_of(plan.row_sets, [&](const RowSet& set) {
           return std::ranges::any_of(set.runs, alone);
         });
}

}  // namespace

int64_t DecodedBytes(const Request& request) {
  const auto skeleton = static_cast<int64_t>(request.decoded.split.skeleton.size());
  return Sum(request.arrival.message_bytes, Product(skeleton, limits::kSkeletonFactor));
}

int64_t PlanningBytes(const Request& request) {
  const v1::RotateRequest& asked = request.values();
  const proto::SplitMessage& split = request.decoded.split;
  // An angle costs a sine and a cosine, some thirty times as much as a copy.
  constexpr int64_t kAngleFactor = 16;
  const int64_t tokens = request.prepared ? request.prepared->plan.tokens : ClaimedTokens(asked);
  int64_t bytes = Product(tokens, sizeof(int64_t));
  bytes = Sum(bytes, PositionBytes(asked.positions(), split));
  bytes = Sum(bytes, PositionBytes(asked.reposition().from(), split));
  if (asked.has_rows()) {
    const v1::Rows& rows = asked.rows();
    bytes = Sum(bytes, Product(ClaimedBytes(rows.angles(), split), kAngleFactor));
    bytes = Sum(bytes, ClaimedBytes(rows.cos(), split));
    bytes = Sum(bytes, ClaimedBytes(rows.sin(), split));
  }
  for (const v1::Tensor& tensor : asked.tensors()) {
    bytes = Sum(bytes, ClaimedBytes(tensor.norm().weight(), split));
  }
  return bytes;
}

int64_t RunningBytes(const v1::RotateRequest& asked, const Plan& plan) {
  const int64_t positions = asked.operation() == v1::OPERATION_REPOSITION ? 2 : 1;
  int64_t bytes = Product(Product(plan.tokens, positions), limits::kTokenBytes);
  if (asked.has_rows()) {  // a cosine and a sine for each pair
    const int64_t head_dim = plan.tensors.front().layout.head_dim;
    bytes = Sum(bytes, Product(Product(plan.tokens, head_dim), sizeof(float)));
  }
  for (const TensorPlan& tensor : plan.tensors) {
    bytes = Sum(bytes, static_cast<int64_t>(tensor.typed.size()));
    if (TakesBuffer(tensor.destination)) bytes = Sum(bytes, ResultBytes(tensor));
  }
  return bytes;
}

void BoundBuilding(Plan& plan) {
  plan.building = {};
  if (!plan.rotates || plan.row_sets.empty()) return;
  const bool one_by_one = MakesRows(plan);
  std::vector<int64_t> ends;
  int64_t rows = 0;  // since the last end
  int64_t page = std::numeric_limits<int64_t>::min();
  const std::vector<int64_t>& positions = plan.positions[0];
  for (size_t token = 0; token < positions.size(); ++token) {
    const int64_t next = positions[token] / kernels::kPageRows;
    const int64_t cost = one_by_one         ? 1
                         : next == page     ? 0
                         : next == page + 1 ? limits::kNextPageRows
                                            : kernels::kPageRows;
    page = next;
    if (rows + cost > limits::kSliceRowsMax) {
      ends.push_back(static_cast<int64_t>(token));
      rows = 0;
    }
    rows += cost;
    plan.building.rows += cost;
  }
  if (ends.empty()) return;
  plan.building.slice_ends = std::make_shared<const std::vector<int64_t>>(std::move(ends));
}

int64_t ReplyBytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    if (IsInReply(tensor.destination)) bytes = Sum(bytes, ResultBytes(tensor));
  }
  return bytes;
}

int64_t ReplyTextBytesMax(const Request& request) {
  constexpr int64_t kHeadBytes = 128;   // factor, device, stage times
  constexpr int64_t kFieldBytes = 16;   // tag and length of a field, at most
  constexpr int64_t kTensorBytes = 8;   // tag and length of a tensor; a longer length of its array
  constexpr int64_t kScaleBytes = 12;   // the scale of an fp8 result
  constexpr int64_t kRegionBytes = 24;  // in place of the asked tensor's
  const v1::RotateRequest& asked = request.asked();
  int64_t bytes = kHeadBytes + static_cast<int64_t>(request.arrival.id.size());
  for (const std::string& warning : request.plan.warnings) {
    bytes += kFieldBytes + static_cast<int64_t>(warning.size());
  }
  for (size_t i = 0; i < request.plan.tensors.size(); ++i) {
    const v1::Tensor& tensor = asked.tensors(static_cast<int>(i));
    const auto asked_region = static_cast<int64_t>(tensor.array().region().ByteSizeLong());
    bytes += kTensorBytes + static_cast<int64_t>(tensor.ByteSizeLong());
    if (kernels::IsFloat8(request.plan.tensors[i].output_dtype)) bytes += kScaleBytes;
    bytes += std::max<int64_t>(kRegionBytes - asked_region, 0);
  }
  for (const v1::Strides& strides : asked.output().strides()) {
    bytes += kFieldBytes + static_cast<int64_t>(strides.ByteSizeLong());
  }
  return bytes;
}

}  // namespace rope::server
