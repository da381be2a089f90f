// ArraySource: the bytes of a request's arrays: payloads of its message, or parts of memory
//              regions.
//
// Threading:  Confined to its owner.
// Ownership:  The message must outlive it. Bytes that it finds stay valid as long as it says.
#ifndef ROPE_SERVER_REQUEST_ARRAY_SOURCE_H_
#define ROPE_SERVER_REQUEST_ARRAY_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/message_split.h"
#include "server/error.h"
#include "server/memory/region.h"

namespace rope::server {

// A part of a memory region.
struct RegionPart {
  std::shared_ptr<const Region> region;  // null: no region
  uint64_t id = 0;
  uint64_t offset = 0;  // in the region
  int64_t bytes = 0;

  // The address of the part, or null if the region is not mapped.
  char* mapped() const {
    const bool any = region != nullptr && region->mapped() != nullptr;
    return any ? region->mapped() + offset : nullptr;
  }
};

// Whether two parts share a byte.
inline bool Overlap(const RegionPart& a, const RegionPart& b) {
  if (a.region != b.region || a.bytes == 0 || b.bytes == 0) return false;
  return a.offset < b.offset + static_cast<uint64_t>(b.bytes) &&
         b.offset < a.offset + static_cast<uint64_t>(a.bytes);
}

// Whether the elements of an array came as packed bytes, and not as numbers.
inline bool CameAsBytes(const v1::Array& array) {
  return proto::HasPayload(array) || array.has_region();
}

class ArraySource {
 public:
  // Without memory regions.
  explicit ArraySource(const proto::SplitMessage& message) : message_(message) {}
  virtual ~ArraySource() = default;

  // The payload of an array of the message. REQUIRES: proto::HasPayload(array).
  const proto::FragmentedBytes& Payload(const v1::Array& array) const {
    return proto::PayloadOf(array, message_);
  }

  // Finds the region of `part` by its id, and returns the part's bytes. Bytes of a mapped region
  // are valid while part.region is held; bytes of any other region are a copy that lives as long as
  // the request. `field` names the part. INVALID_ARGUMENT: this array may not be in a region.
  virtual absl::StatusOr<proto::FragmentedBytes> Find(RegionPart& /*part*/,
                                                      absl::string_view field) {
    return InvalidField(field, "a region", "raw or numbers");
  }

 private:
  const proto::SplitMessage& message_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_ARRAY_SOURCE_H_
