// rope_soak [--requests=N] [--seed=N] [--hostile=N]: checks that the server's memory, descriptors
// and threads do not grow.
//
// Sends mixed requests to a real server: 1 token to 16 MiB; unary and asynchronous;
// inline over TCP and Unix, staged, and in memfds with and without a ring.
// 5 of 100 are cancelled and 5 are invalid. Now and then a client with shared memory disconnects
// and another one connects. N hostile clients (soak_hostile.h; default 1, 0: none) perform one act
// for a fixed number of requests of the other clients.
//
// Exits 1 if
// - at the end the server holds more than after a tenth of the requests, and at least 10,000 of
//   them, plus 10 % and 16 MiB,
// - it maps more memory of its clients than exists,
// - an answer is wrong or does not arrive, or
// - after its clients have disconnected it has more descriptors or threads than at the start,
//   except for a few.
//
// The held memory is the server's anonymous memory (RssAnon of /proc/PID/status) at rest: after the
// server has released memory that only a burst needed. Mapped memory of clients (RssShmem) does not
// count: its size is the clients' choice, and a client that has just connected or disconnected
// would look like growth or loss. A separate bound checks that the server unmaps it.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/flags/flags.h"
#include "proto/mutex.h"
#include "server/grpc/memory_watch.h"
#include "server/process_setup.h"
#include "tests/bench/soak_hostile.h"
#include "tests/bench/soak_worker.h"
#include "tests/support/memory_watch.h"
#include "tests/support/process_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

constexpr int kWorkers = 4;
// After so many the server's caches are full.
constexpr int64_t kSettledRequestsMin = 10000;
constexpr double kGrowthMax = 1.1;
constexpr int64_t kMoreBytesMax = int64_t{16} << 20;  // the difference between runs
// One hostile act for this number of requests of the others.
constexpr int64_t kRequestsPerAct = 10;
constexpr int kMoreDescriptorsMax = 8;  // more than at the start
constexpr std::chrono::seconds kGoneMax{
    20};  // until the server has noticed that its clients disconnected
// The server is at rest when no sample within kRest is smaller by more than kNoiseBytes.
constexpr std::chrono::seconds kRest{server::MemoryWatch::kUnusedMs / 1000 + 2};
constexpr int64_t kNoiseBytes = int64_t{4} << 20;

// gRPC starts up to two threads for each processor when it is first busy, and keeps them.
int MoreThreadsMax() {
  return 2 * static_cast<int>(std::thread::hardware_concurrency()) + 4;
}

struct Flags {
  int64_t requests = 20000;
  int64_t seed = 1;
  int64_t hostile = 1;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--requests", flags.requests, "Requests to send (default 20000).")
      ->check(proto::IntegerBetween(kSettledRequestsMin, int64_t{1} << 40));
  app.add_option("--seed", flags.seed, "Of the random requests (default 1).");
  app.add_option("--hostile", flags.hostile, "Hostile clients (default 1).")
      ->check(proto::IntegerBetween(0, 64));
}

// Lets hostile clients perform one act for every kRequestsPerAct requests of the others.
class Pace {
 public:
  void CountRequest() {
    const proto::MutexLock lock(&mutex_);
    if (++requests_ % kRequestsPerAct != 0) return;
    ++turns_;
    changed_.SignalAll();
  }
  void Stop() {
    const proto::MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.SignalAll();
  }
  // False: there are no more turns.
  bool AwaitTurn() {
    const proto::MutexLock lock(&mutex_);
    while (turns_ == 0 && !stopped_) changed_.Wait(&mutex_);
    if (stopped_) return false;
    --turns_;
    return true;
  }

 private:
  proto::Mutex mutex_;
  proto::CondVar changed_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

// Starts a thread for each client.
template <typename Client, typename Work>
std::vector<std::thread> Start(const std::vector<std::unique_ptr<Client>>& clients,
                               const Work& work) {
  std::vector<std::thread> threads;
  for (const auto& client : clients) {
    threads.emplace_back([&client = *client, work] { work(client); });
  }
  return threads;
}

void Join(std::vector<std::thread> threads) {
  for (std::thread& thread : threads) thread.join();
}

// The server's use of system resources.
struct Footprint {
  explicit Footprint(pid_t pid)
      : own_bytes(testing::AnonymousBytes(pid)),
        mapped_bytes(testing::ResidentMemoryOf(pid).shared_bytes),
        descriptors(testing::OpenDescriptors(pid)),
        threads(testing::ThreadCount(pid)) {}

  int64_t own_bytes = 0;
  int64_t mapped_bytes = 0;  // of its clients
  int descriptors = 0;
  int threads = 0;
};

double Mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

void Print(const char* when, const Footprint& had) {
  std::printf("measured: %s: %.1f MiB, %.1f MiB of clients' mapped, %d descriptors, %d threads\n",
              when, Mebibytes(had.own_bytes), Mebibytes(had.mapped_bytes), had.descriptors,
              had.threads);
}

// The clients of one server, and samples of its resources.
class Soak {
 public:
  explicit Soak(const Flags& flags) : flags_(flags) {}

  // True if every check passed.
  bool Run() {
    const bool serves = testing::Serves(*probe_);
    const Footprint start = Now();
    Print("at the start", start);
    Connect();
    SendMostAtOnce();
    SendUntil(std::max(kSettledRequestsMin, flags_.requests / 10));
    Print("after the first part", Now());
    AwaitRest();
    const Footprint settled = Now();
    Print("then at rest", settled);
    SendUntil(flags_.requests);
    Print("at the end", Now());
    const bool right = CheckCounts();
    const bool holds = CheckMemory(settled);
    workers_.clear();
    hostile_.clear();
    const bool gone = AwaitGone(start);
    return serves && right && holds && gone;
  }

 private:
  Footprint Now() { return Footprint(server_.process().pid()); }

  void Connect() {
    for (int i = 0; i < kWorkers; ++i) {
      workers_.push_back(
          std::make_unique<SoakWorker>(server_.address(), "unix:" + path_,
                                       static_cast<uint64_t>(flags_.seed * kWorkers + i), counts_));
    }
    for (int64_t i = 0; i < flags_.hostile; ++i) {
      hostile_.push_back(std::make_unique<HostileClient>(
          server_.address(), path_, static_cast<uint64_t>(flags_.seed * 1000 + i)));
    }
  }

  void SendMostAtOnce() {
    std::latch all(kWorkers);
    Join(Start(workers_, [&all](SoakWorker& worker) {
      all.arrive_and_wait();
      for (int i = 0; i < 3; ++i) worker.SendMost();
    }));
    for (const auto& hostile : hostile_) hostile->ActAll();
  }

  // Runs until `requests` answers have arrived in all, with hostile clients in parallel.
  void SendUntil(int64_t requests) {
    Pace pace;
    std::vector<std::thread> hostile = Start(hostile_, [&pace](HostileClient& client) {
      while (pace.AwaitTurn()) client.ActOnce();
      client.Leave();
    });
    Join(Start(workers_, [&](SoakWorker& worker) {
      while (counts_.answered() < requests) {
        worker.SendOne();
        pace.CountRequest();
      }
    }));
    pace.Stop();
    Join(std::move(hostile));
  }

  // Returns when the server has released the memory that it does not need.
  void AwaitRest() {
    testing::MemoryWatch watch(server_.process().pid());
    int64_t least = watch.now_bytes();
    while (watch.AwaitAtMost(least - kNoiseBytes, kRest)) least = watch.now_bytes();
  }

  // The clients are still connected.
  bool CheckMemory(const Footprint& settled) {
    const auto most =
        static_cast<int64_t>(kGrowthMax * static_cast<double>(settled.own_bytes)) + kMoreBytesMax;
    AwaitRest();
    const Footprint end = Now();
    Print("then at rest", end);
    const int64_t mapped_max = kWorkers * SoakWorker::kMappedBytesMax;
    std::printf("measured: want at most %.1f MiB, %.1f MiB of clients' mapped\n", Mebibytes(most),
                Mebibytes(mapped_max));
    return end.own_bytes <= most && end.mapped_bytes <= mapped_max;
  }

  bool CheckCounts() const {
    std::printf("measured: %d requests: %d answered, %d cancelled, %d invalid, %d wrong\n",
                static_cast<int>(counts_.answered()), static_cast<int>(counts_.ok),
                static_cast<int>(counts_.cancelled), static_cast<int>(counts_.invalid),
                static_cast<int>(counts_.wrong));
    int64_t unanswered = 0;
    for (const auto& hostile : hostile_) {
      std::printf("measured: hostile acts:");
      for (size_t act = 0; act < HostileClient::kActs; ++act) {
        std::printf(" %d %s,", static_cast<int>(hostile->counts().acts[act]),
                    HostileClient::NameOf(act));
      }
      std::printf(" %d without the answer that they were owed\n",
                  static_cast<int>(hostile->counts().unanswered));
      unanswered += hostile->counts().unanswered;
    }
    const bool expected = !::testing::UnitTest::GetInstance()->Failed();
    return counts_.wrong == 0 && unanswered == 0 && expected;
  }

  // Waits until the server has unmapped its clients' memory and is near its resources of the start.
  // False: not in time, or the server does not answer.
  bool AwaitGone(const Footprint& start) {
    const int descriptors_max = start.descriptors + kMoreDescriptorsMax;
    const int threads_max = start.threads + MoreThreadsMax();
    const auto deadline = std::chrono::steady_clock::now() + kGoneMax;
    while (true) {
      const bool serves = testing::Serves(*probe_);
      const Footprint now = Now();
      const bool gone = now.mapped_bytes <= start.mapped_bytes &&
                        now.descriptors <= descriptors_max && now.threads <= threads_max;
      if (serves && !gone && std::chrono::steady_clock::now() < deadline) continue;
      Print("when all have gone", now);
      std::printf("measured: then, want no clients' memory, at most %d descriptors, %d threads\n",
                  descriptors_max, threads_max);
      return serves && gone;
    }
  }

  const Flags flags_;
  const std::string path_ = testing::TemporaryFolder() + "/rope.sock";
  // The table cache fills this budget within the first requests, so that later growth is not the
  // cache's.
  testing::TestServer server_{{"--listen=unix:" + path_, "--log_level=error",
                               "--table_cache_bytes=16777216", "--enable_shared_memory"}};
  const std::unique_ptr<v1::RopeService::Stub> probe_ = server_.NewStub();
  SoakCounts counts_;
  std::vector<std::unique_ptr<SoakWorker>> workers_;
  std::vector<std::unique_ptr<HostileClient>> hostile_;
};

}  // namespace
}  // namespace rope::bench

int main(int argc, char** argv) {
  rope::bench::Flags flags;
  const auto app = rope::proto::NewApp(
      "rope_soak", "rope_soak: sends mixed requests and watches what the server holds");
  rope::bench::AddFlags(*app, flags);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "--help") return std::printf("%s", app->help().c_str()) < 0;
  }
  const absl::Status status = rope::proto::ParseFlags(*app, arguments);
  if (!status.ok()) {
    std::fprintf(stderr, "rope_soak: %s\n", std::string(status.message()).c_str());
    return rope::proto::kExitUsage;
  }
  rope::server::PrepareProcess();
  return rope::bench::Soak(flags).Run() ? 0 : 1;
}
