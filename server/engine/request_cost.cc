#include "server/engine/request_cost.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "kernels/check.h"
#include "kernels/dtype/dtype.h"
#include "kernels/tables/page_builder.h"
#include "proto/wire/message_split.h"
#include "server/engine/limits.h"
#include "server/request/limits.h"
#include "server/request/token_runs.h"

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

// Bytes of the tensor that are copied because they have strides and lie in several fragments.
int64_t StridedBytes(const Request& request, int index) {
  const v1::RotateRequest& asked = request.asked();
  if (index >= asked.tensors_size() || asked.tensors(index).array().strides_size() == 0) return 0;
  const v1::Array& array = request.values().tensors(index).array();
  if (!proto::HasPayload(array)) return 0;
  const proto::FragmentedBytes& payload = proto::PayloadOf(array, request.decoded.split);
  return payload.fragments.size() > 1 ? std::min(payload.bytes, kMost) : 0;
}

// Bytes of a slice of the tensor that is copied because its channels are not adjacent.
int64_t GatheredBytes(const TensorPlan& tensor) {
  if (!tensor.IsGathered()) return 0;
  const int64_t bytes = Product(tensor.layout.tokens(), tensor.token_bytes());
  return std::min(bytes, limits::kSliceBytesMax);
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
  for (int i = 0; i < asked.tensors_size(); ++i) {
    bytes = Sum(bytes, ClaimedBytes(asked.tensors(i).norm().weight(), split));
    bytes = Sum(bytes, StridedBytes(request, i));
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
    bytes = Sum(bytes, GatheredBytes(tensor));
  }
  return bytes;
}

int64_t PlannedBytes(const Plan& plan) {
  // Embeddings of many channels may be in no cache, so that the plan alone keeps them.
  const int64_t kept = FrequencyBytes(plan);
  const int64_t frequencies = kept > limits::kUncountedFrequencyBytes ? kept : plan.frequency_bytes;
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
