// Cancelled calls, and memory that a client reuses after a fence: a pattern that the client writes
// there must stay unchanged.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "rope/client.h"
#include "tests/support/region_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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
class ArenaFenceTest : public FenceTest, public ::testing::WithParamInterface<client::Transport> {
 protected:
  client::Client Connect() const {
    return client::Client::Connect("unix:" + path_,
                                   {.arena_bytes = int64_t{64} << 20, .transports = {GetParam()}})
        .value();
  }
  static client::RotateRequest InPlace(const client::Slot& slot, const Sample& sample) {
    client::RotateRequest request;
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
  void GiveUp(const client::Client& client, const client::Slot& slot) {
    const client::RotateRequest request = InPlace(slot, kTensor);
    const auto count = [this](const Result<client::RotateReply>& reply) {
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
  const client::Client client = Connect();
  EXPECT_EQ(client.transport().transport, GetParam());
  // Other threads use the same memory meanwhile, and none of their calls may fail.
  std::atomic<bool> ended = false;
  std::thread bystander([&] {
    const client::Slot slot = client.arena().Allocate(kSmall.bytes()).value();
    auto* const values = static_cast<float*>(slot.data());
    while (!ended) {
      kSmall.Fill(values);
      ASSERT_OK(reply, client.Rotate(InPlace(slot, kSmall)));
      EXPECT_LT(kSmall.Error(values), 2e-6);
    }
  });
  std::vector<client::Slot> slots;
  for (int round = 0; round < kRounds; ++round) {
    slots.push_back(client.arena().Allocate(kTensor.bytes()).value());
    GiveUp(client, slots.back());
    ASSERT_OK(fence, client.Fence({.timeout = seconds(60)}));
    std::memset(slots.back().data(), kPattern, kTensor.bytes());
  }
  ended = true;
  bystander.join();
  for (const client::Slot& slot : slots) {
    EXPECT_TRUE(HoldsPattern(static_cast<const char*>(slot.data()), kTensor.bytes()));
  }
  EXPECT_EQ(client.transport().transport, GetParam());
  EXPECT_GT(given_up_, kRounds * kCallsOfARound / 4);
}

TEST_P(ArenaFenceTest, FencesOfManyThreadsAndShortOnesLeaveTheMemoryAsItWas) {
  const client::Client client = Connect();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&client] {
      const client::Slot slot = client.arena().Allocate(kSmall.bytes()).value();
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
                         ::testing::Values(client::Transport::kRing, client::Transport::kMemfd),
                         [](const auto& of) { return std::string(client::Name(of.param)); });

}  // namespace
}  // namespace rope::testing
