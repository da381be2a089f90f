// Memory that the server registers with its device: regions of clients, and output buffers. The
// CUDA runtime is the fake one, so this needs no GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/metrics_page.h"
#include "tests/support/region_client.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

constexpr double kClose = 1e-5;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{{"--device=cuda", "--threads=2", "--enable_shared_memory",
                      "--listen=unix:" + path_, "--metrics_listen=127.0.0.1:0"},
                     Process::Errors::kOurs,
                     nullptr,
                     FakeCudaServerProgram()};
};

// Each client's region comes and goes, so that the kernel uses the addresses again.
TEST_F(DeviceMemoryTest, RegionsOfClientsThatComeAndGoAreRotatedInPlace) {
  for (const int64_t tokens : {3, 4000, 700, 9000, 50, 4000, 3}) {
    const Sample sample = {.tokens = tokens, .heads = 8};
    SharedMemory memory = SharedMemory::Memfd(64 + sample.bytes());
    std::memset(memory.data(), 0, memory.bytes());  // all of its pages exist
    RegionClient client(path_, std::move(memory));
    for (int round = 0; round < 3; ++round) {
      sample.Fill(client.memory().As<float>(64));
      v1::RotateResponse response;
      ASSERT_EQ(Text(Rotate(client.stub(), sample.InPlace(client.id(), 64), &response)), "OK");
      EXPECT_EQ(response.device(), "cuda:0");
      EXPECT_LT(sample.Error(client.memory().As<float>(64)), kClose) << tokens << " tokens";
    }
  }
  while (Scrape(MetricsPort(server_)).Value("rope_region_bytes") != 0) {
  }
}

TEST_F(DeviceMemoryTest, RepliesComeFromOutputBuffersOfAllSizes) {
  const auto stub = server_.NewStub();
  for (const int64_t tokens : {3, 4000, 700, 9000, 50, 4000, 3}) {
    const Sample sample = {.tokens = tokens, .heads = 8};
    for (int round = 0; round < 3; ++round) {
      v1::RotateResponse response;
      ASSERT_EQ(Text(Rotate(*stub, sample.Inline(), &response)), "OK");
      EXPECT_EQ(response.device(), "cuda:0");
      std::vector<float> values(static_cast<size_t>(sample.elements()));
      const std::string& raw = response.tensors(0).array().raw();
      ASSERT_EQ(raw.size(), sample.bytes());
      std::memcpy(values.data(), raw.data(), raw.size());
      EXPECT_LT(sample.Error(values.data()), kClose) << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace rope::testing
