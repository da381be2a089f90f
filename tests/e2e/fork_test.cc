// A program that forks after it has connected.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/support/matchers.h"
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
