// ReceivedBytes: the bytes of a message as an adapter received them, in one or more fragments.
//
// Threading:  Confined to its owner.
// Ownership:  Owns the bytes.
#ifndef ROPE_SERVER_REQUEST_RECEIVED_BYTES_H_
#define ROPE_SERVER_REQUEST_RECEIVED_BYTES_H_

#include <string_view>

namespace rope::server {

class ReceivedBytes {
 public:
  virtual ~ReceivedBytes() = default;
  // Where `part` of a fragment may be overwritten. Null: nowhere, because others may read the bytes
  // or a reply cannot send them.
  virtual char* Overwritable(std::string_view /*part*/) { return nullptr; }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_RECEIVED_BYTES_H_
