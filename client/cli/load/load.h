// Load generator: repeats one request, with a given number in flight, each on its own thread and
// connection. client/cli/README.md says how each transport travels.
//
// Each request in flight is a separate sequence, whose position advances by its number of tokens
// with every call. Nothing is retried, so every failure is counted.
//
// Threading:  Functions; RunLoad blocks until the load has ended.
// Limits:     Keeps 4 bytes for each request.
#ifndef ROPE_CLIENT_CLI_LOAD_LOAD_H_
#define ROPE_CLIENT_CLI_LOAD_LOAD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rope/client.h"

namespace rope::client {

enum class LoadTransport { kInline, kStaged, kRing, kMemfd };

struct LoadPlan {
  RopeSpec rope = {};
  int64_t tokens = 1;
  int64_t heads = 32;
  int64_t kv_heads = 8;  // 0: the request has no k
  int64_t head_dim = 128;
  DType dtype = DType::kBFloat16;
  LoadTransport transport = LoadTransport::kInline;
  int64_t concurrency = 1;
  // The load ends after this time; if `requests` is set, after that many requests instead.
  std::chrono::nanoseconds duration = std::chrono::seconds(10);
  std::optional<int64_t> requests = {};
  CallOptions call = {.attempts_max = 1};  // every failure counts

  bool SharesMemory() const {
    return transport == LoadTransport::kRing || transport == LoadTransport::kMemfd;
  }
  // Bytes of the tensors of one request, in each direction. REQUIRES: fits in 63 bits.
  int64_t RequestBytes() const {
    return tokens * (heads + kv_heads) * head_dim * ElementBytes(dtype);
  }
};

struct LoadResult {
  std::vector<float> latencies_us;        // of successful requests, sorted
  std::map<std::string, int64_t> errors;  // number of failures by status code
  std::string first_error;                // empty: no failure
  double seconds = 0;                     // from the first request to the last answer
  std::string device;
};

// The smallest latency that at least `percent` of `sorted` do not exceed; 0 if there are none.
// REQUIRES: 0 < percent <= 100.
double Percentile(const std::vector<float>& sorted, double percent);

// `connect` returns a new connection with every call. Before the load starts, one request is sent
// that is not counted.
// Errors: those of `connect` and of that request.
Result<LoadResult> RunLoad(const LoadPlan& plan,
                           const std::function<Result<Client>(const ConnectOptions&)>& connect);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LOAD_LOAD_H_
