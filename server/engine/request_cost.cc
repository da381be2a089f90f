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

// Bytes of the tensor's result: raw bytes, plus the encoded numbers if it goes out as numbers.
int64_t ResultBytes(const TensorPlan& of) {
  constexpr int64_t kNumberBytes = 16;
  const int64_t element = kernels::ElementBytes(of.output_dtype);
  const bool typed = IsInReply(of.destination) && of.numbers;
  const int64_t elements =
      Product(Product(of.layout.tokens(), of.layout.heads), of.layout.head_dim);
  return Product(elements, typed ? element + kNumberBytes : element);
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

int64_t PlanningBytes(const v1::RotateRequest& values, const Plan& plan) {
  // An angle costs a sine and a cosine, some thirty times as much as a copy.
  constexpr int64_t kAngleFactor = 16;
  const Layout& layout = plan.tensors.front().layout;
  int64_t tokens = 1;  // of an empty tensor: an axis that is not empty may have positions
  for (const TokenAxis& axis : layout.token_axes) tokens *= std::max<int64_t>(axis.length, 1);
  const int64_t lists = 1 + int64_t{values.positions().has_position_ids()} +
                        int64_t{values.reposition().from().has_position_ids()};
  const int64_t positions = Product(tokens, lists * static_cast<int64_t>(sizeof(int64_t)));
  if (!values.has_rows()) return positions;
  const int64_t arrays = values.rows().has_angles() ? kAngleFactor : 2;
  const int64_t pairs = std::min(layout.head_dim, kernels::kHeadDimMax) / 2;
  const auto number = static_cast<int64_t>(sizeof(float));
  return Sum(positions, Product(Product(tokens, pairs), arrays * number));
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
