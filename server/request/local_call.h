// LocalCall: a call whose request and reply pass through memory that the client and the server both
// map.
//
// Threading:  Confined to the handler until Answer, which may be called on any thread.
#ifndef ROPE_SERVER_REQUEST_LOCAL_CALL_H_
#define ROPE_SERVER_REQUEST_LOCAL_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rope::server {

class LocalCall {
 public:
  virtual ~LocalCall() = default;
  // The session of the connection that brought the memory.
  virtual uint64_t session() const = 0;
  // The time until the client's deadline.
  virtual absl::Duration time_left() const = 0;
  // Becomes true when the client has disconnected.
  virtual const std::shared_ptr<std::atomic<bool>>& cancelled() const = 0;
  virtual int64_t message_bytes() const = 0;
  // Copies the request out of memory that the client may write at any time: two copies may differ.
  // REQUIRES: the handler has not returned.
  virtual std::string CopyMessage() const = 0;
  virtual int64_t reply_bytes_max() const = 0;
  // Sends the reply and ends the call, which must not be used afterwards. REQUIRES: `reply` has at
  // most reply_bytes_max() bytes.
  virtual void Answer(absl::StatusCode code, std::string_view reply) = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_LOCAL_CALL_H_
