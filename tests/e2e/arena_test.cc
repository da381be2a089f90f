// Tensors in memory that client and server share, through a real server.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::client {
namespace {

using std::chrono::seconds;

constexpr int64_t kTokens = 64;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 32;
constexpr int64_t kElements = kTokens * kHeads * kHeadDim;
constexpr int64_t kBytes = kElements * 4;
constexpr int64_t kArenaBytes = 1 << 20;

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() {
    for (size_t i = 0; i < raw_.size(); ++i) raw_[i] = static_cast<float>(i % 23) - 11;
  }

  void Start(const std::vector<std::string>& flags = {"--enable_shared_memory"}) {
    std::vector<std::string> all = flags;
    all.push_back("--listen=" + target_);
    server_ = std::make_unique<testing::TestServer>(all);
  }
  Client Connected(std::vector<Transport> transports = ConnectOptions().transports) const {
    return Client::Connect(target_, {.arena_bytes = kArenaBytes, .transports = transports}).value();
  }

  static RotateRequest RequestFor(const void* data, void* output) {
    RotateRequest request;
    request.rope.config = RopeConfig{.head_dim = kHeadDim};
    request.rope.pairing = Pairing::kHalf;
    request.positions.start = 1000;
    request.tensors = {
        {.layout = "SHD", .shape = {kTokens, kHeads, kHeadDim}, .data = data, .output = output}};
    return request;
  }
  // raw_, rotated through an inline request.
  std::vector<float> Expected() const {
    std::vector<float> rotated(raw_.size());
    const Client client = Client::Connect(target_, {.transports = {Transport::kInline}}).value();
    const auto reply = client.Rotate(RequestFor(raw_.data(), rotated.data()));
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return rotated;
  }
  Slot SlotOfRaw(const Client& client) const {
    Slot slot = client.arena().Allocate(kBytes).value();
    std::memcpy(slot.data(), raw_.data(), kBytes);
    return slot;
  }
  static std::vector<float> Floats(const void* data) {
    const auto* begin = static_cast<const float*>(data);
    return {begin, begin + kElements};
  }

  const std::string target_ = "unix:" + testing::TemporaryFolder() + "/arena.sock";
  std::unique_ptr<testing::TestServer> server_;
  std::vector<float> raw_ = std::vector<float>(kElements);
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
  const testing::Outcome outcome =
      testing::RunProgram({ROPE_BINARY_DIR "/bin/rope_arena_example", target_});
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
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
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
  EXPECT_EQ(Floats(input.data()), raw_);  // the failed call was not repeated

  // Asynchronous calls find the new connection too.
  EXPECT_TRUE(client.RotateFuture(RequestFor(input.data(), output.data())).get().ok());
}

}  // namespace
}  // namespace rope::client
