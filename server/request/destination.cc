#include "server/request/destination.h"

#include <optional>
#include <utility>

namespace rope::server {
namespace {

// Whether the result fits the received bytes one for one: they came as bytes of the message, and
// the result has the same element type and is packed as they are.
bool FitsReceivedBytes(const TensorPlan& tensor) {
  const bool is_received = tensor.source.region == nullptr && tensor.typed.empty();
  return is_received && tensor.dtype == tensor.output_dtype && !tensor.strides.has_value() &&
         !tensor.output_strides.has_value();
}

Destination DestinationOf(const TensorPlan& tensor, int64_t overwrite_bytes_min) {
  if (tensor.place.region == nullptr) {
    const bool overwrites =
        FitsReceivedBytes(tensor) && tensor.output_bytes() >= overwrite_bytes_min;
    return overwrites ? Destination::kReceivedBytes : Destination::kReply;
  }
  // A place that is checked and overlaps the tensor is exactly that of the tensor.
  const bool in_place = Overlap(tensor.place, tensor.source);
  if (tensor.place.mapped() == nullptr) {
    return in_place ? Destination::kObjectInPlace : Destination::kObject;
  }
  return in_place ? Destination::kRegionInPlace : Destination::kRegion;
}

}  // namespace

void SetDestinations(int64_t overwrite_bytes_min, Plan& plan) {
  for (TensorPlan& tensor : plan.tensors) {
    tensor.destination = DestinationOf(tensor, overwrite_bytes_min);
    // What is copied to an object comes from packed memory, however far apart it goes.
    if (IsObject(tensor.destination) && tensor.output_strides.has_value()) {
      tensor.store_strides = std::exchange(tensor.output_strides, std::nullopt);
    }
  }
}

}  // namespace rope::server
