// Ids that are hashes of messages: config_id and prepared_id.
//
// Threading:  Functions only.
#ifndef ROPE_PROTO_WIRE_MESSAGE_HASH_H_
#define ROPE_PROTO_WIRE_MESSAGE_HASH_H_

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace rope::proto {

// Equal messages have equal bytes, map fields included.
std::string CanonicalBytes(const google::protobuf::Message& message);

// The first 128 bits of a SHA-256, as 32 hex digits.
std::string HashId(absl::string_view bytes);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_MESSAGE_HASH_H_
