// Regions of a session: by hand, and memory that the client imports.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/support/memory_limit.h"
#include "tests/support/metrics_page.h"
#include "tests/support/process.h"
#include "tests/support/region_client.h"
#include "tests/support/rotate_stream.h"
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

// The owner of shared memory, and hostile or dying clients: they may harm only themselves.

constexpr double kClose = 2e-6;
const Sample kSample;
constexpr char kRegionBytes[] = R"(rope_budget_used{budget="region_bytes"})";

grpc::Status Unregister(v1::RopeService::Stub& stub, uint64_t id) {
  grpc::ClientContext context;
  v1::UnregisterRegionRequest request;
  request.set_region_id(id);
  v1::UnregisterRegionResponse response;
  return stub.UnregisterRegion(&context, request, &response);
}

std::vector<std::string> KindsListed(v1::RopeService::Stub& stub) {
  grpc::ClientContext context;
  v1::ListRegionsResponse response;
  EXPECT_EQ(Text(stub.ListRegions(&context, {}, &response)), "OK");
  std::vector<std::string> kinds;
  for (const v1::Region& region : response.regions()) {
    kinds.push_back(absl::StrCat(region.kind(), " ", region.byte_size()));
  }
  return kinds;
}

grpc::Status TryRegister(v1::RopeService::Stub& stub, const v1::RegisterRegionRequest& request) {
  grpc::ClientContext context;
  v1::RegisterRegionResponse response;
  return stub.RegisterRegion(&context, request, &response);
}

v1::GetServerInfoResponse Info(v1::RopeService::Stub& stub) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_EQ(Text(stub.GetServerInfo(&context, {}, &info)), "OK");
  return info;
}

// Rotates in place and checks the result.
bool RotatesRight(RegionClient& client, uint64_t offset = 4096) {
  kSample.Fill(client.memory().As<float>(offset));
  const grpc::Status status = Rotate(client.stub(), kSample.InPlace(client.id(), offset));
  EXPECT_EQ(Text(status), "OK");
  return status.ok() && kSample.Error(client.memory().As<float>(offset)) < kClose;
}

class RegionSessionTest : public ::testing::Test {
 protected:
  double Value(const char* metric) { return Scrape(MetricsPort(server_)).Value(metric); }
  // Returns once the server has released everything that other clients left.
  void AwaitRegionBytes(double bytes) {
    while (Value(kRegionBytes) != bytes) {
    }
    EXPECT_EQ(Value(kRegionBytes), bytes);
  }

  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{{"--enable_shared_memory", "--listen=unix:" + path_,
                      "--metrics_listen=127.0.0.1:0", "--log_level=error"}};
};

TEST_F(RegionSessionTest, ServerSaysWhatItTakes) {
  EXPECT_THAT(Info(*server_.NewStub()).transports(), ElementsAre("inline", "ring", "memfd"));
}

TEST_F(RegionSessionTest, RegionsAreTheirSessionsAlone) {
  RegionClient alice(path_, 8192);
  RegionClient bob(path_, 16384);
  const auto carol = server_.NewStub();
  EXPECT_NE(alice.hello().session, bob.hello().session);
  EXPECT_THAT(KindsListed(alice.stub()), ElementsAre("memfd 8192"));
  EXPECT_THAT(KindsListed(bob.stub()), ElementsAre("memfd 16384"));
  EXPECT_THAT(KindsListed(*carol), ElementsAre());
  for (v1::RopeService::Stub* const other : {&bob.stub(), carol.get()}) {
    EXPECT_THAT(Text(Rotate(*other, kSample.InPlace(alice.id(), 0))),
                StartsWith("5 tensors[0].array.region: got"));
    EXPECT_THAT(Text(Unregister(*other, alice.id())), StartsWith("5 region_id: got"));
  }
  EXPECT_TRUE(RotatesRight(alice));
}

TEST_F(RegionSessionTest, TensorOfManySlicesIsRotatedInPlaceOnce) {
  const Sample large = {.tokens = 20000, .heads = 64};  // 41 MB, cut into slices of 8 MiB
  RegionClient client(path_, large.bytes() + 64);
  large.Fill(client.memory().As<float>(64));
  ASSERT_EQ(Text(Rotate(client.stub(), large.InPlace(client.id(), 64))), "OK");
  EXPECT_LT(large.Error(client.memory().As<float>(64)), 1e-5);
}

TEST_F(RegionSessionTest, RegionsGoWithTheirConnection) {
  {
    RegionClient first(path_, 8192);
    RegionClient second(path_, 16384);
    EXPECT_EQ(Value("rope_regions"), 2);
    EXPECT_EQ(Value(kRegionBytes), 8192 + 16384);
  }
  AwaitRegionBytes(0);
  EXPECT_EQ(Value("rope_regions"), 0);
}

TEST_F(RegionSessionTest, RegistrationsThatAreRefused) {
  const auto stub = server_.NewStub();
  EXPECT_THAT(Text(TryRegister(*stub, {})), StartsWith("5 region_id: got 0"));
  v1::RegisterRegionRequest cuda;
  cuda.set_cuda_handle("x");
  EXPECT_THAT(Text(TryRegister(*stub, cuda)), StartsWith("12 cuda_handle"));
}

TEST_F(RegionSessionTest, UnregisteredWhileInUseIsStillThereForThatRequest) {
  const Sample large = {.tokens = 2000, .heads = 64};
  int right = 0;
  for (int i = 0; i < 20; ++i) {
    RegionClient client(path_, large.bytes());
    large.Fill(client.memory().As<float>());
    grpc::ClientContext context;
    const auto stream = OpenStream(client.stub(), context);
    ASSERT_TRUE(stream->Write(large.InPlace(client.id(), 0)));
    ASSERT_EQ(Text(Unregister(client.stub(), client.id())), "OK");
    v1::RotateResponse response;
    ASSERT_TRUE(stream->Read(&response));
    if (response.error().code() == 0) {
      EXPECT_LT(large.Error(client.memory().As<float>()), 1e-5);
      ++right;
    } else {
      EXPECT_EQ(response.error().code(),
                grpc::StatusCode::NOT_FOUND);  // it arrived after the region was unregistered
    }
    EXPECT_THAT(Text(Rotate(client.stub(), large.InPlace(client.id(), 0))), StartsWith("5 "));
    stream->WritesDone();
    EXPECT_EQ(Text(stream->Finish()), "OK");
  }
  RecordProperty("right", right);
  AwaitRegionBytes(0);
}

TEST_F(RegionSessionTest, MemoryThatCouldRaiseSigbusIsRefused) {
  RegionClient unsealed(path_, SharedMemory::Memfd(4096, 0));
  EXPECT_EQ(unsealed.hello().code, absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Serves(unsealed.stub())) << "it goes on as a plain connection";
  EXPECT_THAT(Text(Rotate(unsealed.stub(), kSample.InPlace(1, 0))), StartsWith("5 "));
}

TEST_F(RegionSessionTest, ClientOfAnotherHelloVersionGoesOnInline) {
  for (const char version : {'\0', '\1', '\7'}) {  // 1: the schema before v1 was frozen
    const SharedMemory memory = SharedMemory::Memfd(4096);
    proto::FileDescriptor connection = ConnectUnix(path_);
    proto::HelloBytes hello = proto::Encode(proto::ClientHello{4096});
    hello[8] = version;  // after the magic
    ASSERT_TRUE(proto::SendHello(connection.get(), hello, {memory.fd()}, 0));
    proto::HelloBytes bytes{};
    ASSERT_EQ(recv(connection.get(), bytes.data(), bytes.size(), MSG_WAITALL), 32);
    EXPECT_EQ(proto::DecodeServerHello(bytes)->code, absl::StatusCode::kUnimplemented);
    fcntl(connection.get(), F_SETFL, O_NONBLOCK);
    const auto stub =
        v1::RopeService::NewStub(grpc::CreateInsecureChannelFromFd("inline", connection.release()));
    EXPECT_TRUE(Serves(*stub));
  }
}

TEST_F(RegionSessionTest, GarbageAndSilenceHoldUpNobody) {
  std::vector<proto::FileDescriptor> silent(200);
  for (proto::FileDescriptor& connection : silent) connection = ConnectUnix(path_);
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ(send(silent[i].get(), "RoPEmem1", 8, 0), 8);
  const std::string garbage(32, 'R');
  for (size_t i = 50; i < 100; ++i) EXPECT_EQ(send(silent[i].get(), garbage.data(), 32, 0), 32);
  for (int i = 0; i < 10; ++i) {
    RegionClient client(path_, 8192);
    EXPECT_TRUE(RotatesRight(client));
  }
  for (size_t i = 50; i < 100; ++i) {
    char byte = 0;
    EXPECT_LE(recv(silent[i].get(), &byte, 1, 0), 0) << "garbage is no connection";
  }
}

TEST_F(RegionSessionTest, KilledClientLosesItsRegionsAndHurtsNobody) {
  RegionClient bystander(path_, 16384);
  for (int i = 0; i < 10; ++i) {
    Process victim({VictimProgram(), "regions", path_});
    std::string line = victim.ReadLine();
    while (!line.empty() && line != "rotating") line = victim.ReadLine();
    ASSERT_EQ(line, "rotating");
    for (int j = 0; j < i; ++j) EXPECT_TRUE(RotatesRight(bystander));  // kill it later each time
    victim.Signal(SIGKILL);
    EXPECT_EQ(victim.Wait(), -SIGKILL);
    EXPECT_TRUE(RotatesRight(bystander));
    AwaitRegionBytes(16384);
  }
  EXPECT_EQ(Value("rope_requests_in_flight"), 0);
}

TEST(RegionsOffTest, SharedMemoryIsOffByDefault) {
  const std::string path = TemporaryFolder() + "/s";
  TestServer server({"--listen=unix:" + path});
  RegionClient client(path, 4096);
  EXPECT_EQ(client.hello().code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.hello().region_id, 0u);
  EXPECT_TRUE(Serves(client.stub()));
  const auto stub = server.NewStub();
  EXPECT_THAT(Info(*stub).transports(), ElementsAre("inline"));
  EXPECT_THAT(Text(Rotate(*stub, kSample.InPlace(1, 0))),
              AllOf(StartsWith("9 tensors[0].array.region"), HasSubstr("--enable_shared_memory")));
  EXPECT_THAT(KindsListed(*stub), ElementsAre());
}

TEST(RegionQuotaTest, FlagsBoundWhatIsRegistered) {
  const std::string path = TemporaryFolder() + "/s";
  TestServer server({"--enable_shared_memory", "--listen=unix:" + path,
                     "--shared_memory_bytes=12288", "--session_memory_bytes=8192"});
  RegionClient first(path, 8192);
  EXPECT_EQ(first.hello().code, absl::StatusCode::kOk);
  EXPECT_EQ(RegionClient(path, 8193).hello().code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RegionClient(path, 8192).hello().code, absl::StatusCode::kResourceExhausted);
  RegionClient second(path, 4096);
  EXPECT_EQ(second.hello().code, absl::StatusCode::kOk);
}

int64_t LimitOf(const v1::GetServerInfoResponse& info, const std::string& name) {
  for (const v1::Limit& limit : info.limits()) {
    if (limit.name() == name) return limit.value();
  }
  return -1;
}

// Rotates the client's whole memory in place, none of whose pages it has touched.
void RotateAll(RegionClient& client) {
  const Sample step = {.tokens = 4096, .heads = 64};
  for (uint64_t at = 0; at + step.bytes() <= client.memory().bytes(); at += step.bytes()) {
    ASSERT_EQ(Text(Rotate(client.stub(), step.InPlace(client.id(), at))), "OK") << at;
  }
}

TEST(RegionQuotaTest, DefaultsFitAContainer) {
  constexpr int64_t kMiB = 1 << 20;
  if (!kMemoryIsMeasured) GTEST_SKIP() << "a sanitizer's memory uses up the container's";
  const std::string path = TemporaryFolder() + "/s";
  const MemoryLimit container(1024 * kMiB);
  TestServer server({"--enable_shared_memory", "--listen=unix:" + path}, Process::Errors::kOurs,
                    &container);
  const auto stub = server.NewStub();
  const v1::GetServerInfoResponse info = Info(*stub);
  EXPECT_EQ(LimitOf(info, "shared_memory_bytes"), 256 * kMiB);
  EXPECT_EQ(LimitOf(info, "session_memory_bytes"), 128 * kMiB);
  std::vector<std::unique_ptr<RegionClient>> clients;
  for (const uint64_t bytes : {3072 * kMiB, 128 * kMiB, 128 * kMiB}) {
    clients.push_back(std::make_unique<RegionClient>(path, bytes));
    if (clients.back()->id() != 0) RotateAll(*clients.back());
  }
  EXPECT_EQ(clients[0]->hello().code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(clients[2]->hello().code, absl::StatusCode::kOk);
  std::printf("measured: 256 MiB of clients' memory touched in 1 GiB (%s)\n", container.kind());
  EXPECT_EQ(Info(*stub).instance_id(), info.instance_id());
}

// Memory that the program has already, through a real server: where it is a sealed memfd, the
// server works in it; any other file gives the same answers by copies.

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
