// Prepared: what an earlier request turned out to be (prepared_requests.h).
//
// Threading:  Immutable once it is kept.
#ifndef ROPE_SERVER_REQUEST_PREPARED_H_
#define ROPE_SERVER_REQUEST_PREPARED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/request_outline.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"

namespace rope::server {

// A tensor of a reply, as far as it is known before.
struct PreparedTensor {
  std::string text;   // what AppendReplyTensor appends; of a result in a region, its other fields
  std::string array;  // of a result in a region: the fields of its array before the region
};

struct Prepared {
  explicit Prepared(proto::RequestOutline of) : outline(std::move(of)) {}

  proto::RequestOutline outline;
  v1::RotateRequest message;  // the skeleton that was parsed
  Plan plan;                  // without inputs and places
  // Of each tensor: the bytes of its elements where they lie in a region; unset elsewhere.
  std::vector<std::optional<int64_t>> region_bytes;
  // Set: the plan's positions are those of this start, and move with it. Unset: it has none.
  std::optional<int64_t> start;
  // Token t is at `start` + t, and the plan holds no positions.
  bool is_run = false;
  std::string reply_factor;                   // what ReplyFactor gives
  std::vector<PreparedTensor> reply_tensors;  // of each tensor
  int64_t registry_version = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PREPARED_H_
