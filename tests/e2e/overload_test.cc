// Three times as many clients as the server has memory for, and a drain and a crash under load. The
// tests account for every call. No expectation depends on the speed of the machine.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rope/client.h"
#include "tests/support/closed_loop.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::seconds;

constexpr Sample kToken = {.tokens = 1, .heads = 40, .start = 1000};   // 1280 bytes
constexpr Sample kPrefill = {.tokens = 64, .heads = 32};               // 64 KiB
constexpr Sample kLarge = {.tokens = 1024, .heads = 512, .start = 0};  // 16 MiB
constexpr seconds kPatience{30};

// `count` clients, each with its own connection.
std::vector<ClosedLoop::Client> StubClients(const TestServer& server, int count,
                                            const Payload& payload, bool waits) {
  std::vector<ClosedLoop::Client> clients;
  for (int i = 0; i < count; ++i) {
    const auto caller = std::make_shared<StubCaller>(server.NewChannel(), waits);
    clients.emplace_back([caller, &payload] { return caller->Call(payload); });
  }
  return clients;
}

// A client of the library with its default retries.
ClosedLoop::Client LibraryClient(const std::string& target, const Payload& payload) {
  auto connected = client::Client::Connect(target);
  EXPECT_TRUE(connected.ok()) << connected.status().ToString();
  const auto library = std::make_shared<client::Client>(*std::move(connected));
  const auto input = std::make_shared<std::vector<float>>(payload.sample().Input());
  return [library, input, &payload] {
    const Sample& sample = payload.sample();
    client::TensorView tensor;
    tensor.layout = "SHD";
    tensor.shape = {sample.tokens, sample.heads, Sample::kHeadDim};
    tensor.data = input->data();
    client::RotateRequest request;
    request.rope.config = client::RopeConfig{.head_dim = Sample::kHeadDim};
    request.rope.pairing = client::Pairing::kHalf;
    request.positions.start = sample.start;
    request.tensors = {tensor};
    const auto reply = library->Rotate(request, {.timeout = kCallTimeout});
    if (!reply.ok()) {
      const Status& status = reply.status();
      return CallOutcome{
          CallOutcome::Of(static_cast<int>(status.code()), status.detail().retry_delay_ms > 0),
          status.ToString()};
    }
    const client::RotatedTensor& rotated = reply->tensors.front();
    return payload.Check(rotated.data, static_cast<size_t>(rotated.bytes));
  };
}

// Clients of both payloads with stubs, and one of each with the library.
std::vector<ClosedLoop::Client> MixedClients(const TestServer& server, const std::string& target,
                                             const Payload& token, int tokens,
                                             const Payload& prefill, bool waits) {
  std::vector<ClosedLoop::Client> clients = StubClients(server, 4, prefill, waits);
  for (auto& client : StubClients(server, tokens, token, waits)) {
    clients.push_back(std::move(client));
  }
  for (const Payload* const payload : {&token, &prefill}) {
    clients.push_back(LibraryClient(target, *payload));
  }
  return clients;
}

// Expects that every call has an outcome, and that none was wrong, hung or failed with another
// code.
void ExpectAccountedFor(const std::string& what, const CallTally& tally) {
  std::printf("measured: %s: %s\n", what.c_str(), tally.ToString().c_str());
  EXPECT_EQ(tally.sent, std::accumulate(tally.counts.begin(), tally.counts.end(), int64_t{0}));
  for (const auto kind : {CallOutcome::kWrong, CallOutcome::kHung, CallOutcome::kOther}) {
    EXPECT_EQ(tally[kind], 0) << what << ": " << tally.first[kind];
  }
}

// If a connection attempt fails, or gRPC's quota closes a connection, the client's calls fail at
// once until the connection is retried: UNAVAILABLE, counted as failed.
void ExpectFewFailures(const CallTally& tally) {
  EXPECT_LE(tally[CallOutcome::kFailed], tally.sent / 20) << tally.first[CallOutcome::kFailed];
}

// The budget holds eight calls of 16 MiB. A call counts as long as its request or its answer
// exists.
WatchedServer::Options SmallServer() {
  return {.memory_bytes = 256 * kMiB, .message_bytes = 32 * kMiB};
}

TEST(OverloadTest, SmallCallsOfManyClientsAreAnsweredOrTold) {
  const Payload token(kToken);
  WatchedServer watched(SmallServer());
  ClosedLoop load(StubClients(watched.server(), 64, token, /*waits=*/false));
  EXPECT_TRUE(load.AwaitAnswers(10'000, 0, kPatience));
  const CallTally tally = load.Stop();
  ExpectAccountedFor("64 clients of one token", tally);
  ExpectFewFailures(tally);
  watched.ExpectUnharmed("64 clients of one token");
}

TEST(OverloadTest, LargeCallsOfThreeTimesTheClientsThatFitAreAnsweredOrTold) {
  const Payload token(kToken);
  const Payload large(kLarge);
  WatchedServer watched(SmallServer());
  watched.EndBystander();  // the server may refuse its calls, too
  ClosedLoop load(StubClients(watched.server(), 24, large, /*waits=*/false));
  ClosedLoop small(StubClients(watched.server(), 8, token, /*waits=*/false));
  EXPECT_TRUE(load.AwaitAnswers(80, 0, kPatience));
  const CallTally tokens = small.Stop();
  const CallTally tally = load.Stop();
  ExpectAccountedFor("24 clients of 16 MiB, where 8 calls fit", tally);
  ExpectAccountedFor("8 clients of one token at the same time", tokens);
  ExpectFewFailures(tally);
  ExpectFewFailures(tokens);
  EXPECT_GT(tokens[CallOutcome::kAnswered], 0);
  watched.ExpectUnharmed("24 clients of 16 MiB");
  watched.ExpectMemoryGivenBack("24 clients of 16 MiB");
}

TEST(OverloadTest, DrainUnderLoadLosesNoCall) {
  const Payload token(kToken);
  const Payload prefill(kPrefill);
  const std::string target = "unix:" + TemporaryFolder() + "/s";
  TestServer server({"--enable_shared_memory", "--listen=" + target, "--log_level=error"});
  ClosedLoop load(MixedClients(server, target, token, 4, prefill, /*waits=*/false));
  EXPECT_TRUE(load.AwaitAnswers(0, 50, kPatience));
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().WaitFor(seconds(20)), 0);
  const CallTally tally = load.Stop();
  ExpectAccountedFor("a drain under load", tally);
  EXPECT_EQ(tally[CallOutcome::kRefused], 0);
  EXPECT_GT(tally[CallOutcome::kFailed], 0) << "the load outlived the server";
}

TEST(OverloadTest, ServerThatIsKilledAndStartedAgainServesEveryClientAgain) {
  const Payload token(kToken);
  const Payload prefill(kPrefill);
  const std::string path = TemporaryFolder() + "/s";
  const std::string target = "unix:" + path;
  TestServer first({"--enable_shared_memory", "--listen=" + target, "--log_level=error"});
  ClosedLoop load(MixedClients(first, target, token, 2, prefill, /*waits=*/true));
  EXPECT_TRUE(load.AwaitAnswers(0, 50, kPatience));
  first.process().Signal(SIGKILL);
  EXPECT_EQ(first.process().Wait(), -SIGKILL);
  TestServer second({"--enable_shared_memory", "--listen=" + target, "--listen=" + first.address(),
                     "--log_level=error"});
  EXPECT_TRUE(load.AwaitAnswers(0, 20, kPatience)) << "every client comes back";
  const CallTally tally = load.Stop();
  ExpectAccountedFor("killed and started again under load", tally);
  EXPECT_EQ(tally[CallOutcome::kRefused], 0);
}

}  // namespace
}  // namespace rope::testing
