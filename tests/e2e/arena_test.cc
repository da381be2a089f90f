// Memory that client and server share: tensors in the client's arena, tensors anywhere that the
// client stages, and memory that it reuses after a fence.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rope/client.h"
#include "tests/e2e/random_jobs.h"
#include "tests/e2e/two_tensors.h"
#include "tests/support/region_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::ChosenTransport;
using client::Client;
using client::RotateReply;
using client::RotateRequest;
using client::Slot;
using client::Transport;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kBytes = kElements * 4;
constexpr int64_t kArenaBytes = 1 << 20;

// A server that can be started again at the same path.
class StagingTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {"--enable_shared_memory"}) {
    flags.push_back("--listen=" + target_);
    server_ = std::make_unique<TestServer>(flags);
  }
  // SIGKILL.
  void Kill() {
    server_->process().Signal(SIGKILL);
    server_->process().Wait();
  }
  Client Inline() const {
    return Client::Connect(target_, {.transports = {Transport::kInline}}).value();
  }
  // The first of the two tensors, from `data` to `output`.
  RotateRequest RequestFor(const void* data, void* output) const {
    RotateRequest request = tensors_.Request();
    request.tensors.resize(1);
    request.tensors[0].data = data;
    request.tensors[0].output = output;
    return request;
  }
  static std::vector<std::string> BytesOf(const Result<RotateReply>& reply) {
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? testing::BytesOf(*reply) : std::vector<std::string>();
  }

  const std::string target_ = "unix:" + TemporaryFolder() + "/s";
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
  const Client client =
      Client::Connect(target_, {.transports = {Transport::kRing, Transport::kMemfd}}).value();
  std::vector<float> values = tensors_.data;
  const RotateRequest request = RequestFor(values.data(), values.data());
  const std::vector<std::string> expected =
      BytesOf(Inline().Rotate(RequestFor(values.data(), nullptr)));
  Kill();
  EXPECT_EQ(client.Rotate(request, {.timeout = seconds(1)}).status().code(),
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
  EXPECT_TRUE(BytesOf(client.Rotate(tensors_.Request())) ==
              BytesOf(Inline().Rotate(tensors_.Request())));
  const Client small = Client::Connect(target_, {.staged_bytes = 1 << 20}).value();
  EXPECT_EQ(small.transport().transport, Transport::kRing);
}

class ArenaTest : public StagingTest {
 protected:
  Client Connected() const {
    return Client::Connect(target_, {.arena_bytes = kArenaBytes}).value();
  }
  // The first tensor, rotated through an inline request.
  std::vector<float> Expected() const {
    std::vector<float> rotated(kElements);
    BytesOf(Inline().Rotate(RequestFor(tensors_.data.data(), rotated.data())));
    return rotated;
  }
  Slot SlotOfRaw(const Client& client) const {
    Slot slot = client.arena().Allocate(kBytes).value();
    std::memcpy(slot.data(), tensors_.data.data(), kBytes);
    return slot;
  }
  static std::vector<float> Floats(const void* data) {
    const auto* begin = static_cast<const float*>(data);
    return {begin, begin + kElements};
  }
};

TEST_F(ArenaTest, FastestTransportIsTakenAndTheReasonForASlowerOneGiven) {
  Start();
  EXPECT_EQ(Connected().transport().transport, Transport::kRing);
  EXPECT_EQ(Connected().transport().reason, "");
  const ChosenTransport over_tcp =
      Client::Connect(server_->address(), {.arena_bytes = kArenaBytes}).value().transport();
  EXPECT_EQ(over_tcp.transport, Transport::kInline);
  EXPECT_THAT(over_tcp.reason, HasSubstr("want unix:PATH"));
  const auto without = Client::Connect(target_).value();  // this client stages
  EXPECT_EQ(without.transport().transport, Transport::kRing);
  EXPECT_EQ(without.arena().Allocate(1).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(ArenaTest, ServerWithoutSharedMemoryIsServedInlineUnlessThatIsForbidden) {
  Start({});
  const Client client = Connected();
  EXPECT_EQ(client.transport().transport, Transport::kInline);
  EXPECT_THAT(client.transport().reason, HasSubstr("memfd: FAILED_PRECONDITION"));
  const Slot slot = SlotOfRaw(client);
  ASSERT_OK(reply, client.Rotate(RequestFor(slot.data(), slot.data())));
  EXPECT_EQ(Floats(slot.data()), Expected());

  const auto forced =
      Client::Connect(target_, {.arena_bytes = kArenaBytes, .transports = {Transport::kMemfd}});
  EXPECT_EQ(forced.status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(ArenaTest, ExampleOfTheReadmeIsTheFileThatIsCompiledAndRuns) {
  const auto read = [](const std::string& path) {
    std::ifstream file(std::string(ROPE_SOURCE_DIR "/client/") + path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string example = read("quickstart/arena_example.cc");
  EXPECT_THAT(read("README.md"), HasSubstr(example.substr(example.find("int main"))));
  Start();
  const Outcome outcome = RunProgram({ROPE_BINARY_DIR "/bin/rope_arena_example", target_});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  // cos - sin of 100000.
  EXPECT_THAT(outcome.output, ::testing::StartsWith("ring \n-1.035109"));
}

// The server is killed and started again at the same path.
TEST_F(ArenaTest, MemfdAndRingAreBroughtAgainToARestartedServer) {
  Start();
  const Client client = Connected();
  const Slot input = SlotOfRaw(client);
  const Slot output = client.arena().Allocate(kBytes).value();
  ASSERT_TRUE(client.Rotate(RequestFor(input.data(), output.data())).ok());
  const std::vector<float> expected = Floats(output.data());
  Kill();
  const auto in_place =
      client.Rotate(RequestFor(input.data(), input.data()), {.timeout = seconds(1)});
  EXPECT_EQ(in_place.status().code(), StatusCode::kUnavailable);

  Start();
  std::memset(output.data(), 0, kBytes);
  for (int call = 0; call < 2; ++call) {
    ASSERT_OK(reply, client.Rotate(RequestFor(input.data(), output.data())));
    EXPECT_EQ(Floats(output.data()), expected);
  }
  EXPECT_EQ(client.transport().transport, Transport::kRing);
  EXPECT_EQ(Floats(input.data()), tensors_.data);  // the failed call was not repeated

  // Asynchronous calls find the new connection too.
  EXPECT_TRUE(client.RotateFuture(RequestFor(input.data(), output.data())).get().ok());
}

// Cancelled calls, and memory that a client reuses after a fence: a pattern that the client writes
// there must stay unchanged.
constexpr int kRounds = 20;
constexpr int kCallsOfARound = 100;
constexpr int kCallers = 4;
constexpr char kPattern = 0x5a;
const Sample kTensor = {.tokens = 4000, .heads = 16};  // 2 MB: runs about as long as callers wait
const Sample kSmall;

bool HoldsPattern(const char* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](char byte) { return byte == kPattern; });
}

// Memory with a tensor for each round, followed by a small one.
constexpr size_t kSmallBytes = 4096;
size_t MemoryBytes() {
  return kRounds * kTensor.bytes() + kSmallBytes;
}

class FenceTest : public ::testing::Test {
 protected:
  // The steps of a client without the library: the calls of a round on one id, then the fence.
  void GiveUpOn(v1::RopeService::Stub& stub, uint64_t id, int round) {
    const v1::RotateRequest request = kTensor.InPlace(id, round * kTensor.bytes());
    // Several calls at once, so that they queue at the server.
    std::vector<std::thread> callers;
    for (int caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([&] {
        for (int i = 0; i < kCallsOfARound / kCallers; ++i) {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + milliseconds(i % 3));
          v1::RotateResponse response;
          given_up_ += stub.Rotate(&context, request, &response).ok() ? 0 : 1;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  static void AwaitFence(v1::RopeService::Stub& stub, uint64_t id) {
    grpc::ClientContext context;
    v1::UnregisterRegionRequest request;
    request.set_region_id(id);
    request.set_wait(true);
    v1::UnregisterRegionResponse response;
    ASSERT_EQ(Text(stub.UnregisterRegion(&context, request, &response)), "OK");
  }
  static void FillRound(char* memory, int round) {
    std::memset(memory + round * kTensor.bytes(), kPattern, kTensor.bytes());
  }
  static void ExpectPatterns(const char* memory) {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(HoldsPattern(memory + round * kTensor.bytes(), kTensor.bytes())) << round;
    }
  }

  const std::string path_ = TemporaryFolder() + "/s";
  // Four threads receive calls, so that a fence may overtake earlier calls.
  TestServer server_{
      {"--enable_shared_memory", "--threads=8", "--listen=unix:" + path_, "--log_level=error"}};
  std::atomic<int> given_up_ = 0;
};

TEST_F(FenceTest, MemfdStaysRegisteredUnderItsNextId) {
  RegionClient client(path_, MemoryBytes());
  char* const memory = client.memory().data();
  const uint64_t small = kRounds * kTensor.bytes();
  uint64_t id = client.id();
  for (int round = 0; round < kRounds; ++round) {
    GiveUpOn(client.stub(), id, round);
    grpc::ClientContext context;
    v1::RegisterRegionRequest request;
    request.set_region_id(id);
    v1::RegisterRegionResponse next;
    ASSERT_EQ(Text(client.stub().RegisterRegion(&context, request, &next)), "OK");
    AwaitFence(client.stub(), id);
    FillRound(memory, round);
    id = next.region_id();
    kSmall.Fill(client.memory().As<float>(small));
    ASSERT_EQ(Text(Rotate(client.stub(), kSmall.InPlace(id, small))), "OK");
    EXPECT_LT(kSmall.Error(client.memory().As<float>(small)), 2e-6);
  }
  ExpectPatterns(memory);
  EXPECT_GT(given_up_, kRounds * kCallsOfARound / 4);
}

// The stream has so many requests that the server reads the last of them after the fence.
TEST_F(FenceTest, CallsThatReachTheServerAfterTheFenceTouchNothing) {
  const Sample sample = {.tokens = 64, .heads = 16};
  constexpr int kRequests = 3000;
  RegionClient client(path_, sample.bytes());
  grpc::ClientContext context;
  const auto stream = OpenStream(client.stub(), context);
  std::thread writer([&] {
    const v1::RotateRequest request = sample.InPlace(client.id(), 0);
    for (int i = 0; i < kRequests; ++i) EXPECT_TRUE(stream->Write(request));
    stream->WritesDone();
  });
  v1::RotateResponse response;
  EXPECT_TRUE(stream->Read(&response));
  AwaitFence(client.stub(), client.id());
  std::memset(client.memory().data(), kPattern, sample.bytes());
  int refused = 0;
  for (int i = 1; i < kRequests; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    refused += response.error().code() == grpc::StatusCode::NOT_FOUND ? 1 : 0;
  }
  writer.join();
  EXPECT_EQ(Text(stream->Finish()), "OK");
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(HoldsPattern(client.memory().data(), sample.bytes()));
}

TEST_F(FenceTest, WaitThatItsClientGivesUpOnChangesNothing) {
  for (int i = 0; i < 10; ++i) {
    RegionClient client(path_, kTensor.bytes());
    GiveUpOn(client.stub(), client.id(), 0);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now());
    v1::UnregisterRegionRequest request;
    request.set_region_id(client.id());
    request.set_wait(true);
    v1::UnregisterRegionResponse response;
    client.stub().UnregisterRegion(&context, request, &response);
  }
  EXPECT_TRUE(Serves(*server_.NewStub()));
}

// The client library with its arena on each kind of shared memory.
class ArenaFenceTest : public FenceTest, public ::testing::WithParamInterface<Transport> {
 protected:
  Client Connect() const {
    return Client::Connect("unix:" + path_,
                           {.arena_bytes = int64_t{64} << 20, .transports = {GetParam()}})
        .value();
  }
  static RotateRequest InPlace(const Slot& slot, const Sample& sample) {
    RotateRequest request;
    request.rope.config = client::RopeConfig{.head_dim = Sample::kHeadDim};
    request.rope.pairing = client::Pairing::kHalf;
    request.positions.start = sample.start;
    request.tensors = {{.layout = "SHD",
                        .shape = {sample.tokens, sample.heads, Sample::kHeadDim},
                        .data = slot.data(),
                        .output = slot.data()}};
    return request;
  }
  // Calls of every kind that end before their answer, or shortly after it.
  void GiveUp(const Client& client, const Slot& slot) {
    const RotateRequest request = InPlace(slot, kTensor);
    const auto count = [this](const Result<RotateReply>& reply) {
      given_up_ += reply.ok() ? 0 : 1;
    };
    std::vector<client::Call> calls;
    for (int i = 0; i < kCallsOfARound / 3; ++i) {
      count(client.Rotate(request, {.timeout = milliseconds(i % 3)}));
      client.RotateAsync(request, count, {.timeout = milliseconds(i % 3)});
      calls.push_back(client.RotateAsync(request, count));
    }
    for (const client::Call& call : calls) call.Cancel();
  }
};

TEST_P(ArenaFenceTest, SlotsOfCallsThatWereGivenUpAreFreeAfterAFence) {
  const Client client = Connect();
  EXPECT_EQ(client.transport().transport, GetParam());
  // Other threads use the same memory meanwhile, and none of their calls may fail.
  std::atomic<bool> ended = false;
  std::thread bystander([&] {
    const Slot slot = client.arena().Allocate(kSmall.bytes()).value();
    auto* const values = static_cast<float*>(slot.data());
    while (!ended) {
      kSmall.Fill(values);
      ASSERT_OK(reply, client.Rotate(InPlace(slot, kSmall)));
      EXPECT_LT(kSmall.Error(values), 2e-6);
    }
  });
  std::vector<Slot> slots;
  for (int round = 0; round < kRounds; ++round) {
    slots.push_back(client.arena().Allocate(kTensor.bytes()).value());
    GiveUp(client, slots.back());
    ASSERT_OK(fence, client.Fence({.timeout = seconds(60)}));
    std::memset(slots.back().data(), kPattern, kTensor.bytes());
  }
  ended = true;
  bystander.join();
  for (const Slot& slot : slots) {
    EXPECT_TRUE(HoldsPattern(static_cast<const char*>(slot.data()), kTensor.bytes()));
  }
  EXPECT_EQ(client.transport().transport, GetParam());
  EXPECT_GT(given_up_, kRounds * kCallsOfARound / 4);
}

TEST_P(ArenaFenceTest, FencesOfManyThreadsAndShortOnesLeaveTheMemoryAsItWas) {
  const Client client = Connect();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&client] {
      const Slot slot = client.arena().Allocate(kSmall.bytes()).value();
      for (int j = 0; j < 50; ++j) {
        const Status fence = client.Fence({.timeout = milliseconds(j % 3 == 0 ? 60'000 : j % 3)});
        EXPECT_TRUE(fence.ok() || fence.code() == StatusCode::kDeadlineExceeded)
            << fence.ToString();
        kSmall.Fill(static_cast<float*>(slot.data()));
        EXPECT_TRUE(client.Rotate(InPlace(slot, kSmall)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(client.Fence().ok());
  EXPECT_EQ(client.transport().transport, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Transports, ArenaFenceTest,
                         ::testing::Values(Transport::kRing, Transport::kMemfd),
                         [](const auto& of) { return std::string(client::Name(of.param)); });

}  // namespace
}  // namespace rope::testing
