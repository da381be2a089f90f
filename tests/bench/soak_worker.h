// SoakWorker: a regular client of the soak test. It uses every kind of call of the client library,
// sends some invalid requests, cancels some calls, and checks how each call ends.
//
// Threading:  A SoakWorker is confined to one thread; SoakCounts are shared.
// Ownership:  Owns its connections and the memory of its tensors.
#ifndef ROPE_TESTS_BENCH_SOAK_WORKER_H_
#define ROPE_TESTS_BENCH_SOAK_WORKER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rope/client.h"

namespace rope::bench {

struct SoakCounts {
  std::atomic<int64_t> ok{0};
  std::atomic<int64_t> cancelled{0};
  std::atomic<int64_t> invalid{0};
  std::atomic<int64_t> wrong{0};

  int64_t answered() const { return ok + cancelled + invalid + wrong; }
};

class SoakWorker {
 public:
  // Upper bound on the client memory that the server maps for one worker: two arenas, the staging
  // memory, and their rings. Staging memory counts twice, because a client that has lost half of it
  // replaces it with new memory.
  static const int64_t kMappedBytesMax;

  SoakWorker(std::string tcp, std::string unix, uint64_t seed, SoakCounts& counts);
  ~SoakWorker();

  // Sends as much as the worker ever has in flight, so that memory that the server keeps for it is
  // allocated at the start.
  void SendMost();
  // Sends one request, or a few at once.
  void SendOne();

 private:
  struct Peer;
  enum class Fate { kAnswered, kCancelled, kInvalid };

  void ConnectMemfd();
  void ConnectRing();
  uint64_t Below(uint64_t n) { return random_() % n; }
  int64_t RandomTokens();
  void Set(int64_t tokens);
  void Invalid();
  void Cancelled();
  // Sends prepared requests without waiting between them. `dropped`: cancels them.
  void SendAtOnce(uint64_t requests, bool dropped);
  void Count(const Status& status, Fate fate);

  const std::string tcp_;
  const std::string unix_;
  std::mt19937_64 random_;
  SoakCounts& counts_;
  std::vector<std::unique_ptr<Peer>> peers_;
  const Peer* peer_ = nullptr;  // takes the current turn
  client::RotateRequest request_;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SOAK_WORKER_H_
