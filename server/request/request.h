// Request: one Rotate call on its way through the server, from received bytes to finished output.
// Knows no gRPC.
//
// Threading:  Confined to whoever owns it; `cancelled` may be set by any thread.
// Ownership:  Owns everything it refers to. Destroying it gives back its permit, its received bytes
//             and its output buffers.
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
#include "server/request/prepared.h"

namespace rope::server {

// A message on an arena of its own; what a small one parses to fits into the first block.
struct ParsedRequest {
  static constexpr size_t kArenaBlockBytes = 2048;
  alignas(std::max_align_t) std::array<char, kArenaBlockBytes> arena_block;
  google::protobuf::Arena arena{arena_block.data(), arena_block.size()};
  v1::RotateRequest& message = *google::protobuf::Arena::CreateMessage<v1::RotateRequest>(&arena);
  // Of the message, in the received bytes, where it is worth keeping once validated; else empty.
  absl::InlinedVector<std::string_view, 2> kept_fragments;
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
  int64_t message_bytes = 0;  // as received
  bool alone = false;         // no other call was in flight when it came
  bool from_ring = false;     // on the rings' thread, which reads no tensors
  bool gathers = false;       // its thread calls Batcher::RunGathered when nothing else has arrived
  bool may_overwrite = false;  // nobody else reads the received bytes, which are slices of gRPC's
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<std::atomic<bool>> cancelled;
  std::unique_ptr<ParsedRequest> parsed;  // the skeleton; null beside `prepared`
  proto::SplitMessage split;              // payloads: views into `received_bytes`
  std::shared_ptr<const void> received_bytes;
  // Set: the message is that of an earlier request with other values, and the payloads of `split`
  // are those that `prepared->message` speaks of.
  std::shared_ptr<const Prepared> prepared;
  std::optional<int64_t> start;                    // beside `prepared`: its positions.start
  std::vector<proto::RequestOutline::Span> spans;  // beside `prepared`: what lies in regions
  Done done;

  // Set on the way.
  std::vector<RegionPart> inputs;  // by the engine, of each tensor; empty: none in a region
  std::vector<std::shared_ptr<const Region>> held_regions;  // by the engine: of other arrays
  std::vector<PooledBuffer> region_copies;                  // by the engine: what payloads refer to
  bool in_place = false;  // by the engine: an output takes the place of its input
  bool ran = false;       // by the executor: outputs may have been written
  Plan plan;              // by the engine
  Permit permit;          // by the engine
  // By the executor, one for each tensor; empty where the result is elsewhere.
  absl::InlinedVector<PooledBuffer, 2> outputs;
  std::string_view device;  // by the executor: its backend's name, which outlives requests
  StageTimes stages;
  absl::Time enqueued;       // by the engine
  int64_t tokens_taken = 0;  // by the batcher: tokens that batches have taken so far
  int64_t last_batch = 0;    // by the batcher: number of the batch that took some last

  // The skeleton, but for the request_id and the start of a prepared one. REQUIRES: decoded.
  const v1::RotateRequest& asked() const { return prepared ? prepared->message : parsed->message; }

  // Whether the result of a tensor takes the place of its received bytes. REQUIRES: has run.
  bool Overwrites(size_t tensor) const {
    const TensorPlan& of = plan.tensors[tensor];
    return of.place.region == nullptr && outputs[tensor].size() < of.output_bytes();
  }

  bool IsCancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

// The share of a request that one batch runs.
struct Slice {
  Request* request = nullptr;
  int64_t begin = 0;  // tokens in memory order
  int64_t end = 0;
  absl::Status status;  // how it went, set by the executor
  // Set by the executor: of its tokens, one for each row set of the plan. They stay until the slice
  // goes: to give many pages back takes long, and no answer waits for it.
  absl::InlinedVector<kernels::TokenRows, 1> rows = {};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REQUEST_H_
