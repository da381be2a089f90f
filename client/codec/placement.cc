#include "client/codec/placement.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "proto/ipc/process_memory.h"

namespace rope::client {
namespace {

// How often each stride may be taken, the largest stride first.
using Steps = std::map<int64_t, int64_t, std::greater<>>;

// Whether steps from `step` on, which lead up to `most`, lead exactly that far.
bool Reach(Steps::const_iterator step, int64_t most, int64_t distance) {
  if (distance == 0 || distance == most) return true;
  const auto [stride, count] = *step++;
  most -= stride * count;
  int64_t taken = std::min(count, distance / stride);
  for (; taken >= 0 && distance - taken * stride <= most; --taken) {
    if (Reach(step, most, distance - taken * stride)) return true;
  }
  return false;
}

// Whether a staged result, which is packed, takes the place of its input.
bool FitsInPlace(const Place& place) {
  return place.is_alike && place.is_packed;
}

// Size of the staged run for all tensors and results. nullopt: it exceeds `capacity`, or staging
// does not pay. Rounding happens after the check against `capacity`, so it cannot overflow.
std::optional<int64_t> StagedBytes(const Places& places, const std::vector<WantedTensor>& wanted,
                                   int64_t bytes_min, int64_t capacity) {
  int64_t input_bytes = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    for (const int64_t part : {places[i].bytes, FitsInPlace(places[i]) ? 0 : wanted[i].bytes}) {
      if (part > capacity - bytes) return std::nullopt;
      bytes += ArenaMemory::RoundedUp(part);
    }
    input_bytes += places[i].bytes;
  }
  if (input_bytes < bytes_min) return std::nullopt;
  return bytes;
}

// Adds the ranges of all outputs. False: the results cannot be placed in the region.
bool PlaceOutputs(const Region& region, const Places& places, Placement& placement) {
  placement.outputs.reserve(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const std::optional<RegionRange> output =
        RangeIn(region, places[i].output, places[i].output_bytes);
    if (!output.has_value()) return false;
    for (size_t j = 0; j < places.size(); ++j) {
      const std::optional<RegionRange>& input = placement.inputs[j];
      const bool overlaps = input.has_value() && input->Overlaps(*output);
      const bool is_own = i == j && input == output && places[i].is_alike;
      const bool is_paged = places[i].is_paged && places[j].is_paged;
      placement.is_in_place |= is_own || (is_paged && overlaps);
      if (overlaps && !is_own && !is_paged) return false;
    }
    placement.outputs.push_back(*output);
  }
  return true;
}

}  // namespace

std::optional<RegionRange> RangeIn(const Region& region, const void* data, int64_t bytes) {
  if (region.ids == nullptr) return std::nullopt;
  if (region.process_outputs != nullptr) {
    if (bytes == 0) return RegionRange{};
    if (data == nullptr) return std::nullopt;
    return RegionRange{proto::ProcessMemoryOffset(data), bytes};
  }
  if (data == nullptr || bytes == 0) return std::nullopt;
  const std::optional<int64_t> offset = region.memory->OffsetOf(data, bytes);
  if (!offset.has_value()) return std::nullopt;
  return RegionRange{*offset, bytes};
}

bool ShareMemory(const WantedTensor& a, const WantedTensor& b) {
  constexpr int64_t kBytesMax = int64_t{1} << 47;  // more are in no memory, and refused elsewhere
  const int64_t distance =
      proto::ProcessMemoryOffset(b.output) - proto::ProcessMemoryOffset(a.output);
  if (distance >= a.output_bytes || -distance >= b.output_bytes) return false;
  if (std::max(a.output_bytes, b.output_bytes) > kBytesMax || std::min(a.bytes, b.bytes) == 0)
    return false;
  // They do if steps from the first byte of `a` meet steps back from the last of `b`.
  Steps steps;
  for (const WantedTensor* wanted : {&a, &b}) {
    const int64_t element_bytes = ElementBytes(wanted->dtype);
    const std::vector<int64_t> strides = StridesOf(wanted->shape, wanted->strides);
    for (size_t i = 0; i < strides.size(); ++i) {
      if (wanted->shape[i] > 1) steps[strides[i] * element_bytes] += wanted->shape[i] - 1;
    }
    steps[1] += element_bytes - 1;
  }
  return Reach(steps.begin(), a.output_bytes + b.output_bytes - 2, distance + b.output_bytes - 1);
}

StagedRun Stage(const Region& region, int64_t bytes_min, const std::vector<WantedTensor>& wanted,
                Places& places) {
  const auto bytes = StagedBytes(places, wanted, bytes_min, region.memory->capacity_bytes());
  if (!bytes.has_value()) return {};
  std::optional<StagedRun> run = StagedRun::Allocate(region.memory, *bytes);
  if (!run.has_value()) return {};
  std::byte* next = run->data();
  for (size_t i = 0; i < places.size(); ++i) {
    Place& place = places[i];
    if (place.bytes > 0) std::memcpy(next, place.data, static_cast<size_t>(place.bytes));
    place.data = place.output = next;
    place.output_bytes = wanted[i].bytes;
    next += ArenaMemory::RoundedUp(place.bytes);
    if (FitsInPlace(place)) continue;
    place.output = next;
    next += ArenaMemory::RoundedUp(wanted[i].bytes);
  }
  return *std::move(run);
}

Placement PlacementOf(const Region& region, const Places& places) {
  Placement placement;
  placement.inputs.reserve(places.size());
  for (const Place& place : places) {
    placement.inputs.push_back(RangeIn(region, place.data, place.bytes));
  }
  placement.has_outputs = PlaceOutputs(region, places, placement);
  if (!placement.has_outputs) placement.outputs.clear();
  return placement;
}

}  // namespace rope::client
