// Request: one Rotate call on its way through the server, from received bytes to finished output.
// Knows no gRPC.
//
//   received -> decoded (adapter) -> planned, admitted (engine) -> run (executor) -> done
//
// Threading:  Confined to its owner. Any thread may set `cancelled`.
// Ownership:  Owns everything that it refers to. The destructor releases the permit, the received
//             bytes and the output buffers.
#ifndef ROPE_SERVER_REQUEST_REQUEST_H_
#define ROPE_SERVER_REQUEST_REQUEST_H_

#include <google/protobuf/arena.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/tables/table_page.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rotate.pb.h"
#include "server/memory/admission.h"
#include "server/memory/buffer_pool.h"
#include "server/memory/region.h"
#include "server/request/plan.h"
#include "server/request/prepared_rotation.h"
#include "server/request/received_bytes.h"

namespace rope::server {

// A message on its own arena. A small message fits into the arena's first block, so that parsing it
// allocates nothing.
struct ParsedRequest {
  static constexpr size_t kArenaBlockBytes = 2048;
  alignas(std::max_align_t) std::array<char, kArenaBlockBytes> arena_block;
  google::protobuf::Arena arena{arena_block.data(), arena_block.size()};
  v1::RotateRequest& message = *google::protobuf::Arena::CreateMessage<v1::RotateRequest>(&arena);
};

// How long the stages of a request took, in microseconds: rope.v1.StageTimes.
struct StageTimes {
  double decode = 0;
  double validate = 0;
  double queue = 0;
  double execute = 0;
};

struct Request {
  using Done = std::function<void(std::unique_ptr<Request>, absl::Status)>;

  // Set by the adapter.
  std::string id;
  uint64_t session = 0;  // the connection; queues take turns between sessions
  absl::Time received;
  int64_t message_bytes = 0;          // as received
  std::optional<int64_t> slot_bytes;  // set: the most bytes that the whole reply may have
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<std::atomic<bool>> cancelled;
  std::unique_ptr<ParsedRequest> parsed;  // the skeleton; null: it could not be parsed
  proto::SplitMessage split;              // payloads: views into `received_bytes`
  std::unique_ptr<ReceivedBytes> received_bytes;
  Done done;

  // Set on the way.
  std::shared_ptr<const PreparedRotation> prepared;  // by the engine: that of its prepared_id
  std::vector<PooledBuffer> region_copies;           // by the engine: copies of arrays in regions
  bool ran = false;  // by the executor: outputs may have been written
  Plan plan;         // by the engine
  Permit permit;     // by the engine
  // By the executor, one for each tensor; of 0 bytes unless the destination takes a buffer.
  absl::InlinedVector<PooledBuffer, 2> outputs;
  std::string_view device;  // by the executor: its backend's name, which outlives requests
  StageTimes stages;
  absl::Time enqueued;       // by the engine
  int64_t tokens_taken = 0;  // by the batcher: tokens that batches have taken so far
  int64_t last_batch = 0;    // by the batcher: the last batch that took tokens of this request

  // The received message: with a prepared_id, the values of the call. REQUIRES: parsed.
  const v1::RotateRequest& values() const { return parsed->message; }
  // The message with the fields that are no values: the prepared one, or the received one.
  const v1::RotateRequest& asked() const { return prepared ? prepared->message : values(); }

  bool IsCancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

// The part of a request that one batch runs.
struct Slice {
  Request* request = nullptr;
  int64_t begin = 0;  // tokens in memory order
  int64_t end = 0;
  absl::Status status;  // the result, set by the executor
  // Set by the executor: the rows of its tokens, one entry for each row set of the plan. The slice
  // keeps them until it is destroyed: releasing many pages takes time, and no reply waits for it.
  absl::InlinedVector<kernels::TokenRows, 1> rows = {};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REQUEST_H_
