// The owner of shared memory, and hostile or dying clients: they may harm only themselves.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/memory_limit.h"
#include "tests/support/metrics_page.h"
#include "tests/support/process.h"
#include "tests/support/region_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

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

}  // namespace
}  // namespace rope::testing
