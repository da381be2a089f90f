// The client's stream against a real server: as messages over TCP, and through a ring.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/random_jobs.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::RotateReply;
using client::RotateRequest;
using client::RotateStream;
using client::Transport;

// A request for [tokens, 32, 128] zeros of llama-3.1-8b; the results are zeros too.
RotateRequest RequestFor(std::vector<float>& values, int64_t position) {
  RotateRequest request;
  request.rope.model = "llama-3.1-8b";
  request.positions.start = position;
  request.tensors = {{.layout = "SHD",
                      .shape = {static_cast<int64_t>(values.size()) / (32 * 128), 32, 128},
                      .data = values.data(),
                      .output = values.data()}};
  return request;
}

class StreamTest : public ::testing::TestWithParam<Transport> {
 protected:
  static std::vector<std::string> Flags(const std::string& target) {
    if (GetParam() == Transport::kInline) return {};
    return {"--enable_shared_memory", "--listen=" + target};
  }
  RotateStream Open(const client::StreamOptions& options = {}) {
    return *client_.OpenStream(options);
  }

  void Stop() { server_.process().Signal(SIGSTOP); }

  const std::string path_ = "unix:" + TemporaryFolder() + "/stream.sock";
  TestServer server_{Flags(path_)};
  Client client_ = Client::Connect(GetParam() == Transport::kInline ? server_.address() : path_,
                                   {.transports = {GetParam()}})
                       .value();
};

INSTANTIATE_TEST_SUITE_P(Transports, StreamTest,
                         ::testing::Values(Transport::kInline, Transport::kRing),
                         [](const auto& transport) { return Name(transport.param); });

// Tests of a stream with a ring.
class RingStreamTest : public StreamTest {};
INSTANTIATE_TEST_SUITE_P(Transports, RingStreamTest, ::testing::Values(Transport::kRing));

TEST_P(StreamTest, EveryAnswerOfManyThreadsIsRight) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 200;  // for each thread
  std::mutex mu;
  std::vector<std::string> wrong;
  std::atomic<int> right = 0;
  RotateStream stream = Open({.requests_max = 64});
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      RandomJobs jobs(100 + t);
      for (int i = 0; i < kRequests; ++i) {
        const std::shared_ptr<Job> job = jobs.Next();
        const Status sent =
            stream.Rotate(job->request(), [&, job](const Result<RotateReply>& reply) {
              const std::string why = job->Check(reply);
              if (why.empty()) {
                ++right;
              } else {
                const std::lock_guard<std::mutex> lock(mu);
                wrong.push_back(why);
              }
            });
        EXPECT_TRUE(sent.ok()) << sent.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stream.Finish().ToString(), "OK");
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_EQ(right, kThreads * kRequests);
}

TEST_P(StreamTest, BadRequestIsRefusedByNameAndTheOthersAreAnswered) {
  RotateStream stream = Open();
  std::vector<float> values(32 * 128);
  auto first = stream.RotateFuture(RequestFor(values, 7));
  auto refused = stream.RotateFuture(RequestFor(values, -1));
  auto last = stream.RotateFuture(RequestFor(values, 7));
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(last.get().ok());
  const Status status = refused.get().status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.detail().field, "positions.start");
  EXPECT_FALSE(status.detail().may_have_executed);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_P(StreamTest, RequestWhoseIdTheServerCannotReadIsAnsweredToo) {
  RotateStream stream = Open();
  std::vector<float> values(32 * 128);
  RotateRequest garbage = RequestFor(values, 7);
  garbage.rope.model = "\xff";  // invalid UTF-8
  EXPECT_EQ(stream.RotateFuture(garbage).get().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(stream.RotateFuture(RequestFor(values, 7)).get().ok());
}

TEST_P(StreamTest, MoreBytesInFlightThanTheServerTakesFlowAsTheyAreAnswered) {
  constexpr size_t kRequests = 32;
  RotateStream stream = Open({.bytes_max = int64_t{1} << 30});
  std::vector<std::vector<float>> values(kRequests, std::vector<float>(256 * 32 * 128));  // 4 MiB
  std::vector<std::future<Result<RotateReply>>> replies;
  for (auto& each : values) replies.push_back(stream.RotateFuture(RequestFor(each, 0)));
  for (auto& reply : replies) EXPECT_TRUE(reply.get().ok());
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_P(StreamTest, DrainAnswersWhatItAcceptedAndEndsTheStreamUnavailable) {
  RotateStream stream = Open();
  std::vector<float> values(32 * 128);
  ASSERT_TRUE(stream.RotateFuture(RequestFor(values, 1)).get().ok());
  std::vector<std::vector<float>> many(50, std::vector<float>(32 * 128));
  std::vector<std::future<Result<RotateReply>>> replies;
  for (auto& each : many) replies.push_back(stream.RotateFuture(RequestFor(each, 0)));
  server_.process().Signal(SIGTERM);
  for (auto& reply : replies) {
    const auto result = reply.get();
    EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kUnavailable)
        << result.status().ToString();
  }
  while (stream.RotateFuture(RequestFor(values, 1)).get().ok()) {
  }
  EXPECT_EQ(stream.Finish().code(), StatusCode::kUnavailable);
  EXPECT_EQ(server_.process().Wait(), 0);
}

TEST_P(StreamTest, ServerThatDiesLeavesUnansweredRequestsThatMayHaveRun) {
  RotateStream stream = Open();
  std::vector<float> values(32 * 128);
  ASSERT_TRUE(stream.RotateFuture(RequestFor(values, 1)).get().ok());
  Stop();  // the server still receives requests in its socket or ring, and answers none
  auto reply = stream.RotateFuture(RequestFor(values, 1));
  EXPECT_EQ(reply.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  server_.process().Signal(SIGKILL);
  const Status status = reply.get().status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_TRUE(status.detail().may_have_executed);
  EXPECT_EQ(stream.Finish().code(), StatusCode::kUnavailable);
}

TEST_P(StreamTest, CancelledStreamsLeaveAServerThatAnswers) {
  std::vector<std::vector<float>> values(20, std::vector<float>(64 * 32 * 128));
  for (int i = 0; i < 5; ++i) {
    RotateStream stream = Open();
    for (auto& each : values) {
      ASSERT_TRUE(stream.Rotate(RequestFor(each, 0), [](const Result<RotateReply>&) {}).ok());
    }
    stream.Cancel();
  }
  EXPECT_TRUE(Serves(*server_.NewStub()));
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
}

// A request without room in staging memory, or without a slot, travels as a message. Callbacks of
// both kinds of answers must take turns.
TEST_P(RingStreamTest, CallbacksOfMessagesAndOfTheRingRunOneAtATime) {
  constexpr int kRequests = 1500;
  const Client client =
      Client::Connect(path_, {.staged_bytes = 1 << 20, .transports = {Transport::kRing}}).value();
  RotateStream stream = client.OpenStream().value();
  std::atomic<int> running = 0;
  int most = 0;  // callbacks at the same time
  std::vector<std::string> wrong;
  RandomJobs jobs(7);
  for (int i = 0; i < kRequests; ++i) {
    const std::shared_ptr<Job> job = jobs.Next();
    const Status sent = stream.Rotate(job->request(), [&, job](const Result<RotateReply>& reply) {
      most = std::max(most, ++running);
      if (const std::string why = job->Check(reply); !why.empty()) wrong.push_back(why);
      --running;
    });
    ASSERT_TRUE(sent.ok()) << sent.ToString();
  }
  EXPECT_EQ(stream.Finish().ToString(), "OK");
  EXPECT_EQ(most, 1);
  EXPECT_THAT(wrong, IsEmpty());
}

TEST_P(RingStreamTest, EachCallbackSendsTheNextRequest) {
  constexpr int kRequests = 3000;
  RotateStream stream = Open();
  std::vector<float> values(32 * 128);
  std::promise<void> done;
  int answered = 0;
  std::function<void(const Result<RotateReply>&)> next = [&](const Result<RotateReply>& reply) {
    EXPECT_TRUE(reply.ok());
    if (++answered == kRequests) return done.set_value();
    EXPECT_TRUE(stream.Rotate(RequestFor(values, answered), next).ok());
  };
  ASSERT_TRUE(stream.Rotate(RequestFor(values, 0), next).ok());
  done.get_future().wait();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_P(RingStreamTest, LastClientMayGoInACallback) {
  auto client =
      std::make_unique<Client>(Client::Connect(path_, {.transports = {Transport::kRing}}).value());
  auto stream = std::make_unique<RotateStream>(client->OpenStream().value());
  std::vector<float> values(32 * 128);
  std::promise<void> done;
  const Status sent = stream->Rotate(RequestFor(values, 1), [&](const Result<RotateReply>& reply) {
    EXPECT_TRUE(reply.ok());
    stream.reset();
    client.reset();
    done.set_value();
  });
  ASSERT_TRUE(sent.ok());
  done.get_future().wait();
  EXPECT_TRUE(Open().RotateFuture(RequestFor(values, 1)).get().ok()) << "the server goes on";
}

// The answers of many small requests are announced in groups; the last group must be announced too.
TEST_P(RingStreamTest, MoreRequestsThanSlotsAreAllAnsweredThoughNoneFollows) {
  constexpr int kRequests = 3 * 256;
  for (int round = 0; round < 20; ++round) {
    RotateStream stream = Open();
    std::vector<std::vector<float>> values(kRequests, std::vector<float>(32 * 128));
    std::vector<std::future<Result<RotateReply>>> replies;
    for (auto& each : values) replies.push_back(stream.RotateFuture(RequestFor(each, round)));
    for (auto& reply : replies) EXPECT_TRUE(reply.get().ok());
  }
}

}  // namespace
}  // namespace rope::testing
