// Tensors anywhere in the program's memory, which the client stages in memory that it shares with a
// real server.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rope/client.h"
#include "tests/e2e/random_jobs.h"
#include "tests/e2e/two_tensors.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::RotateReply;
using client::RotateRequest;
using client::Transport;

class StagingTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags = {"--enable_shared_memory"}) {
    std::vector<std::string> all = flags;
    all.push_back("--listen=" + target_);
    server_ = std::make_unique<TestServer>(all);
  }
  // Connects with the staging transports only.
  Client Staging() const {
    return Client::Connect(target_, {.transports = {Transport::kRing, Transport::kMemfd}}).value();
  }
  Client Inline() const {
    return Client::Connect(target_, {.transports = {Transport::kInline}}).value();
  }

  RotateRequest RequestFor() const { return tensors_.Request(); }
  static std::vector<std::string> BytesOf(const Result<RotateReply>& reply) {
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? testing::BytesOf(*reply) : std::vector<std::string>();
  }

  const std::string target_ = "unix:" + TemporaryFolder() + "/staging.sock";
  std::unique_ptr<TestServer> server_;
  const TwoTensors tensors_;
};

// Some requests find room and others do not; each must get its own answer.
TEST_F(StagingTest, ThreadsOfOneClientShareTheMemory) {
  constexpr int kThreads = 6;
  constexpr int kJobs = 120;  // for each client
  Start();
  const Client client = Client::Connect(target_, {.staged_bytes = 600 << 10}).value();
  EXPECT_EQ(client.transport().transport, Transport::kRing);
  std::mutex mu;
  std::vector<std::string> wrong;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      RandomJobs jobs(40 + t);
      for (int i = 0; i < kJobs; ++i) {
        const std::unique_ptr<Job> job = jobs.Next();
        const Result<RotateReply> reply =
            i % 2 == 0 ? client.Rotate(job->request()) : client.RotateFuture(job->request()).get();
        const std::string why = job->Check(reply);
        if (why.empty()) continue;
        const std::lock_guard<std::mutex> lock(mu);
        wrong.push_back(why);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, IsEmpty());
}

// The server is killed and started again at the same path. It was working in the old memory.
TEST_F(StagingTest, RestartedServerGetsTheRequestAgain) {
  Start();
  const Client client = Staging();
  std::vector<float> values = tensors_.data;
  RotateRequest request = RequestFor();
  request.tensors.resize(1);
  const std::vector<std::string> expected = BytesOf(Inline().Rotate(request));
  request.tensors[0].data = request.tensors[0].output = values.data();
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
  EXPECT_EQ(client.Rotate(request, {.timeout = std::chrono::seconds(1)}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_TRUE(values == tensors_.data);
  Start();
  EXPECT_TRUE(BytesOf(client.Rotate(request)) == expected);
  EXPECT_EQ(client.transport().transport, Transport::kRing);
}

TEST_F(StagingTest, MoreThanAConnectionMayShareTravelsInline) {
  Start({"--enable_shared_memory", "--session_memory_bytes=1048576"});
  const Client client = Client::Connect(target_).value();
  EXPECT_EQ(client.transport().transport, Transport::kInline);
  EXPECT_THAT(client.transport().reason, HasSubstr("hello: got RESOURCE_EXHAUSTED"));
  EXPECT_TRUE(BytesOf(client.Rotate(RequestFor())) == BytesOf(Inline().Rotate(RequestFor())));
  const Client small = Client::Connect(target_, {.staged_bytes = 1 << 20}).value();
  EXPECT_EQ(small.transport().transport, Transport::kRing);
}

}  // namespace
}  // namespace rope::testing
