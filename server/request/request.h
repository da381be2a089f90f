// A request from its arrival to its answer.
#ifndef ROPE_SERVER_REQUEST_REQUEST_H_
#define ROPE_SERVER_REQUEST_REQUEST_H_

#include <google/protobuf/arena.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/tables/table_page.h"
#include "proto/wire/message_split.h"
#include "rope/device.h"
#include "rope/v1/rotate.pb.h"
#include "server/clients/access.h"
#include "server/clients/account.h"
#include "server/clients/buffer_pool.h"
#include "server/clients/connections.h"
#include "server/request/plan.h"
#include "server/request/prepared_rotation.h"
#include "server/telemetry/counts.h"

namespace rope::server {

// ReceivedBytes: the bytes of a message as an adapter received them, in one or more fragments.
//
// Threading:  Confined to its owner.
// Ownership:  Owns the bytes.

class ReceivedBytes {
 public:
  virtual ~ReceivedBytes() = default;
  // Where `part` of a fragment may be overwritten. Null: nowhere, because others may read the bytes
  // or a reply cannot send them.
  virtual char* Overwritable(std::string_view /*part*/) { return nullptr; }
};

// IncomingCall: who makes a call, and until when, whatever brought it.
//
// Threading:  Confined to the handler until the call is answered.

class IncomingCall {
 public:
  virtual ~IncomingCall() = default;
  virtual Connection& connection() const = 0;
  // What the caller holds counts here.
  virtual const std::shared_ptr<Account>& account() const { return connection().account(); }
  // Where the caller calls from (peers.h).
  virtual const std::string& origin() const { return connection().owner(); }
  // Who calls; null: there is no access file, or the method needs no right.
  virtual std::shared_ptr<const Identity> identity() const { return nullptr; }
  // The value of a header; of the last one if there are several; empty: there is none.
  virtual absl::string_view Header(const char* /*name*/) const { return {}; }
  // The time until the caller's deadline.
  virtual absl::Duration time_left() const = 0;
  // True once the caller has gone or cancelled. May be read after the call has ended.
  virtual const std::shared_ptr<std::atomic<bool>>& cancelled() const = 0;
};

// LocalCall: a call whose request and reply pass through memory that the client and the server both
// map.
//
// Threading:  Confined to the handler until Answer, which may be called on any thread.

class LocalCall : public IncomingCall {
 public:
  virtual int64_t message_bytes() const = 0;
  // Copies the request out of memory that the client may write at any time: two copies may differ.
  // REQUIRES: the handler has not returned.
  virtual std::string CopyMessage() const = 0;
  // Sends the reply and ends the call, which must not be used afterwards. REQUIRES: `reply` has at
  // most proto::kRingMessageBytes.
  virtual void Answer(absl::StatusCode code, std::string_view reply) = 0;
};

// InProcessCall: a call of this process. Its request is a message that is there already, and its
// reply is read from the request that has run.
//
// Threading:  Confined to the handler until Answer, which may be called on any thread.

struct Decoded;
struct Request;

class InProcessCall : public IncomingCall {
 public:
  // The message. Called once.
  virtual Decoded TakeRequest() = 0;
  // Where the call's work goes; null: its tensors lie in host memory.
  virtual const DeviceQueue* queue() const { return nullptr; }
  // Ends the call, which must not be used afterwards. `finished` has results if `status` is OK.
  virtual void Answer(std::unique_ptr<Request> finished, const absl::Status& status) = 0;
};

// Request: one Rotate call on its way through the server, from received bytes to finished output.
// Knows no gRPC.
//
//   Arrival -> Decoded (adapter) -> Plan (engine) -> Run (batcher, executor) -> done
//
// A message that cannot be decoded never becomes a request: its adapter answers with the Arrival.
//
// Threading:  Confined to its owner. Any thread may set `cancelled`.
// Ownership:  Owns everything that it refers to. The destructor releases the permit, the received
//             bytes and the output buffers.

// What is known of a request when its bytes have come.
struct Arrival {
  std::string id;        // the client's, or one that the server makes
  uint64_t session = 0;  // the connection's id; queues take turns between sessions
  // The call holds both until it is answered.
  Connection* connection = nullptr;
  Account* account = nullptr;
  Transport transport = Transport::kInline;
  absl::Time received;
  int64_t message_bytes = 0;
  const DeviceQueue* queue = nullptr;  // set: the tensors lie on its device
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<std::atomic<bool>> cancelled;  // may be null
  std::shared_ptr<const Identity> identity;      // that calls; null: there is no access file

  bool IsCancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

// What the bytes say.
struct Decoded {
  Decoded(std::unique_ptr<ReceivedBytes> received, proto::SplitMessage parts)
      : bytes(std::move(received)), split(std::move(parts)) {}
  // For a message built in this process, never serialized.
  Decoded(std::unique_ptr<google::protobuf::Arena> memory, v1::RotateRequest* message,
          proto::SplitMessage parts)
      : bytes(std::make_unique<ReceivedBytes>()),
        split(std::move(parts)),
        arena(std::move(memory)),
        parsed(message) {}
  v1::RotateRequest& message() { return *parsed; }
  const v1::RotateRequest& message() const { return *parsed; }

  std::unique_ptr<ReceivedBytes> bytes;
  proto::SplitMessage split;  // payloads: views into `bytes`
  std::unique_ptr<google::protobuf::Arena> arena = std::make_unique<google::protobuf::Arena>();
  v1::RotateRequest* parsed =  // the skeleton
      google::protobuf::Arena::CreateMessage<v1::RotateRequest>(arena.get());
};

// How far a planned request has run.
struct Run {
  absl::Time enqueued;
  int64_t tokens_taken = 0;  // by batches that have run
  bool began = false;        // outputs may have been written
  // One for each tensor, from the first slice on; of 0 bytes unless the destination takes a buffer.
  absl::InlinedVector<PooledBuffer, 2> outputs;
  std::string_view device;  // the name of the backend, which outlives requests
  // By tensor, the number of elements of an fp8 result that are beyond the largest number. Null: no
  // result is fp8.
  std::unique_ptr<std::atomic<int64_t>[]> saturated;

  std::atomic<int64_t>* SaturatedOf(size_t tensor) const {
    return saturated == nullptr ? nullptr : &saturated[tensor];
  }
};

struct Request {
  using Done = std::function<void(std::unique_ptr<Request>, absl::Status)>;

  Request(Arrival arrived, Decoded message)
      : arrival(std::move(arrived)), decoded(std::move(message)) {}

  // The received message: with a prepared_id, the values of the call alone.
  const v1::RotateRequest& call() const { return decoded.message(); }
  // The message with the fields that stay the same from call to call: the prepared one, or the
  // received one.
  const v1::RotateRequest& fixed() const { return prepared ? prepared->message : call(); }

  Arrival arrival;
  Decoded decoded;
  Done done;
  // By the engine, step by step while it plans.
  Permit permit;
  std::shared_ptr<const PreparedRotation> prepared;  // null: the message is whole
  Plan plan;
  // By batcher and executor.
  Run run;
  StageTimes stages;  // by each stage
};

// The part of a request that one batch runs.
struct Slice {
  Request* request = nullptr;
  int64_t begin = 0;    // tokens in memory order
  int64_t end = 0;      // the executor may move it to the front
  absl::Status status;  // the result, set by the executor
  // Set by the executor: the rows of its tokens, one entry for each row set of the plan. The slice
  // keeps them until it is destroyed: releasing many pages takes time, and no reply waits for it.
  absl::InlinedVector<kernels::TokenRows, 1> rows = {};

  bool IsLast() const { return end == request->plan.tokens; }
  // Whether the batch had no budget left for it, so that it has not begun.
  bool WasLeftOut() const { return begin == end && !IsLast(); }
};

// Writes the reply of a request that has run: a RotateResponse, except for the raw bytes of its
// tensors. Calls `payload(tensor, text)` for each tensor with a
// payload; `text` is then what comes before the payload, and the rest is appended to it. A payload
// is the raw bytes of a result that is not in a region, not empty, and whose input came as bytes; a
// tensor that came as numbers is returned as numbers, which are part of the text. Returns the text.
std::string WriteReply(const Request& request,
                       absl::FunctionRef<void(size_t tensor, std::string& text)> payload);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REQUEST_H_
