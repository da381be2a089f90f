// Client: a connection to a RopeServe server, and the calls on it.
//
// One Connect is one connection. A call blocks the calling thread, which is the only one that works
// on it (gRPC keeps a few threads that sleep). Failures that a later attempt can mend are retried
// within the call's deadline.
//
// Threading:  Thread-safe; a copy is cheap and is the same connection. Any number of calls at once.
// Ownership:  Requests are borrowed until the call returns, tensor memory included; on the way out
//             a call waits until nothing refers to that memory. Replies own what they hold, except
//             RotatedTensor::data where the request gave `output`.
// Errors:     As the server says them, with the field at fault in Status::detail(); and its own.
//             INVALID_ARGUMENT: a tensor without memory, or of a size that is no number of bytes.
//             DEADLINE_EXCEEDED: no answer within CallOptions::timeout. UNAVAILABLE: no connection.
//             RESOURCE_EXHAUSTED: larger than ConnectOptions::max_message_bytes. INTERNAL: an
//             answer that cannot be read.
// Limits:     A server that stops taking bytes in the middle of a request holds the call past its
//             deadline: over TCP for 10 seconds, over a Unix socket until it goes on or ends.
#ifndef ROPE_CLIENT_H_
#define ROPE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/describe.h"
#include "rope/options.h"
#include "rope/status.h"
#include "rope/tensor.h"

namespace rope::client {

// Where the tokens stand: exactly one of `start`, `starts` and `position_ids`; `cu_seqlens` may
// stand beside each.
struct Positions {
  std::optional<int64_t> start =
      {};                            // of the first token of every sequence; the next tokens follow
  std::vector<int64_t> starts = {};  // of each sequence's first token
  std::vector<int64_t> position_ids = {};  // of each token
  // Shape of position_ids: {S}, {B, S} or {T}, with a leading 3 where each token has three (t, h,
  // w). Empty: one axis.
  std::vector<int64_t> position_ids_shape = {};
  std::vector<int64_t> cu_seqlens = {};  // packed sequences: where each begins, then T
  // Final length for dynamic and longrope configs: one value, or one for each sequence.
  std::vector<int64_t> seq_len = {};
};

enum class Operation {
  kRotate,    // turn by the angle, times the attention factor
  kInverse,   // undo a rotation
  kBackward,  // gradient of a rotation
};

struct RotateRequest {
  std::string request_id = {};  // echoed and logged by the server; empty: the server makes one
  RopeSpec rope = {};
  Positions positions = {};
  Operation operation = Operation::kRotate;
  // True: the attention factor is left to the caller.
  bool return_attention_factor = false;
  std::vector<TensorView> tensors = {};
};

// Time in each stage of the server, microseconds.
struct StageTimes {
  double decode = 0;
  double validate = 0;
  double queue = 0;
  double execute = 0;
};

struct RotateReply {
  std::string request_id = {};
  double attention_factor = 0;  // of the config, whether applied or not
  bool attention_factor_applied = false;
  std::string device = {};  // what ran it
  StageTimes microseconds = {};
  std::vector<std::string> warnings = {};
  std::vector<RotatedTensor> tensors = {};  // in the order of the request
};

class Connection;

class Client {
 public:
  // Connects to "HOST:PORT" or "unix:PATH" and asks for the server's health.
  // UNAVAILABLE: no connection within the timeout, or (unless require_serving is false) not
  // serving.
  static Result<Client> Connect(const std::string& target, const ConnectOptions& options = {});

  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options = {}) const;

  Result<DescribeReply> Describe(const DescribeRequest& request,
                                 const CallOptions& options = {}) const;
  // The same answer as JSON text, with the field names of proto/rope/v1/describe.proto.
  Result<std::string> DescribeJson(const DescribeRequest& request,
                                   const CallOptions& options = {}) const;

  Result<std::vector<Model>> ListModels(const CallOptions& options = {}) const;
  Result<ServerInfo> GetServerInfo(const CallOptions& options = {}) const;
  // The state of one service, or of the whole server where `service` is empty.
  Result<ServingStatus> Health(const std::string& service = {},
                               const CallOptions& options = {}) const;

 private:
  explicit Client(std::shared_ptr<const Connection> connection);

  std::shared_ptr<const Connection> connection_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_H_
