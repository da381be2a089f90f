// SoakWorker: one of the clients that a soak's server is there for. It asks in every way that the
// client library has, now and then wrongly, gives up some calls, and checks how each one ends.
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
  // Bytes of clients' memory that the server maps for one worker at most: two arenas, staging and
  // their rings; POSIX objects are never mapped. A staging client's is there twice while it changes
  // from memory of which half is lost to other memory.
  static const int64_t kMappedBytesMax;

  SoakWorker(std::string tcp, std::string unix, uint64_t seed, SoakCounts& counts);
  ~SoakWorker();

  // As much as it ever has in flight, so that what the server keeps for it is there from the
  // beginning.
  void SendMost();
  // One request, or a few on a stream.
  void SendOne();

 private:
  struct Peer;
  enum class Fate { kAnswered, kCancelled, kInvalid };

  void ConnectMemfd();
  void ConnectShm();
  void ConnectRing();
  uint64_t Below(uint64_t n) { return random_() % n; }
  int64_t RandomTokens();
  void Set(int64_t tokens);
  void Invalid();
  void Cancelled();
  // A few requests; now and then the stream is dropped with its answers still to come.
  void OnStream();
  void SendStream(uint64_t requests, bool dropped);
  void Count(const Status& status, Fate fate);

  const std::string tcp_;
  const std::string unix_;
  std::mt19937_64 random_;
  SoakCounts& counts_;
  std::vector<std::unique_ptr<Peer>> peers_;
  const Peer* peer_ = nullptr;  // whose turn it is
  client::RotateRequest request_;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SOAK_WORKER_H_
