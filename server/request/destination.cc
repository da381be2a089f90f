#include "server/request/destination.h"

#include <optional>
#include <utility>

namespace rope::server {
namespace {

// Whether the result is sent and fits the received bytes one for one: they came as bytes of the
// message, and the result has the same element type and is packed as they are.
bool FitsReceivedBytes(const TensorPlan& tensor) {
  const bool is_received = tensor.source.region == nullptr && tensor.typed.empty();
  return is_received && tensor.place.region == nullptr && tensor.dtype == tensor.output_dtype &&
         !tensor.strides.has_value() && !tensor.output_strides.has_value();
}

// The places of the fragments, for writing. Empty: one of them may not be overwritten.
absl::InlinedVector<char*, 2> OverwritableOf(const proto::FragmentedBytes& input,
                                             ReceivedBytes& received) {
  absl::InlinedVector<char*, 2> places;
  for (const std::string_view fragment : input.fragments) {
    char* const place = received.Overwritable(fragment);
    if (place == nullptr) return {};
    places.push_back(place);
  }
  return places;
}

Destination DestinationOf(const TensorPlan& tensor) {
  if (!tensor.overwritten.empty()) return Destination::kReceivedBytes;
  if (tensor.place.region == nullptr) return Destination::kReply;
  // A place that is checked and overlaps the tensor is exactly that of the tensor.
  const bool in_place = Overlap(tensor.place, tensor.source);
  if (tensor.place.mapped() == nullptr) {
    return in_place ? Destination::kObjectInPlace : Destination::kObject;
  }
  return in_place ? Destination::kRegionInPlace : Destination::kRegion;
}

}  // namespace

void SetDestinations(ReceivedBytes& received, int64_t overwrite_bytes_min, Plan& plan) {
  for (TensorPlan& tensor : plan.tensors) {
    if (tensor.output_bytes() >= overwrite_bytes_min && FitsReceivedBytes(tensor)) {
      tensor.overwritten = OverwritableOf(tensor.input, received);
    }
    tensor.destination = DestinationOf(tensor);
    // What is copied to an object comes from packed memory, however far apart it goes.
    if (IsObject(tensor.destination) && tensor.output_strides.has_value()) {
      tensor.store_strides = std::exchange(tensor.output_strides, std::nullopt);
    }
  }
}

}  // namespace rope::server
