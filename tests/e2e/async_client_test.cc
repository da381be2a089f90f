// 64 asynchronous clients at once against a real server. Every answer must arrive and be right,
// also when half of the calls are cancelled.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/e2e/random_jobs.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Call;
using client::Client;
using client::RotateReply;

constexpr size_t kClients = 64;
constexpr int kInFlight = 4;            // for each client
constexpr int kRequestsPerClient = 32;  // fixed: 2048 in all

// Counts over all clients.
struct Tally {
  std::mutex mu;
  std::vector<std::string> wrong;  // guarded by mu
  std::atomic<int> right = 0;
  std::atomic<int> cancelled = 0;
};

// One client with several calls in flight: each callback starts the next call.
class Pipeline {
 public:
  Pipeline(const std::string& target, uint32_t seed, bool cancels, Tally& tally)
      : jobs_(seed), cancels_(cancels), tally_(tally), client_(*Client::Connect(target)) {}

  void Start() {
    for (int i = 0; i < kInFlight; ++i) Next();
  }
  void Wait() { done_.wait(); }
  // How many times each request's callback ran.
  std::vector<int> runs() const { return {runs_.begin(), runs_.end()}; }

 private:
  void Next() {
    Call now;
    Call before;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (started_ == kRequestsPerClient) return;
      const auto index = static_cast<size_t>(started_++);
      const std::shared_ptr<Job> job = jobs_.Next();
      // Every second request is cancelled: at once, or after the next one has started.
      const bool marked = cancels_ && jobs_.OneIn(2);
      const Call call = client_.RotateAsync(
          job->request(), [this, job, index, marked](const Result<RotateReply>& reply) {
            ++runs_[index];
            Count(*job, reply, marked);
            Next();
            done_.count_down();
          });
      before = std::exchange(later_, Call());
      if (marked) (jobs_.OneIn(2) ? now : later_) = call;
    }
    now.Cancel();
    before.Cancel();
  }

  void Count(const Job& job, const Result<RotateReply>& reply, bool marked) {
    if (marked && reply.status().code() == StatusCode::kCancelled) {
      ++tally_.cancelled;
      return;
    }
    const std::string wrong = job.Check(reply);
    if (wrong.empty()) {
      ++tally_.right;
      return;
    }
    const std::lock_guard<std::mutex> lock(tally_.mu);
    tally_.wrong.push_back(wrong);
  }

  std::mutex mu_;
  RandomJobs jobs_;  // guarded by mu_, as the members below
  int started_ = 0;
  Call later_;
  const bool cancels_;
  Tally& tally_;
  std::array<std::atomic<int>, kRequestsPerClient> runs_ = {};
  std::latch done_{kRequestsPerClient};
  Client client_;  // destroyed first: no callback runs after that
};

void RunClients(const std::string& target, bool cancels, Tally& tally) {
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  for (size_t i = 0; i < kClients; ++i) {
    pipelines.push_back(
        std::make_unique<Pipeline>(target, static_cast<uint32_t>(i + 1), cancels, tally));
  }
  for (const auto& pipeline : pipelines) pipeline->Start();
  for (const auto& pipeline : pipelines) pipeline->Wait();
  for (const auto& pipeline : pipelines) EXPECT_THAT(pipeline->runs(), Each(1));
}

constexpr int kRequests = static_cast<int>(kClients) * kRequestsPerClient;

TEST(AsyncClientTest, SixtyFourClientsGetEveryAnswerRight) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  Tally tally;
  RunClients(server.address(), /*cancels=*/false, tally);
  EXPECT_THAT(tally.wrong, IsEmpty());
  EXPECT_EQ(tally.right, kRequests);
  EXPECT_EQ(Scrape(MetricsPort(server)).Value(CallsOf("Rotate")), kRequests);
}

TEST(AsyncClientTest, NoRequestIsLostWhenHalfOfThemAreCancelled) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  Tally tally;
  RunClients(server.address(), /*cancels=*/true, tally);
  EXPECT_THAT(tally.wrong, IsEmpty());
  EXPECT_EQ(tally.right + tally.cancelled, kRequests);
  EXPECT_GT(tally.cancelled, kRequests / 8);  // the others were answered before the cancellation
  EXPECT_GE(tally.right, kRequests / 4);
  // The server still answers, and a drain finds no request left.
  EXPECT_TRUE(Serves(*server.NewStub()));
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
}

// After a cancelled call the server may still work on memory that no other call may use.
TEST(AsyncClientTest, NoStagedRequestIsLostOrMixedUpWhenHalfOfThemAreCancelled) {
  const std::string target = "unix:" + TemporaryFolder() + "/rope.sock";
  TestServer server({"--enable_shared_memory", "--listen=" + target});
  Tally tally;
  RunClients(target, /*cancels=*/true, tally);
  EXPECT_THAT(tally.wrong, IsEmpty());
  EXPECT_EQ(tally.right + tally.cancelled, kRequests);
  EXPECT_TRUE(Serves(*server.NewStub()));
}

}  // namespace
}  // namespace rope::testing
