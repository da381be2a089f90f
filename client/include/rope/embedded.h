// The server in the caller's own process: no sockets, and the same answers, bit for bit. Link
// RopeServe::embedded.
//
//   Result<Client> client = rope::embedded::Connect();
//
// A call runs on the calling thread, or on the engine's thread for batches if its tensors are
// large; large tensors also use the workers of the CPU backend. Tensors are read and written where
// they lie: there is no arena to fill and nothing to stage. For tensors in host memory the GPU is
// not used: it is slower than the CPU. Tensors in memory of a GPU are enqueued on a stream of the
// caller's (Client::Enqueue); CUDA is loaded with the first of these calls.
//
// Threading:  Thread-safe. Besides the workers, an engine has one thread for batches and one for
//             what takes long; a client has one for callbacks, which starts with the first
//             asynchronous call. All of them sleep while nothing happens.
// Ownership:  A call ends when nothing uses its tensors any more, even if it was cancelled or its
//             deadline passed. Fence therefore waits for calls under way only.
// Errors:     As client.h, without UNAVAILABLE for lost connections. Nothing is retried.
//             Errors about budgets name the flags of rope_server.
// Limits:     If a callback destroys the last client, the engine ends after it, on that thread.
//             Asynchronous calls of one client run one after another.
//             Client::transport() is kInProcess. Tables, models and prepared rotations belong to
//             the engine; they go with its last client.
#ifndef ROPE_EMBEDDED_H_
#define ROPE_EMBEDDED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "rope/client.h"
#include "rope/status.h"

namespace rope::embedded {

struct Options {
  // A model to know by name, beside the presets: the text of its config.json.
  struct ModelConfig {
    std::string name;
    std::string config_json;
  };

  int threads = 0;  // of the CPU backend, at most 1024; 0: as many as the process may use
  // Bounds requests, tables and models together, 64 MiB or more. 0: three quarters of the memory
  // that the process may use.
  int64_t memory_bytes = 0;
  std::vector<ModelConfig> models = {};
  // Bounds the tables on each GPU together (DeviceQueue::positions_max), 0 or more.
  int64_t device_table_bytes = int64_t{256} << 20;
};

// A client of a new engine. Of `options`, arena_bytes and pooled_bytes count.
// INVALID_ARGUMENT: a number outside of its range, or a model's config with an error.
Result<client::Client> Connect(const Options& engine = {},
                               const client::ConnectOptions& options = {});

// Makes "inproc:" a target of Client::Connect in this process: all such clients share one engine,
// which the first of them starts and the last one ends. A later Enable counts for engines that
// start after it.
void Enable(const Options& engine = {});

}  // namespace rope::embedded

#endif  // ROPE_EMBEDDED_H_
