// rope_soak [--requests=N] [--seed=N]: whether the server's memory grows.
//
// Mixed requests to a real server: 1 token to 16 MiB, unary, asynchronous and on streams, in
// messages over TCP and Unix, staged, in memfds with a ring and without, in POSIX shared memory; 5
// in a hundred are cancelled, 5 invalid, and now and then a client with shared memory goes and
// another one comes.
//
// Exits 1 if what the server holds at the end is more than 10 % above that after the first 10,000,
// if it maps more of its clients' memory than there is, or if an answer is not what it should be.
//
// What the server holds is its resident size less the pages of its clients' memory that it has
// mapped (RssShmem of /proc/PID/status). Those are the clients' and stay as large as they made
// them: counted in, they would hide growth behind a constant part, and a client that has just gone
// or come would look like loss or growth. That they are given back is checked by their own bound.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"
#include "proto/ring.h"
#include "rope/client.h"
#include "server/grpc_options.h"
#include "tests/support/process_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

constexpr int kWorkers = 4;
constexpr uint64_t kInFlightMax = 3;  // of a worker
constexpr int64_t kSettledRequests = 10000;
constexpr double kGrowthMax = 1.1;
constexpr int64_t kHeads = 8;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kTokenBytes = kHeads * kHeadDim * 2;
constexpr int64_t kTensorBytesMax = int64_t{16} << 20;
constexpr int64_t kTokensMax = kTensorBytesMax / kTokenBytes;
constexpr uint64_t kPeers = 6;  // of a worker: inline over TCP and Unix, memfd, POSIX, staged, ring
constexpr int64_t kStagedBytes = 3 * kTensorBytesMax;

// Of memfds, since POSIX objects are never mapped: two arenas, staging and their rings. A staging
// client's is there twice while it changes from memory of which half is lost to other memory.
constexpr int64_t kMappedBytesMax =
    kWorkers * (2 * (2 * kTensorBytesMax) + 2 * kStagedBytes + 3 * sizeof(proto::Ring));

struct Flags {
  int64_t requests = 20000;
  int64_t seed = 1;
};

std::optional<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view text = argv[i];
    int64_t* const value = absl::ConsumePrefix(&text, "--requests=") ? &flags.requests
                           : absl::ConsumePrefix(&text, "--seed=")   ? &flags.seed
                                                                     : nullptr;
    if (value == nullptr || !absl::SimpleAtoi(text, value)) return std::nullopt;
  }
  if (flags.requests < kSettledRequests) return std::nullopt;
  return flags;
}

struct Counts {
  std::atomic<int64_t> ok{0};
  std::atomic<int64_t> cancelled{0};
  std::atomic<int64_t> invalid{0};
  std::atomic<int64_t> wrong{0};
};

// A connection, and memory for an input and an output: of its arena, or where it has none, the
// program's.
struct Peer {
  Peer(const std::string& target, const client::ConnectOptions& options)
      : client(Connect(target, options)) {
    if (options.arena_bytes > 0) {
      slots = {client.arena().Take(kTensorBytesMax).value(),
               client.arena().Take(kTensorBytesMax).value()};
      input = static_cast<uint16_t*>(slots[0].data());
      output = static_cast<uint16_t*>(slots[1].data());
    } else {
      memory.resize(kTensorBytesMax);
      input = memory.data();
      output = input + kTensorBytesMax / 2;
    }
    std::fill_n(input, kTensorBytesMax / 2, uint16_t{0x3f80});
  }

  static client::Client Connect(const std::string& target, const client::ConnectOptions& options) {
    auto connected = client::Client::Connect(target, options);
    if (!connected.ok()) std::fprintf(stderr, "%s\n", connected.status().ToString().c_str());
    ROPE_CHECK(connected.ok());
    return *std::move(connected);
  }

  client::Client client;
  std::array<client::Slot, 2> slots;
  std::vector<uint16_t> memory;
  uint16_t* input = nullptr;
  uint16_t* output = nullptr;
};

client::ConnectOptions WithArena(client::Transport transport) {
  return {.arena_bytes = 2 * kTensorBytesMax, .transports = {transport}};
}
client::ConnectOptions WithStaging() {
  return {.staged_bytes = kStagedBytes,
          .transports = {client::Transport::kRing, client::Transport::kMemfd}};
}

// One thread's clients and memory.
class Worker {
 public:
  Worker(std::string tcp, std::string unix, uint64_t seed, Counts& counts)
      : tcp_(std::move(tcp)), unix_(std::move(unix)), random_(seed), counts_(counts) {
    peers_.push_back(std::make_unique<Peer>(tcp_, WithArena(client::Transport::kInline)));
    peers_.push_back(std::make_unique<Peer>(unix_, WithArena(client::Transport::kInline)));
    peers_.resize(kPeers);
    peers_[4] = std::make_unique<Peer>(unix_, WithStaging());
    ConnectMemfd();
    ConnectShm();
    ConnectRing();
  }

  // As much as this worker ever has in flight, so that what the server keeps for it is there from
  // the beginning.
  void SendMost() {
    for (const auto& peer : peers_) {
      peer_ = peer.get();
      Set(kTokensMax);
      SendStream(kInFlightMax, false);
    }
  }

  void SendOne() {
    const uint64_t dice = Below(100);
    if (Below(2000) == 0) ConnectMemfd();
    if (Below(2000) == 0) ConnectShm();
    if (Below(2000) == 0) ConnectRing();
    peer_ = peers_[Below(kPeers)].get();
    Set(RandomTokens());
    if (dice < 5) return Invalid();
    if (dice < 10) return Cancelled();
    const client::Client& client = peer_->client;
    if (dice < 70) return Count(client.Rotate(request_).status(), Fate::kAnswered);
    if (dice < 85) {
      return Count(client.RotateFuture(request_).get().status(), Fate::kAnswered);
    }
    OnStream();
  }

 private:
  enum class Fate { kAnswered, kCancelled, kInvalid };

  // The client before goes first: it takes its memory along.
  void ConnectMemfd() {
    peers_[2].reset();
    peers_[2] = std::make_unique<Peer>(unix_, WithArena(client::Transport::kMemfd));
  }
  void ConnectShm() {
    peers_[3].reset();
    peers_[3] = std::make_unique<Peer>(tcp_, WithArena(client::Transport::kShm));
  }
  void ConnectRing() {
    peers_[5].reset();
    peers_[5] = std::make_unique<Peer>(unix_, WithArena(client::Transport::kRing));
  }

  uint64_t Below(uint64_t n) { return random_() % n; }

  int64_t RandomTokens() {
    const uint64_t dice = Below(1000);
    if (dice < 900) return 1 + static_cast<int64_t>(Below(8));
    if (dice < 980) return 1 + static_cast<int64_t>(Below(64));
    if (dice < 998) return 1 + static_cast<int64_t>(Below(kTokensMax / 16));
    return kTokensMax;
  }

  void Set(int64_t tokens) {
    request_ = {};
    request_.rope.config.emplace();
    request_.rope.config->head_dim = kHeadDim;
    request_.rope.config->rope_theta = 10000 + static_cast<double>(Below(5000));
    request_.rope.pairing = client::Pairing::kHalf;
    request_.positions.start = static_cast<int64_t>(Below(1'000'000));
    request_.tensors.push_back({.layout = "SHD",
                                .dtype = client::DType::kBFloat16,
                                .shape = {tokens, kHeads, kHeadDim},
                                .data = peer_->input,
                                .output = peer_->output});
  }

  void Invalid() {
    switch (Below(4)) {
      case 0:
        request_.tensors[0].layout = "XHD";
        break;
      case 1:
        request_.positions.start = -1;
        break;
      case 2:
        request_.rope.config->rope_theta = -1;
        break;
      default:
        request_.positions.position_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    }
    Count(peer_->client.Rotate(request_).status(), Fate::kInvalid);
  }

  void Cancelled() {
    std::promise<Status> ended;
    const client::Call call = peer_->client.RotateAsync(
        request_,
        [&](const Result<client::RotateReply>& reply) { ended.set_value(reply.status()); });
    if (Below(2) == 0) std::this_thread::yield();
    call.Cancel();
    Count(ended.get_future().get(), Fate::kCancelled);
  }

  // A few requests; now and then the stream is dropped with its answers still to come.
  void OnStream() { SendStream(1 + Below(kInFlightMax), Below(20) == 0); }

  void SendStream(uint64_t requests, bool dropped) {
    auto stream = peer_->client.OpenStream();
    ROPE_CHECK(stream.ok());
    std::vector<std::future<Result<client::RotateReply>>> replies;
    for (; requests > 0; --requests) replies.push_back(stream->RotateFuture(request_));
    if (dropped) stream->Cancel();
    for (auto& reply : replies) {
      Count(reply.get().status(), dropped ? Fate::kCancelled : Fate::kAnswered);
    }
  }

  void Count(const Status& status, Fate fate) {
    if (fate == Fate::kInvalid && status.code() == StatusCode::kInvalidArgument) {
      ++counts_.invalid;
    } else if (fate == Fate::kCancelled && status.code() == StatusCode::kCancelled) {
      ++counts_.cancelled;
    } else if (fate != Fate::kInvalid && status.ok()) {
      ++counts_.ok;
    } else {
      if (++counts_.wrong == 1) std::fprintf(stderr, "rope_soak: %s\n", status.ToString().c_str());
    }
  }

  const std::string tcp_;
  const std::string unix_;
  std::mt19937_64 random_;
  Counts& counts_;
  std::vector<std::unique_ptr<Peer>> peers_;
  const Peer* peer_ = nullptr;  // whose turn it is
  client::RotateRequest request_;
};

int64_t Answered(const Counts& counts) {
  return counts.ok + counts.cancelled + counts.invalid + counts.wrong;
}

// Sends until there are `requests` answers in all.
void Run(std::vector<std::unique_ptr<Worker>>& workers, const Counts& counts, int64_t requests) {
  std::vector<std::thread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&counts, &worker, requests] {
      while (Answered(counts) < requests) worker->SendOne();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void SendMostAtOnce(std::vector<std::unique_ptr<Worker>>& workers) {
  std::latch all(kWorkers);
  std::vector<std::thread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&all, &worker] {
      all.arrive_and_wait();
      for (int i = 0; i < 3; ++i) worker->SendMost();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

double Mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

int Soak(const Flags& flags) {
  const std::string path = testing::TemporaryFolder() + "/rope.sock";
  // Tables fill their budget within the first requests, so that they are not what grows.
  testing::TestServer server({"--listen=unix:" + path, "--log_level=error",
                              "--table_cache_bytes=16777216", "--enable_shared_memory"});
  Counts counts;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<Worker>(server.address(), "unix:" + path,
                                               static_cast<uint64_t>(flags.seed * kWorkers + i),
                                               counts));
  }
  SendMostAtOnce(workers);
  Run(workers, counts, kSettledRequests);
  const testing::ResidentMemory settled = testing::ResidentMemoryOf(server.process().pid());
  Run(workers, counts, flags.requests);
  const testing::ResidentMemory end = testing::ResidentMemoryOf(server.process().pid());
  const double growth = static_cast<double>(end.own_bytes) / static_cast<double>(settled.own_bytes);
  std::printf(
      "measured: %d requests: %d answered, %d cancelled, %d invalid, %d wrong\n"
      "measured: resident after the first %d: %.1f MiB; at the end: %.1f MiB, %.3f x\n"
      "measured: clients' memory mapped: %.1f MiB, then %.1f MiB, want at most %.1f MiB\n",
      static_cast<int>(Answered(counts)), static_cast<int>(counts.ok),
      static_cast<int>(counts.cancelled), static_cast<int>(counts.invalid),
      static_cast<int>(counts.wrong), static_cast<int>(kSettledRequests),
      Mebibytes(settled.own_bytes), Mebibytes(end.own_bytes), growth,
      Mebibytes(settled.shared_bytes), Mebibytes(end.shared_bytes), Mebibytes(kMappedBytesMax));
  const bool holds = growth <= kGrowthMax && end.shared_bytes <= kMappedBytesMax;
  return holds && counts.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rope::bench

int main(int argc, char** argv) {
  const std::optional<rope::bench::Flags> flags = rope::bench::ParseFlags(argc, argv);
  if (!flags.has_value()) {
    std::fprintf(stderr, "usage: rope_soak [--requests=N] [--seed=N], N of requests >= 10000\n");
    return 2;
  }
  rope::server::PrepareProcess();
  return rope::bench::Soak(*flags);
}
