// ropectl load against a real server.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

class LoadTest : public ::testing::Test {
 protected:
  Outcome Load(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {RopectlProgram(), "load"});
    arguments.push_back("--target=" + server_.address());
    return RunProgram(arguments);
  }

  TestServer server_;
};

TEST_F(LoadTest, FixedCountIsAnswered) {
  const Outcome outcome = Load({"--transport=inline", "--requests=500", "--concurrency=8",
                                "--tokens=2", "--dtype=fp32", "--model=llama-3.1-8b", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json["transport"], "inline");
  EXPECT_EQ(json["answered"], 500);
  EXPECT_EQ(json["failed"], 0);
  const double rate = 500 / json["seconds"].get<double>();
  EXPECT_NEAR(json["requests_per_second"].get<double>(), rate, 1e-6 * rate);
  EXPECT_NEAR(json["tokens_per_second"].get<double>(), 2 * rate, 1e-6 * rate);
  const double gigabytes = rate * 2 * 40 * 128 * 4 / 1e9;
  EXPECT_NEAR(json["gigabytes_per_second_in"].get<double>(), gigabytes, 1e-6 * gigabytes);
  EXPECT_GT(json["latency_us"]["p50"].get<double>(), 0);
  EXPECT_LE(json["latency_us"]["p50"].get<double>(), json["latency_us"]["max"].get<double>());
}

TEST_F(LoadTest, TransportThatIsNotBuiltYetIsRefusedByName) {
  EXPECT_THAT(Load({"--requests=5", "--transport=cuda"}),
              Exits(1, HasSubstr("UNIMPLEMENTED: --transport: got cuda")));
}

TEST_F(LoadTest, MemoryThatTheServerDoesNotShareHasStatusOne) {
  Outcome outcome = Load({"--requests=5", "--transport=staged"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("want unix:PATH"));
  outcome = Load({"--requests=5", "--transport=ring"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("want unix:PATH"));
}

TEST(SharedLoadTest, SharedMemoryAnswersTheSame) {
  const std::string path = "unix:" + TemporaryFolder() + "/load.sock";
  TestServer server({"--listen=" + path, "--enable_shared_memory"});
  for (const std::string transport : {"staged", "ring", "memfd"}) {
    const Outcome outcome =
        RunProgram({RopectlProgram(), "load", "--target=" + path, "--transport=" + transport,
                    "--requests=500", "--concurrency=4", "--tokens=16", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const auto json = nlohmann::json::parse(outcome.output);
    EXPECT_EQ(json["transport"], transport);
    EXPECT_EQ(json["answered"], 500);
  }
}

}  // namespace
}  // namespace rope::testing
