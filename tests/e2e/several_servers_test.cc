// Clients of several servers, and clients after fork.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/e2e/random_jobs.h"
#include "tests/support/metrics_page.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

// LeakSanitizer asks it at exit. In a forked child it knows none of the parent's threads, and takes
// their memory for lost.
static bool is_forked_child = false;
extern "C" int __lsan_is_turned_off() {
  return is_forked_child ? 1 : 0;
}

namespace rope::testing {
namespace {

using client::Client;
using client::RotateReply;
using client::RotateRequest;
using client::Transport;

// One client and three servers; and a server that goes and comes back under asynchronous calls.

// Threads that call over and over.
class Callers {
 public:
  Callers(const Client& client, int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, &client, i] {
        RandomJobs jobs(static_cast<uint32_t>(i + 1));
        while (!done_) Take(*jobs.Next(), client);
      });
    }
  }
  ~Callers() { Stop(); }
  void Await(int more) const {
    const int enough = calls_ + more;
    while (calls_ < enough) std::this_thread::yield();
  }
  void Stop() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int calls() const { return calls_; }
  // REQUIRES: stopped.
  const std::vector<std::string>& wrong() const { return wrong_; }

 private:
  void Take(const Job& job, const Client& client) {
    const std::string wrong = job.Check(client.Rotate(job.request()));
    ++calls_;
    if (wrong.empty()) return;
    const std::lock_guard<std::mutex> lock(mu_);
    wrong_.push_back(wrong);
  }

  std::atomic<bool> done_ = false;
  std::atomic<int> calls_ = 0;
  std::mutex mu_;
  std::vector<std::string> wrong_;  // guarded by mu_
  std::vector<std::thread> threads_;
};

class SeveralServersTest : public ::testing::Test {
 protected:
  static constexpr int kThreads = 8;

  SeveralServersTest() {
    for (int i = 0; i < 3; ++i) {
      servers_.push_back(std::make_unique<TestServer>(
          std::vector<std::string>{"--metrics_listen=127.0.0.1:0", "--drain_lead=2s"}));
    }
  }
  Client Connected() const {
    return Client::Connect(absl::StrCat(servers_[0]->address(), ",", servers_[1]->address(), ",",
                                        servers_[2]->address()))
        .value();
  }
  double RequestsOf(const TestServer& server) const {
    return Scrape(MetricsPort(server)).Value(CallsOf("Rotate"));
  }

  std::vector<std::unique_ptr<TestServer>> servers_;
};

TEST_F(SeveralServersTest, CallsTakeTurns) {
  const Client client = Connected();
  Callers callers(client, kThreads);
  for (const auto& server : servers_) {  // each is found once it says that it serves
    while (RequestsOf(*server) < 1) callers.Await(kThreads);
  }
  std::vector<double> before;
  for (const auto& server : servers_) before.push_back(RequestsOf(*server));
  callers.Await(600);
  callers.Stop();
  EXPECT_THAT(callers.wrong(), IsEmpty());
  double all = 0;
  for (size_t i = 0; i < servers_.size(); ++i) {
    EXPECT_GT(RequestsOf(*servers_[i]) - before[i], 150);
    all += RequestsOf(*servers_[i]);
  }
  EXPECT_EQ(all, callers.calls());
}

TEST_F(SeveralServersTest, APreparedRotationIsKnownToAllAfterAFewCalls) {
  const Client client = Connected();
  std::vector<float> values = {1, 0};
  client::RotateRequest request;
  request.rope.config_json = R"({"model_type": "llama", "rope_theta": 10000.0, "head_dim": 2})";
  request.tensors = {
      {.layout = "SD", .shape = {1, 2}, .data = values.data(), .output = values.data()}};
  ASSERT_OK(prepared, client.Prepare(request));
  request = {.prepared = *prepared,
             .positions = {.start = 0},
             .tensors = {{.data = values.data(), .output = values.data()}}};
  for (const auto& server : servers_) {
    const auto is_prepared = [&] {
      return Scrape(MetricsPort(*server)).Value(CallsOf("Prepare")) >= 1;
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_prepared() && std::chrono::steady_clock::now() < end) {
      ASSERT_THAT(client.Rotate(request), IsOk());
    }
    EXPECT_TRUE(is_prepared());
  }
}

TEST_F(SeveralServersTest, AServerThatDrainsFailsNoCall) {
  const Client client = Connected();
  Callers callers(client, kThreads);
  callers.Await(200);
  servers_[0]->process().Signal(SIGTERM);
  EXPECT_EQ(servers_[0]->process().Wait(), 0);
  callers.Await(200);
  callers.Stop();
  EXPECT_THAT(callers.wrong(), IsEmpty());
}

// Half of the calls are in place. They are repeated too: a message has a copy of the tensors.
TEST_F(SeveralServersTest, AServerThatIsKilledFailsNoCall) {
  const Client client = Connected();
  Callers callers(client, kThreads);
  callers.Await(200);
  servers_[0]->process().Signal(SIGKILL);
  callers.Await(600);
  callers.Stop();
  EXPECT_THAT(callers.wrong(), IsEmpty());
  std::printf("measured: one of three servers killed: %d calls, none failed\n", callers.calls());
}

// GetParam(): the transport of the calls.
class RestartedServerTest : public ::testing::TestWithParam<Transport> {
 protected:
  static constexpr int kCalls = 10000;

  std::unique_ptr<TestServer> Started() const {
    return std::make_unique<TestServer>(std::vector<std::string>{
        "--enable_shared_memory", "--listen=" + target_, "--log_level=error"});
  }

  const std::string target_ = "unix:" + TemporaryFolder() + "/s";
};

TEST_P(RestartedServerTest, EveryOneOfTenThousandCallsCompletes) {
  auto server = Started();
  const Client client =
      Client::Connect(target_, {.transports = {GetParam(), Transport::kInline}}).value();
  std::vector<float> values = {1, 0};
  std::vector<std::vector<float>> results(kCalls, std::vector<float>(2));
  std::vector<std::future<Result<RotateReply>>> replies;
  for (int i = 0; i < kCalls; ++i) {
    client::RotateRequest request;
    request.rope.config_json = R"({"model_type": "llama", "rope_theta": 10000.0, "head_dim": 2})";
    request.positions.start = 0;
    request.tensors = {
        {.layout = "SD", .shape = {1, 2}, .data = values.data(), .output = results[i].data()}};
    replies.push_back(client.RotateFuture(request, {.attempts_max = 8}));
    if (i == kCalls / 2) {
      server->process().Signal(SIGKILL);
      server->process().Wait();
      server = Started();
    }
  }
  int right = 0;
  for (int i = 0; i < kCalls; ++i) {
    const Result<RotateReply> reply = replies[i].get();
    if (reply.ok()) {
      EXPECT_EQ(results[i], values);
      ++right;
    } else {
      EXPECT_THAT(reply.status().code(),
                  AnyOf(StatusCode::kUnavailable, StatusCode::kResourceExhausted,
                        StatusCode::kDeadlineExceeded));
    }
  }
  std::printf("measured: %s: %d of %d calls answered over a restart\n", Name(GetParam()), right,
              kCalls);
  EXPECT_GE(right, kCalls * 99 / 100);
  EXPECT_THAT(client.Health(), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Transports, RestartedServerTest,
                         ::testing::Values(Transport::kInline, Transport::kMemfd, Transport::kRing),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// A program that forks after it has connected.
// What `child` returns in a forked process; -1: it has not ended within a minute, or by a signal.
int InChild(const std::function<int()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    is_forked_child = true;
    alarm(60);
    _exit(child());
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool IsOfParent(const Status& status) {
  return status.code() == StatusCode::kFailedPrecondition &&
         status.message().find("connect in the child") != std::string::npos;
}

class ForkTest : public ::testing::TestWithParam<Transport> {
 protected:
  Client Connected() const {
    if (GetParam() == Transport::kInProcess)
      return embedded::Connect({}, {.arena_bytes = 1 << 20}).value();
    return Client::Connect(target_, {.arena_bytes = 1 << 20, .transports = {GetParam()}}).value();
  }
  RotateRequest Request() {
    RotateRequest request;
    request.rope.model = "llama-3.1-8b";
    request.positions.start = 0;
    request.tensors = {
        {.layout = "SHD", .shape = {1, 1, 128}, .data = values_.data(), .output = values_.data()}};
    return request;
  }

  const std::string target_ = "unix:" + TemporaryFolder() + "/s";
  TestServer server_{{"--enable_shared_memory", "--listen=" + target_}};
  std::vector<float> values_ = std::vector<float>(128, 1);
};

TEST_P(ForkTest, TheChildsCallsFailAndTheParentsGoOn) {
  auto client = std::make_unique<Client>(Connected());
  ASSERT_THAT(client->RotateFuture(Request()).get(), IsOk());
  ASSERT_THAT(client->arena().Allocate(64), IsOk());
  const int failed = InChild([&] {
    if (!IsOfParent(client->Rotate(Request()).status())) return 1;
    if (!IsOfParent(client->RotateFuture(Request()).get().status())) return 2;
    if (!IsOfParent(client->Prepare(Request()).status())) return 3;
    if (!IsOfParent(client->Health().status())) return 4;
    if (!IsOfParent(client->Fence())) return 5;
    if (client->arena().Allocate(64).ok()) return 6;
    client.reset();
    return 0;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_THAT(client->Rotate(Request()), IsOk());
  EXPECT_THAT(client->RotateFuture(Request()).get(), IsOk());
}

TEST_P(ForkTest, TheChildConnectsInProcessAndIsToldWhyToNoServer) {
  embedded::Enable();
  const Client shared = Client::Connect("inproc:").value();
  const Client client = Connected();
  ASSERT_THAT(client.RotateFuture(Request()).get(), IsOk());
  const int failed = InChild([&] {
    const Status refused = Client::Connect(target_).status();
    if (refused.code() != StatusCode::kFailedPrecondition) return 1;
    if (refused.detail().want.find("before the first connection") == std::string::npos) return 2;
    for (const Result<Client>& own : {Client::Connect("inproc:"), embedded::Connect()}) {
      if (!own.ok() || !own->Rotate(Request()).ok()) return 3;
      if (!own->RotateFuture(Request()).get().ok()) return 4;
    }
    return 0;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_THAT(client.Rotate(Request()), IsOk());
  EXPECT_THAT(shared.Rotate(Request()), IsOk());
}

// As most children end: with the destructors of threads and of static objects.
TEST_P(ForkTest, AChildThatExitsHarmsNobody) {
  const Client client = Connected();
  ASSERT_THAT(client.Rotate(Request()), IsOk());
  ASSERT_THAT(client.RotateFuture(Request()).get(), IsOk());
  EXPECT_EQ(InChild([]() -> int { exit(7); }), 7);
  EXPECT_THAT(client.Rotate(Request()), IsOk());
  EXPECT_THAT(client.RotateFuture(Request()).get(), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Transports, ForkTest,
                         ::testing::Values(Transport::kInline, Transport::kMemfd, Transport::kRing,
                                           Transport::kInProcess),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

}  // namespace
}  // namespace rope::testing
