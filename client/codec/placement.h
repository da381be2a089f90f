// Where the tensors of a request and their results are: in the region of the link, in staging
// memory of it, or elsewhere.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_CODEC_PLACEMENT_H_
#define ROPE_CLIENT_CODEC_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "client/codec/messages.h"
#include "client/memory/arena_memory.h"
#include "client/memory/region.h"

namespace rope::client {

// Whether two results, whose outputs are not null, share a byte.
bool ShareMemory(const WantedTensor& a, const WantedTensor& b);

// The input of a tensor and the destination of its result. Staging redirects both.
struct Place {
  const void* data = nullptr;
  int64_t bytes = 0;
  void* output = nullptr;
  int64_t output_bytes = 0;  // of `output`, with its gaps
  bool is_alike = false;     // the result has the input's layout, type and strides
  bool is_packed = true;     // the input
  bool is_paged = false;     // `data` and `output` are pools of pages

  std::string_view raw() const {
    return {static_cast<const char*>(data), static_cast<size_t>(bytes)};
  }
};

// Most requests have one or two tensors: q and k.
using Places = absl::InlinedVector<Place, 2>;

// A byte range of the region.
struct RegionRange {
  int64_t offset = 0;
  int64_t bytes = 0;

  bool operator==(const RegionRange&) const = default;
  bool Overlaps(const RegionRange& other) const {
    return offset <= other.offset ? other.offset - offset < bytes
                                  : offset - other.offset < other.bytes;
  }
};

struct Placement {
  absl::InlinedVector<std::optional<RegionRange>, 2> inputs;  // nullopt: memory outside the region
  absl::InlinedVector<RegionRange, 2> outputs;                // empty unless has_outputs
  // The results are placed in the region: every output lies there and overlaps no input except its
  // own, exactly. Otherwise all results come in the message. Pools of pages may overlap: the server
  // compares their slots.
  bool has_outputs = false;
  bool is_in_place = false;  // an output is an input
};

// Where memory lies in the region. nullopt: elsewhere. In process, all memory does.
std::optional<RegionRange> RangeIn(const Region& region, const void* data, int64_t bytes);

// Copies the tensors to one run of staging memory and redirects `places` to it. A result takes the
// place of its input if it fits, else the memory after it. Changes nothing if there is no room, or
// if the tensors have fewer than `bytes_min` bytes.
StagedRun Stage(const Region& region, int64_t bytes_min, const std::vector<WantedTensor>& wanted,
                Places& places);

Placement PlacementOf(const Region& region, const Places& places);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_PLACEMENT_H_
