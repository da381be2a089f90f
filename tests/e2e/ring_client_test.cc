// Calls of the client library through a ring, with a real server that is busy, stops, ends or dies.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/ipc/ring.h"
#include "rope/client.h"
#include "tests/support/metrics_page.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::ConnectOptions;
using client::RotateReply;
using client::RotateRequest;
using client::Slot;
using client::Transport;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kTokens = 16;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 32;
constexpr int64_t kElements = kTokens * kHeads * kHeadDim;
constexpr int64_t kBytes = kElements * 4;

// Files that this process has open and that are sockets.
std::set<std::string> Sockets() {
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    if (file.rfind("socket:", 0) == 0) sockets.insert(file);
  }
  return sockets;
}

// A tensor in a slot, rotated into another; how it is written and looked at.
class Tensor {
 public:
  Tensor(const Client& client, int64_t position)
      : input_(client.arena().Allocate(kBytes).value()),
        output_(client.arena().Allocate(kBytes).value()) {
    request_.rope.config = client::RopeConfig{.head_dim = kHeadDim};
    request_.rope.pairing = client::Pairing::kHalf;
    request_.positions.start = position;
    request_.tensors = {{.layout = "SHD",
                         .shape = {kTokens, kHeads, kHeadDim},
                         .data = input_.data(),
                         .output = output_.data()}};
    Reset();
  }

  void Reset() {
    auto* const values = static_cast<float*>(input_.data());
    for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i % 23) - 11;
    std::memset(output_.data(), 0, kBytes);
  }
  RotateRequest& request() { return request_; }
  RotateRequest InPlace() const {
    RotateRequest request = request_;
    request.tensors[0].output = input_.data();
    return request;
  }
  std::vector<float> input() const { return Floats(input_); }
  std::vector<float> output() const { return Floats(output_); }

 private:
  static std::vector<float> Floats(const Slot& slot) {
    const auto* begin = static_cast<const float*>(slot.data());
    return {begin, begin + kElements};
  }

  Slot input_;
  Slot output_;
  RotateRequest request_;
};

class RingClientTest : public ::testing::Test {
 protected:
  RingClientTest() { Start(); }

  void Start() {
    server_ = std::make_unique<TestServer>(
        std::vector<std::string>{"--enable_shared_memory", "--listen=" + target_,
                                 "--metrics_listen=127.0.0.1:0", "--log_level=error"});
  }
  Client Connected(Transport transport = Transport::kRing) const {
    ConnectOptions options;
    options.arena_bytes = 16 << 20;
    options.transports = {transport};
    return Client::Connect(target_, options).value();
  }
  double Value(const std::string& metric) const {
    return Scrape(MetricsPort(*server_)).Value(metric);
  }
  void Signal(int signal) const { server_->process().Signal(signal); }

  const std::string target_ = "unix:" + TemporaryFolder() + "/ring.sock";
  std::unique_ptr<TestServer> server_;
};

// What threads that call over and over have seen; each at a position of its own.
class Callers {
 public:
  Callers(const Client& client, const Client& by_rpc, int threads) {
    for (int i = 0; i < threads; ++i) {
      Tensor expected(by_rpc, 1000 * i);
      EXPECT_TRUE(by_rpc.Rotate(expected.request()).ok());
      threads_.emplace_back([this, &client, i, expected = expected.output()] {
        Tensor tensor(client, 1000 * i);
        while (!done_ && CallOnce(client, tensor, expected)) {
        }
        ++ended_;
      });
    }
  }
  ~Callers() { Join(); }

  // Until so many calls were answered.
  void Await(int answers) const {
    while (right_ < answers && ended_ == 0) std::this_thread::yield();
  }
  void Stop() { done_ = true; }
  // Until each thread has ended, which a failure does too.
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int right() const { return right_; }
  int wrong() const { return wrong_; }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  bool CallOnce(const Client& client, Tensor& tensor, const std::vector<float>& expected) {
    // Every failure shows.
    const auto reply = client.Rotate(tensor.request(), {.timeout = seconds(60), .attempts_max = 1});
    if (reply.ok()) {
      ++(tensor.output() == expected ? right_ : wrong_);
      tensor.Reset();
      return true;
    }
    const std::lock_guard<std::mutex> lock(mu_);
    errors_.push_back(reply.status().ToString());
    return false;
  }

  std::atomic<bool> done_ = false;
  std::atomic<int> right_ = 0;
  std::atomic<int> wrong_ = 0;
  std::atomic<int> ended_ = 0;
  std::mutex mu_;
  std::vector<std::string> errors_;  // guarded by mu_
  std::vector<std::thread> threads_;
};

TEST_F(RingClientTest, MoreThreadsThanSlotsGetTheirOwnResults) {
  const Client client = Connected();
  const Client by_rpc = Connected(Transport::kMemfd);
  EXPECT_EQ(client.transport().transport, Transport::kRing);
  EXPECT_EQ(Value("rope_rings"), 1) << "the other has none";
  Callers callers(client, by_rpc, static_cast<int>(proto::kRingSlots) + 16);
  callers.Await(8000);
  callers.Stop();
  callers.Join();
  EXPECT_GE(callers.right(), 8000);
  EXPECT_EQ(callers.wrong(), 0);
  EXPECT_THAT(callers.errors(), SizeIs(0));
  EXPECT_EQ(client.transport().transport, Transport::kRing);
}

TEST_F(RingClientTest, StoppedServerExceedsDeadlinesAndServesAgainWhenItGoesOn) {
  const Client client = Connected();
  const Client by_rpc = Connected(Transport::kMemfd);
  Tensor expected(by_rpc, 1000);
  ASSERT_TRUE(by_rpc.Rotate(expected.request()).ok());
  Tensor tensor(client, 1000);
  ASSERT_TRUE(client.Rotate(tensor.request()).ok());
  const std::set<std::string> sockets = Sockets();

  Signal(SIGSTOP);
  // Each slot once, and a few that find none and go as RPCs.
  for (uint32_t call = 0; call < proto::kRingSlots + 4; ++call) {
    const Status late = client.Rotate(tensor.request(), {.timeout = milliseconds(2)}).status();
    ASSERT_EQ(late.code(), StatusCode::kDeadlineExceeded) << call;
    EXPECT_TRUE(late.detail().may_have_executed);
    EXPECT_EQ(late.message() == "ring: no answer in time", call < proto::kRingSlots) << call;
  }
  Signal(SIGCONT);

  for (int call = 0; call < 200; ++call) {
    tensor.Reset();
    ASSERT_OK(reply, client.Rotate(tensor.request()));
    ASSERT_EQ(tensor.output(), expected.output()) << call;
  }
  EXPECT_EQ(client.transport().transport, Transport::kRing);
  EXPECT_EQ(Sockets(), sockets) << "the same connections";
  EXPECT_EQ(Value("rope_rings"), 1);
}

// It would turn what the program has written there since.
TEST_F(RingClientTest, CallThatWasGivenUpBeforeItWasReadDoesNotRun) {
  const Client client = Connected();
  Tensor tensor(client, 1000);
  const std::vector<float> raw = tensor.input();
  Signal(SIGSTOP);
  for (int call = 0; call < 5; ++call) {
    EXPECT_EQ(client.Rotate(tensor.InPlace(), {.timeout = milliseconds(1)}).status().code(),
              StatusCode::kDeadlineExceeded);
  }
  Signal(SIGCONT);
  ASSERT_TRUE(client.Rotate(tensor.request()).ok());  // in order: those before are done
  EXPECT_EQ(tensor.input(), raw);
}

TEST_F(RingClientTest, AsynchronousCallThatWasCancelledBeforeItWasReadDoesNotRun) {
  const Client client = Connected();
  Tensor tensor(client, 1000);
  const std::vector<float> raw = tensor.input();
  ASSERT_TRUE(client.Rotate(tensor.request()).ok());
  Signal(SIGSTOP);
  std::vector<std::future<Status>> answers;
  std::vector<client::Call> calls;
  for (int i = 0; i < 5; ++i) {
    auto answer = std::make_shared<std::promise<Status>>();
    answers.push_back(answer->get_future());
    calls.push_back(client.RotateAsync(
        tensor.InPlace(), [answer](const auto& reply) { answer->set_value(reply.status()); }));
  }
  for (const client::Call& call : calls) call.Cancel();
  for (std::future<Status>& answer : answers) {
    const Status status = answer.get();
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    EXPECT_TRUE(status.detail().may_have_executed) << "the server has not answered";
  }
  Signal(SIGCONT);
  ASSERT_TRUE(client.Rotate(tensor.request()).ok());  // in order: those before are done
  EXPECT_EQ(tensor.input(), raw);
}

TEST_F(RingClientTest, AsynchronousCallsInFlightEndWhenTheServerIsKilled) {
  const Client client = Connected();
  Tensor tensor(client, 1000);
  Signal(SIGSTOP);
  std::vector<std::future<Result<RotateReply>>> replies;
  for (int i = 0; i < 10; ++i) {
    replies.push_back(client.RotateFuture(tensor.request(), {.attempts_max = 1 + i % 2}));
  }
  Signal(SIGKILL);
  for (auto& reply : replies) {
    const Status status = reply.get().status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_TRUE(status.detail().may_have_executed);
  }
}

// The last client goes in a callback that runs on the thread of the ring's completions.
TEST_F(RingClientTest, LastClientMayGoInACallbackOfTheRing) {
  auto client = std::make_shared<Client>(Connected());
  auto tensor = std::make_unique<Tensor>(*client, 1000);
  std::promise<bool> done;
  const RotateRequest request = tensor->request();
  client->RotateAsync(request, [&, last = client](const auto& reply) mutable {
    tensor.reset();
    last.reset();
    done.set_value(reply.ok());
  });
  client.reset();
  EXPECT_TRUE(done.get_future().get());
}

TEST_F(RingClientTest, SigtermUnderLoadAnswersOrSaysUnavailable) {
  const Client client = Connected();
  const Client by_rpc = Connected(Transport::kMemfd);
  Callers callers(client, by_rpc, 8);
  callers.Await(200);
  Signal(SIGTERM);
  callers.Join();
  EXPECT_EQ(server_->process().Wait(), 0);
  EXPECT_GE(callers.right(), 200);
  EXPECT_EQ(callers.wrong(), 0);
  EXPECT_THAT(callers.errors(), SizeIs(8));
  EXPECT_THAT(callers.errors(), Each(HasSubstr("UNAVAILABLE: ")));
}

TEST_F(RingClientTest, KilledServerIsFoundAgainWhenItIsBack) {
  const Client client = Connected();
  for (int life = 0; life < 3; ++life) {
    const Client by_rpc = Connected(Transport::kMemfd);
    Callers callers(client, by_rpc, 4);
    callers.Await(200);
    Signal(SIGKILL);
    server_->process().Wait();
    callers.Join();
    EXPECT_EQ(callers.wrong(), 0);
    EXPECT_THAT(callers.errors(), SizeIs(4));
    EXPECT_THAT(callers.errors(), Each(HasSubstr("UNAVAILABLE: ")));
    Start();
    Tensor tensor(client, 1000);
    ASSERT_TRUE(client.Rotate(tensor.request()).ok());
    EXPECT_EQ(client.transport().transport, Transport::kRing);
    EXPECT_EQ(Value("rope_rings"), 1);
  }
}

}  // namespace
}  // namespace rope::testing
