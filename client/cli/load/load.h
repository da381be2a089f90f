// A load on a server: the same request over and over, with a given number in flight.
//
// inline: a thread, a connection and one synchronous call at a time for each request in flight.
// staged: the same, with the bytes copied to memory that the server shares instead of sent.
// ring, memfd, shm: the same with the tensors in memory that the server shares, rotated in place,
// without the attention factor; with ring, calls go through a ring there and are no RPCs.
// stream: one stream on one connection; each answer's callback sends the next request.
//
// Each request in flight is a sequence of its own that moves on by its tokens with every call.
// Nothing is retried, so that every failure is counted.
//
// Threading:  Functions; RunLoad blocks until the load is over.
#ifndef ROPE_CLIENT_CLI_LOAD_LOAD_H_
#define ROPE_CLIENT_CLI_LOAD_LOAD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "client/cli/load/latency_histogram.h"
#include "rope/client.h"

namespace rope::client {

enum class LoadTransport { kInline, kStream, kStaged, kRing, kMemfd, kShm };

// As the flag calls it.
const char* Name(LoadTransport transport);

struct LoadPlan {
  RopeSpec rope = {};
  int64_t tokens = 1;
  int64_t heads = 32;
  int64_t kv_heads = 8;  // 0: no k
  int64_t head_dim = 128;
  DType dtype = DType::kBFloat16;
  LoadTransport transport = LoadTransport::kInline;
  int64_t concurrency = 1;
  // The load ends after this time, or after so many requests where they are given.
  std::chrono::nanoseconds duration = std::chrono::seconds(10);
  std::optional<int64_t> requests = {};
  CallOptions call = {};

  bool SharesMemory() const {
    return transport == LoadTransport::kRing || transport == LoadTransport::kMemfd ||
           transport == LoadTransport::kShm;
  }
  // Of the tensors of one request, each way. REQUIRES: fits in 63 bits.
  int64_t RequestBytes() const {
    return tokens * (heads + kv_heads) * head_dim * ElementBytes(dtype);
  }
};

struct LoadResult {
  LatencyHistogram latencies;             // of the requests that were answered
  std::map<std::string, int64_t> errors;  // by code
  std::string first_error;                // empty: none
  double seconds = 0;                     // from the first request to the last answer
  std::string device;
};

// `connect` gives a connection of its own with every call.
// Errors: no connection, or a first request, which is not counted, that fails.
Result<LoadResult> RunLoad(const LoadPlan& plan,
                           const std::function<Result<Client>(const ConnectOptions&)>& connect);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LOAD_LOAD_H_
