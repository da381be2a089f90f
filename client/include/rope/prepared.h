// PreparedRotation: the constant part of repeated requests, validated once by the server. A call
// then sends a short id and the values of the call (RotateRequest::prepared lists them).
//
//   auto decode = client.Prepare(request).value();                      // once
//   client.Rotate({.prepared = decode, .positions = {.start = 7}, .tensors = {{.data = q}}});
//
// A PreparedRotation belongs to no connection: any client of any server may use it. If a server
// does not know the id (another server, a restart, an eviction), the client sends the whole request
// in the same call, and asks the server to prepare it again. The reply is the same. A synchronous
// call then returns later by one small RPC, of half a second at most.
//
// Threading:  A value; a copy is cheap.
// Ownership:  Owns a copy of the request it was prepared from, norm weights included.
#ifndef ROPE_PREPARED_H_
#define ROPE_PREPARED_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rope/status.h"

namespace rope::client {

struct PreparedState;
struct RotateRequest;

class PreparedRotation {
 public:
  // A rotation that no server has validated, with an id that no server has: for a Connection of
  // another kind than the library's, such as a mock. INVALID_ARGUMENT: as Client::Prepare.
  static Result<PreparedRotation> CreateLocal(const RotateRequest& request,
                                              const std::string& open_axis = {});

  // 32 hexadecimal digits: the same for equal requests on every server.
  const std::string& id() const;
  // The warnings about the config. Every reply to a prepared call repeats them.
  const std::vector<std::string>& warnings() const;

  // For a call whose open axis has `length`. Without it the open axis has its largest length.
  // A call fails with INVALID_ARGUMENT if the length is negative or larger than that, or if no axis
  // is open.
  PreparedRotation WithLength(int64_t length) const;

 private:
  friend struct PreparedState;
  explicit PreparedRotation(std::shared_ptr<const PreparedState> state);

  std::shared_ptr<const PreparedState> state_;
  std::optional<int64_t> length_;
};

}  // namespace rope::client

#endif  // ROPE_PREPARED_H_
