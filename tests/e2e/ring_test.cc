// Rings of shared memory: by hand, and with the client.
#include "proto/ipc/ring.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rope/client.h"
#include "tests/support/metrics_page.h"
#include "tests/support/process.h"
#include "tests/support/ring_client.h"
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

// Calls through a ring, against a real server: all slots at once, wrong ones, and clients that mean
// no good or die.

const Sample kToken = {.tokens = 1, .heads = 4, .start = 1000};

std::string RandomBytes(size_t bytes, std::mt19937& random) {
  std::string result(bytes, '\0');
  for (char& byte : result) byte = static_cast<char>(random());
  return result;
}

class RingTest : public ::testing::Test {
 protected:
  double Value(const char* metric) { return Scrape(MetricsPort(server_)).Value(metric); }
  // Returns once the server has heard of those that went.
  void AwaitRings(double rings) {
    while (Value("rope_rings") != rings) {
    }
  }

  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{{"--enable_shared_memory", "--listen=unix:" + path_,
                      "--metrics_listen=127.0.0.1:0", "--log_level=error"}};
};

TEST_F(RingTest, AllSlotsAtOnceAreAnsweredEachWithItsOwn) {
  const RingClient client(path_, proto::kRingSlots * kToken.bytes());
  const auto sample = [](uint32_t slot) {
    Sample token = kToken;
    token.start = 7 * slot;
    return token;
  };
  for (int round = 0; round < 20; ++round) {
    for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) {
      const uint64_t offset = slot * kToken.bytes();
      sample(slot).Fill(client.memory().As<float>(offset));
      v1::RotateRequest request = sample(slot).InPlace(client.id(), offset);
      request.set_request_id(absl::StrCat("slot ", slot));
      client.ring().Send(slot, request.SerializeAsString());
    }
    for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) {
      v1::RotateResponse response;
      ASSERT_EQ(client.Await(slot, &response), "OK");
      EXPECT_EQ(response.request_id(), absl::StrCat("slot ", slot));
      EXPECT_LT(sample(slot).Error(client.memory().As<float>(slot * kToken.bytes())), 2e-6);
    }
  }
}

TEST_F(RingTest, SmallResultComesInTheReply) {
  const RingClient client(path_);
  kToken.Fill(client.memory().As<float>());
  v1::RotateResponse response;
  ASSERT_EQ(client.Rotate(kToken.Request(client.id(), 0), 0, &response), "OK");
  const std::string& raw = response.tensors(0).array().raw();
  ASSERT_EQ(raw.size(), kToken.bytes());
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  EXPECT_LT(kToken.Error(values.data()), 2e-6);
}

TEST_F(RingTest, GarbageInASlotIsAnErrorAndTheRingGoesOn) {
  const RingClient client(path_);
  std::mt19937 random(11);  // seeded: the same bytes each time
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{40}, size_t{700}, proto::kRingMessageBytes}) {
    EXPECT_THAT(client.Call(RandomBytes(bytes, random), 3),
                AnyOf(StartsWith("3 "), StartsWith("12 request: got unknown field")))
        << bytes;
    ASSERT_TRUE(client.RotatesRight(kToken, 0, 3));
  }
  EXPECT_FALSE(client.ring().IsClosed());
}

TEST_F(RingTest, RequestWhoseTimeIsUpIsNotRun) {
  const RingClient client(path_);
  kToken.Fill(client.memory().As<float>());
  client.ring().Write(0, kToken.InPlace(client.id(), 0).SerializeAsString(), /*timeout_us=*/-5);
  client.ring().Submit(0);
  EXPECT_THAT(client.Await(0), StartsWith("4 "));
  EXPECT_EQ(std::memcmp(client.memory().data(), kToken.Input().data(), kToken.bytes()), 0);
  EXPECT_TRUE(client.RotatesRight(kToken));
}

TEST_F(RingTest, ReplyTooLargeForItsSlotIsRefusedBeforeItRunsAndTheRingGoesOn) {
  const RingClient client(path_);
  const Sample large = {.tokens = 64, .heads = 8};
  large.Fill(client.memory().As<float>());
  v1::RotateResponse response;
  EXPECT_THAT(client.Rotate(large.Request(client.id(), 0), 5, &response),
              AllOf(StartsWith("8 reply: got"), HasSubstr("in a ring")));
  EXPECT_FALSE(response.error().may_have_executed());
  EXPECT_EQ(client.ring().slot(6).state.load(), ValueOf(proto::RingState::kFree));
  EXPECT_TRUE(client.RotatesRight(large, 0, 5)) << "in place there is nothing to send back";
}

TEST_F(RingTest, AsManyTensorsAsTheRequestHasRoomForFitTheReply) {
  const RingClient client(path_);
  v1::RotateRequest request = kToken.InPlace(client.id(), 0);
  const v1::Tensor first = request.tensors(0);
  while (request.tensors_size() < 64) {
    const auto offset = static_cast<uint64_t>(request.tensors_size()) * kToken.bytes();
    *request.add_tensors() = first;
    request.mutable_tensors()->rbegin()->mutable_array()->mutable_region()->set_offset(offset);
    if (request.ByteSizeLong() <= proto::kRingRequestBytes) continue;
    request.mutable_tensors()->RemoveLast();
    break;
  }
  ASSERT_GT(request.tensors_size(), 40);
  EXPECT_EQ(client.Rotate(request, 5), "OK");
}

TEST_F(RingTest, EachBrokenRuleClosesThatRingAndNothingElse) {
  constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();
  using Break = std::function<void(const RawRing&)>;
  const std::vector<std::pair<const char*, Break>> breaks = {
      {"index past the end", [](const RawRing& ring) { ring.Submit(proto::kRingSlots); }},
      {"huge index", [](const RawRing& ring) { ring.Submit(kHuge); }},
      {"length past the end",
       [](const RawRing& ring) {
         ring.Write(0, "");
         ring.slot(0).message_bytes.store(kHuge);
         ring.Submit(0);
       }},
      {"count that jumps",
       [](const RawRing& ring) {
         ring.shared().submitted.fetch_add(proto::kRingSlots + 1);
         ring.RingDoorbell();
       }},
      {"count that goes back",
       [](const RawRing& ring) {
         ring.shared().submitted.fetch_sub(1);
         ring.RingDoorbell();
       }},
  };
  const RingClient bystander(path_);
  for (const auto& [rule, break_it] : breaks) {
    SCOPED_TRACE(rule);
    RingClient client(path_);
    ASSERT_TRUE(client.RotatesRight(kToken));
    break_it(client.ring());
    client.ring().AwaitClosed();
    AwaitRings(1);
    EXPECT_TRUE(Serves(client.stub()));
    kToken.Fill(client.memory().As<float>());
    EXPECT_EQ(Text(Rotate(client.stub(), kToken.InPlace(client.id(), 0))), "OK");
    EXPECT_LT(kToken.Error(client.memory().As<float>()), 2e-6) << "its region is still there";
    EXPECT_TRUE(bystander.RotatesRight(kToken));
  }
}

TEST_F(RingTest, SlotThatIsSubmittedTwiceHurtsNobody) {
  const Sample large = {.tokens = 20'000, .heads = 64};
  RingClient client(path_, large.bytes());
  client.ring().Send(0, large.InPlace(client.id(), 0).SerializeAsString());
  client.ring().Submit(0);
  // It was answered in between, or it was not.
  while (!client.ring().IsClosed() && !client.ring().IsDone(0)) std::this_thread::yield();
  EXPECT_TRUE(Serves(client.stub()));
  EXPECT_TRUE(RingClient(path_).RotatesRight(kToken));
}

TEST_F(RingTest, KilledClientLosesItsRingAndHurtsNobody) {
  const RingClient bystander(path_);
  for (int i = 0; i < 10; ++i) {
    Process victim({VictimProgram(), "ring", path_});
    std::string line = victim.ReadLine();
    while (!line.empty() && line != "rotating") line = victim.ReadLine();
    ASSERT_EQ(line, "rotating");
    for (int j = 0; j < i; ++j) EXPECT_TRUE(bystander.RotatesRight(kToken));  // ever later
    EXPECT_EQ(Value("rope_rings"), 2);
    victim.Signal(SIGKILL);
    EXPECT_EQ(victim.Wait(), -SIGKILL);
    EXPECT_TRUE(bystander.RotatesRight(kToken));
    AwaitRings(1);
  }
  EXPECT_TRUE(bystander.RotatesRight(kToken));
  while (Value("rope_requests_in_flight") != 0) {
  }
}

TEST_F(RingTest, SigtermAnswersRefusesOrClosesButNeverForgets) {
  constexpr size_t kClients = 3;
  std::atomic<int> answered = 0;
  std::vector<std::vector<std::string>> wrong(kClients);
  std::deque<RingClient> connected;
  for (size_t i = 0; i < kClients; ++i) connected.emplace_back(path_);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const RingClient& client = connected[i];
      while (true) {
        kToken.Fill(client.memory().As<float>());
        const std::string answer = client.Rotate(kToken.InPlace(client.id(), 0));
        if (answer == "closed") return;
        const bool right = answer == "OK" && kToken.Error(client.memory().As<float>()) < 2e-6;
        if (!right && !answer.starts_with("14 ")) wrong[i].push_back(answer);
        answered.fetch_add(1);
      }
    });
  }
  while (answered.load() < 100) std::this_thread::yield();
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
  for (std::thread& client : clients) client.join();  // which end with `closed` alone
  for (const auto& answers : wrong) EXPECT_THAT(answers, ::testing::IsEmpty());
}

// Writes what it likes, where it likes, while its ring is served.
void Vandalise(const std::string& path, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](size_t bound) { return static_cast<uint32_t>(random() % bound); };
  const RingClient client(path, 1 << 16);
  const RawRing& ring = client.ring();
  const std::string message = kToken.InPlace(client.id(), 0).SerializeAsString();
  const size_t spoiled = below(2) == 0 ? sizeof(proto::Ring) : 4096;  // all of it, or its head
  // Some keep to the rules for a while: what they spoil is under way.
  const uint32_t polite = below(4);
  for (int i = 0; i < 500; ++i) {
    const uint32_t slot = below(proto::kRingSlots);
    if (below(20) < 6 * polite + 1) {
      ring.Send(slot, message);
      const std::string bytes = RandomBytes(below(64), random);
      std::memcpy(ring.slot(slot).message.data() + below(200), bytes.data(), bytes.size());
      ring.slot(below(proto::kRingSlots)).state.store(below(5));
    } else {
      const std::string bytes = RandomBytes(1 + below(300), random);
      std::memcpy(ring.memory().data() + below(spoiled - bytes.size()), bytes.data(), bytes.size());
      ring.RingDoorbell();
    }
  }
}

TEST_F(RingTest, ClientThatWritesAllOverItsRingHurtsNobody) {
  const RingClient bystander(path_);
  std::atomic<bool> stop = false;
  std::thread vandal([&] {
    for (uint32_t seed = 1; seed <= 60; ++seed) Vandalise(path_, seed);
    stop = true;
  });
  int rounds = 0;
  while (!stop) {
    EXPECT_TRUE(bystander.RotatesRight(kToken, 0, static_cast<uint32_t>(++rounds) % 64));
  }
  vandal.join();
  RecordProperty("rounds", rounds);
  AwaitRings(1);
  EXPECT_TRUE(bystander.RotatesRight(kToken));
  EXPECT_FALSE(bystander.ring().IsClosed());
  while (Value("rope_requests_in_flight") != 0) {
  }
}

// Calls of the client library through a ring, with a real server that is busy, stops, ends or dies.

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
