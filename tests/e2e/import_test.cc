// Memory that the program has already, through a real server: where it is a sealed memfd, the
// server works in it; any other file gives the same answers by copies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/support/matchers.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::ImportedMemory;
using client::MemoryFile;
using client::RotateRequest;
using client::Transport;

constexpr int64_t kTokens = 64;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kElements = kTokens * kHeads * kHeadDim;
constexpr int64_t kBytes = kElements * 4;
constexpr int64_t kOffset = 4096 + 256;  // of the part in its file
// Tensors outside of imported memory are sent.
const client::ConnectOptions kNoStaging = {.staged_bytes = 0};

class ImportTest : public ::testing::Test {
 protected:
  ImportTest() {
    Start();
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i % 23) - 11;
    want_.resize(values_.size());
    const Client client = Client::Connect(server_->address()).value();
    EXPECT_TRUE(client.Rotate(RequestFor(values_.data(), want_.data())).ok());
  }

  static RotateRequest RequestFor(const void* data, void* output) {
    RotateRequest request;
    request.rope.model = "llama-3.1-8b";
    request.positions.start = 1000;
    request.tensors = {
        {.layout = "SHD", .shape = {kTokens, kHeads, kHeadDim}, .data = data, .output = output}};
    return request;
  }

  void Start() {
    server_ = std::make_unique<TestServer>(
        std::vector<std::string>{"--enable_shared_memory", "--listen=" + target_});
  }
  Client Connected(const client::ConnectOptions& options = {}) const {
    return Client::Connect(target_, options).value();
  }
  // Writes the values to `memory`, rotates them there, and compares.
  void ExpectRotates(const Client& client, void* memory) const {
    std::memcpy(memory, values_.data(), kBytes);
    const auto reply = client.Rotate(RequestFor(memory, memory));
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(std::memcmp(memory, want_.data(), kBytes), 0);
  }
  // Bytes of messages that this user's clients have sent.
  static int64_t SentBytes(const Client& client) {
    int64_t bytes = 0;
    const auto list = nlohmann::json::parse(client.CallJson("ListConnections", "{}").value());
    for (const auto& each : list.at("connections")) {
      bytes += std::stoll(each.at("message_bytes").get<std::string>());
    }
    return bytes;
  }
  // The server's mappings of memfds of this test.
  int Mappings() const {
    std::ifstream maps("/proc/" + std::to_string(server_->process().pid()) + "/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:rope_test") != std::string::npos) ++count;
    }
    return count;
  }

  const std::string target_ = "unix:" + TemporaryFolder() + "/import.sock";
  std::unique_ptr<TestServer> server_;
  std::vector<float> values_ = std::vector<float>(kElements);
  std::vector<float> want_;
};

TEST_F(ImportTest, ServerWorksInTheMemoryOfASealedMemfd) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  const Client client = Connected(kNoStaging);
  const int64_t before = SentBytes(client);
  {
    const MemoryFile part = {memory.fd(), kOffset, kBytes, memory.data() + kOffset};
    const ImportedMemory mine = client.ImportMemory(part).value();
    EXPECT_EQ(mine.transport().transport, Transport::kRing) << mine.transport().reason;
    EXPECT_EQ(mine.data(), memory.data() + kOffset);
    EXPECT_EQ(Mappings(), 1);
    ExpectRotates(client, mine.data());
    EXPECT_TRUE(client.RotateFuture(RequestFor(mine.data(), mine.data())).get().ok());
    EXPECT_TRUE(client.Fence().ok());
    EXPECT_LT(SentBytes(client) - before, kBytes);
    // A result without an output of its own comes in the answer; one elsewhere sends the input.
    std::memcpy(mine.data(), values_.data(), kBytes);
    const auto reply = client.Rotate(RequestFor(mine.data(), nullptr)).value();
    EXPECT_EQ(std::memcmp(reply.tensors[0].data, want_.data(), kBytes), 0);
    std::vector<float> elsewhere(kElements);
    EXPECT_TRUE(client.Rotate(RequestFor(mine.data(), elsewhere.data())).ok());
    EXPECT_EQ(elsewhere, want_);
  }
  const int64_t after = SentBytes(client);
  ExpectRotates(client, memory.data() + kOffset);  // no longer imported: sent
  EXPECT_GT(SentBytes(client) - after, kBytes / 2);
  while (Mappings() != 0) std::this_thread::yield();  // the connection of the import has closed
}

TEST_F(ImportTest, MemoryOutlivesTheClient) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  auto client = std::make_unique<Client>(Connected());
  const ImportedMemory mine = client->ImportMemory({memory.fd(), kOffset, kBytes}).value();
  client.reset();
  std::memcpy(mine.data(), values_.data(), kBytes);
  EXPECT_EQ(std::memcmp(memory.data() + kOffset, values_.data(), kBytes), 0);
}

TEST_F(ImportTest, FenceWaitsForImportedMemoryToo) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  const Client client = Connected();
  const ImportedMemory mine = client.ImportMemory({memory.fd(), 0, kBytes}).value();
  EXPECT_TRUE(client.Fence().ok());
  server_->process().Signal(SIGSTOP);
  const Status late =
      client
          .Rotate(RequestFor(mine.data(), mine.data()), {.timeout = std::chrono::milliseconds(20)})
          .status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(client.Fence({.timeout = std::chrono::milliseconds(20)}).ok());
  server_->process().Signal(SIGCONT);
  EXPECT_TRUE(client.Fence().ok());
}

TEST_F(ImportTest, ServerThatIsAwayIsUnavailable) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  const Client client = Connected();
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
  const auto mine =
      client.ImportMemory({memory.fd(), 0, kBytes}, {.timeout = std::chrono::milliseconds(50)});
  EXPECT_EQ(mine.status().code(), StatusCode::kUnavailable) << mine.status().ToString();
}

TEST_F(ImportTest, LibraryMapsAPartThatTheProgramHasNot) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  const Client client = Connected({.transports = {Transport::kMemfd}});
  const ImportedMemory mine = client.ImportMemory({memory.fd(), kOffset, kBytes}).value();
  EXPECT_EQ(mine.transport().transport, Transport::kMemfd);
  ExpectRotates(client, mine.data());
  EXPECT_EQ(std::memcmp(memory.data() + kOffset, want_.data(), kBytes), 0);
}

TEST_F(ImportTest, FilesThatCanShrinkAreCopiedAndSaySo) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20, 0);
  const Client client = Connected();
  const ImportedMemory mine = client.ImportMemory({memory.fd(), kOffset, kBytes}).value();
  EXPECT_EQ(mine.transport().transport, Transport::kInline);
  EXPECT_THAT(mine.transport().reason, HasSubstr("can shrink, want a memfd with F_SEAL_SHRINK"));
  ExpectRotates(client, mine.data());
  EXPECT_EQ(Mappings(), 0);
}

TEST_F(ImportTest, WithoutSharedMemoryTheReasonSaysWhy) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  const Client client = Client::Connect(server_->address()).value();
  const ImportedMemory mine = client.ImportMemory({memory.fd(), 0, kBytes}).value();
  EXPECT_EQ(mine.transport().transport, Transport::kInline);
  EXPECT_THAT(mine.transport().reason, HasSubstr("want unix:PATH"));
  ExpectRotates(client, mine.data());
}

// A huge page may be taken out of its file: the server maps none.
TEST_F(ImportTest, HugePagesAreCopied) {
  constexpr int64_t kHugePage = 2 << 20;
  const proto::FileDescriptor file(
      memfd_create("rope_test_huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  const bool reserved = file.ok() && fallocate(file.get(), 0, 0, kHugePage) == 0;
  if (!reserved) GTEST_SKIP() << "this machine has no free huge page";
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const Client client = Connected();
  const ImportedMemory mine = client.ImportMemory({file.get(), kOffset, kBytes}).value();
  EXPECT_EQ(mine.transport().transport, Transport::kInline);
  EXPECT_THAT(mine.transport().reason, HasSubstr("hello"));
  ExpectRotates(client, mine.data());
}

TEST_F(ImportTest, SeveralImportsAndTheArenaGoTheirOwnWays) {
  const SharedMemory a = SharedMemory::Memfd(1 << 20);
  const SharedMemory b = SharedMemory::Memfd(1 << 20);
  const Client client = Connected({.arena_bytes = 1 << 20});
  const ImportedMemory mine_a = client.ImportMemory({a.fd(), 0, 1 << 20, a.data()}).value();
  const ImportedMemory mine_b = client.ImportMemory({b.fd(), 0, 1 << 20, b.data()}).value();
  const client::Slot slot = client.arena().Allocate(kBytes).value();
  for (void* memory : {mine_a.data(), mine_b.data(), slot.data()}) ExpectRotates(client, memory);
  // Two tensors in two files: their bytes are sent.
  std::memcpy(a.data(), values_.data(), kBytes);
  std::memcpy(b.data(), values_.data(), kBytes);
  RotateRequest both = RequestFor(a.data(), a.data());
  both.tensors.push_back(both.tensors[0]);
  both.tensors[1].data = both.tensors[1].output = b.data();
  ASSERT_OK(reply, client.Rotate(both));
  EXPECT_EQ(std::memcmp(a.data(), want_.data(), kBytes), 0);
  EXPECT_EQ(std::memcmp(b.data(), want_.data(), kBytes), 0);
}

TEST_F(ImportTest, AnotherServerAtTheSameAddressGetsTheMemoryAgain) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20);
  const Client client = Connected();
  const ImportedMemory mine =
      client.ImportMemory({memory.fd(), 0, 2 * kBytes, memory.data()}).value();
  ExpectRotates(client, mine.data());
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
  Start();
  char* const output = memory.data() + kBytes;
  std::memcpy(mine.data(), values_.data(), kBytes);
  // Out of place, so that the call may be repeated.
  EXPECT_TRUE(client.Rotate(RequestFor(mine.data(), output)).ok());
  EXPECT_EQ(std::memcmp(output, want_.data(), kBytes), 0);
  ExpectRotates(client, mine.data());
  EXPECT_EQ(Mappings(), 1);
}

TEST_F(ImportTest, WhatIsWrongIsNamed) {
  const SharedMemory memory = SharedMemory::Memfd(8192);
  const Client client = Connected();
  const auto field = [&](const MemoryFile& file) {
    return client.ImportMemory(file).status().detail().field;
  };
  EXPECT_EQ(field({.fd = -1, .bytes = 1}), "fd");
  EXPECT_EQ(field({memory.fd(), -1, 1}), "offset");
  EXPECT_EQ(field({memory.fd(), 0, 0}), "bytes");
  EXPECT_EQ(field({memory.fd(), 0, 8193}), "bytes");
  EXPECT_EQ(field({memory.fd(), 8192, 1}), "bytes");
  EXPECT_EQ(field({memory.fd(), 1, INT64_MAX}), "bytes");
}

TEST_F(ImportTest, InProcessAnyMemoryIsInPlace) {
  const SharedMemory memory = SharedMemory::Memfd(1 << 20, 0);
  const Client client = embedded::Connect().value();
  const ImportedMemory mine = client.ImportMemory({memory.fd(), kOffset, kBytes}).value();
  EXPECT_EQ(mine.transport().transport, Transport::kInProcess);
  ExpectRotates(client, mine.data());
  EXPECT_EQ(std::memcmp(memory.data() + kOffset, want_.data(), kBytes), 0);
}

TEST_F(ImportTest, ArenaHasAFile) {
  const Client client = Connected({.arena_bytes = 1 << 20});
  EXPECT_EQ(fcntl(client.arena().fd(), F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
  EXPECT_EQ(Connected().arena().fd(), -1);
}

}  // namespace
}  // namespace rope::testing
