// LocalCall: a call whose request and reply pass through memory that client and server both map.
//
// Threading:  Confined to the handler until Answer, which any thread may call.
#ifndef ROPE_SERVER_REQUEST_LOCAL_CALL_H_
#define ROPE_SERVER_REQUEST_LOCAL_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rope::server {

class LocalCall {
 public:
  virtual ~LocalCall() = default;
  // The connection that the memory came with.
  virtual uint64_t session() const = 0;
  // Until the client gives up.
  virtual absl::Duration time_left() const = 0;
  // True once the client has gone.
  virtual const std::shared_ptr<std::atomic<bool>>& cancelled() const = 0;
  // The server's own copy of the request; until the handler returns.
  virtual std::string_view message() const = 0;
  virtual int64_t reply_bytes_max() const = 0;
  // Nothing of the call may be touched afterwards. REQUIRES: at most reply_bytes_max() bytes.
  virtual void Answer(absl::StatusCode code, std::string_view reply) = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_LOCAL_CALL_H_
