// Writes a RotateRequest that names a preparation: its id and the values of one call. It is written
// field by field, because it is short and sent often.
//
// Threading:  Functions only.
// Ownership:  Parts refer to the tensors' memory.
#ifndef ROPE_CLIENT_CODEC_PREPARED_MESSAGE_H_
#define ROPE_CLIENT_CODEC_PREPARED_MESSAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/codec/placement.h"
#include "client/codec/preparation.h"
#include "proto/wire/message_join.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

struct PreparedMessage {
  const std::string& id;
  const RotateRequest& request;  // for its values
  const std::vector<Preparation::Tensor>& tensors;
  bool has_shapes = false;  // the tensors' shapes are sent
  const std::vector<Place>& places;
  const Placement& placement;
  uint64_t region_id = 0;  // of the ranges in `placement`
};

// As proto::Join. INVALID_ARGUMENT: as SetValues.
Result<std::vector<proto::MessagePart>> JoinPrepared(const PreparedMessage& message);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_PREPARED_MESSAGE_H_
