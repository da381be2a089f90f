// The command-line tool against a real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(ROPE_SOURCE_DIR "/tests/conformance/golden")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  return files;
}

class RopectlTest : public ::testing::Test {
 protected:
  Outcome Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), RopectlProgram());
    arguments.push_back("--target=" + server_.address());
    return RunProgram(arguments);
  }

  // Writes a golden file after `change` has modified it.
  template <typename Change>
  std::string Altered(const std::string& name, const Change& change) {
    std::ifstream in(std::string(ROPE_SOURCE_DIR "/tests/conformance/golden/") + name + ".json");
    nlohmann::json golden = nlohmann::json::parse(in);
    change(golden);
    const std::string path = TemporaryFolder() + "/" + name + ".json";
    std::ofstream(path) << golden.dump();
    return path;
  }

  TestServer server_;
};

TEST_F(RopectlTest, VerifyFindsEveryGoldenFileWithinTolerance) {
  std::vector<std::string> arguments = {"verify"};
  const std::vector<std::string> files = GoldenFiles();
  ASSERT_GE(files.size(), 27u);
  arguments.insert(arguments.end(), files.begin(), files.end());
  const Outcome outcome = Run(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  RecordProperty("verify", outcome.output);
}

TEST_F(RopectlTest, VerifyFailsOnANumberThatIsOff) {
  const std::string path = Altered("default_half_d64", [](nlohmann::json& golden) {
    golden["q_out_f64"][7] = golden["q_out_f64"][7].get<double>() + 1e-3;
  });
  const Outcome outcome = Run({"verify", path});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("default_half_d64"));
}

TEST_F(RopectlTest, VerifyFailsOnAChannelThatShouldHavePassedThrough) {
  const std::string path = Altered("partial_half_gpt_neox_d128_r32", [](nlohmann::json& golden) {
    golden["q_out_f64"][100] = golden["q_out_f64"][100].get<double>() + 1e-9;
  });
  EXPECT_EQ(Run({"verify", path}).status, 1);
}

TEST_F(RopectlTest, VerifyFailsOnABadFileAndStillChecksTheOthers) {
  const std::string bad = Altered("default_half_d64", [](nlohmann::json& g) { g.erase("q"); });
  const std::string good = ROPE_SOURCE_DIR "/tests/conformance/golden/linear_d80.json";
  const Outcome outcome = Run({"verify", bad, "/does/not/exist.json", good});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("linear_d80"));
}

TEST_F(RopectlTest, DescribeReadsAConfigFileAndWarnsWhereImplementationsDiffer) {
  const std::string path = TemporaryFolder() + "/config.json";
  std::ofstream(path) << R"({"model_type": "llama", "head_dim": 64, "rope_theta": 150000,
    "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 32,
    "original_max_position_embeddings": 4096}})";
  const Outcome outcome = Run({"describe", "--config=" + path});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("yarn"));
  EXPECT_THAT(outcome.output, HasSubstr("truncate"));
  EXPECT_THAT(outcome.output, HasSubstr("1.34657359027997"));
}

TEST_F(RopectlTest, ModelsListsThePresets) {
  const Outcome outcome = Run({"models"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("llama-3.1-8b"));
}

TEST_F(RopectlTest, HealthExitsZeroWhileServingAndOtherwiseOne) {
  const Outcome serving = Run({"health"});
  EXPECT_EQ(serving.status, 0) << serving.output;
  EXPECT_THAT(serving.output, HasSubstr("SERVING"));
  server_.process().Signal(SIGTERM);
  server_.process().Wait();
  EXPECT_EQ(Run({"health", "--timeout=2s"}).status, 1);
}

TEST_F(RopectlTest, UsageErrorsExitTwo) {
  EXPECT_EQ(RunProgram({RopectlProgram(), "frobnicate"}).status, 2);
  EXPECT_EQ(RunProgram({RopectlProgram()}).status, 2);
}

TEST_F(RopectlTest, AModelFileOfTheOperatorsIsServed) {
  const std::string path = TemporaryFolder() + "/config.json";
  std::ofstream(path) << R"({"model_type": "llama", "head_dim": 4, "rope_theta": 7})";
  TestServer server({"--model=mine=" + path});
  const Outcome outcome =
      RunProgram({RopectlProgram(), "describe", "--model=mine", "--target=" + server.address()});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("7"));
}

}  // namespace
}  // namespace rope::testing
