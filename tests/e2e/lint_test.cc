// ropectl lint, diff and describe without a server, on real files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

const std::string kConfigs = std::string(ROPE_SOURCE_DIR) + "/tests/conformance/configs";

Outcome Ropectl(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), RopectlProgram());
  return RunProgram(arguments);
}

std::string Written(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
  return path;
}

constexpr char kPlain[] = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 10000,
  "max_position_embeddings": 4096})";
constexpr char kMscale[] = R"({"model_type": "deepseek_v2", "qk_rope_head_dim": 64,
  "rope_theta": 10000, "max_position_embeddings": 163840,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "mscale": 0.707}})";
constexpr char kRefused[] = R"({"head_dim": 64, "rope_scaling": {"type": "linear"}})";

TEST(OfflineTest, DescribeGivesTheServersAnswerForEveryConfig) {
  TestServer server;
  int answered = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".json") continue;
    for (const char* flag : {"--json", "--positions=0,7,1000000"}) {
      const std::vector<std::string> here = {"describe", "--layer=0",
                                             "--config=" + entry.path().string(), flag};
      std::vector<std::string> there = here;
      there.push_back("--target=" + server.address());
      const Outcome local = Ropectl(here);
      const Outcome remote = Ropectl(there);
      ASSERT_EQ(local.status, remote.status) << entry.path() << local.output;
      if (local.status != 0) continue;
      ++answered;
      EXPECT_EQ(local.output, remote.output) << entry.path();
    }
  }
  EXPECT_GT(answered, 100);
}

TEST(OfflineTest, PresetAndFileNeedNoServerAndAnotherModelDoes) {
  EXPECT_THAT(Ropectl({"describe", "--model=llama-3.1-8b"}), Exits(0, HasSubstr("llama3")));
  const std::string path = Written(TemporaryFolder() + "/config.json", kMscale);
  EXPECT_THAT(Ropectl({"describe", path}), Exits(0, HasSubstr("mscale without mscale_all_dim")));
  const Outcome both = Ropectl({"describe", path, "--model=llama-3.1-8b"});
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(Ropectl({"describe", path, "--target=unix:/nonexistent/rope.sock"}),
              Exits(1, HasSubstr("UNAVAILABLE")));
  EXPECT_THAT(Ropectl({"describe", Written(TemporaryFolder() + "/x.json", kRefused)}),
              Exits(1, AllOf(HasSubstr("INVALID_ARGUMENT: "), HasSubstr("factor: got nothing"))));
}

TEST(LintTest, StatusFollowsTheHeaviestFindingAndFailOn) {
  const std::string folder = TemporaryFolder();
  const std::string plain = Written(folder + "/plain.json", kPlain);
  const std::string mscale = Written(folder + "/mscale.json", kMscale);
  const std::string refused = Written(folder + "/refused.json", kRefused);
  EXPECT_EQ(Ropectl({"lint", plain, "--fail_on=reading"}).status, 0);
  EXPECT_EQ(Ropectl({"lint", mscale}).status, 0);
  EXPECT_EQ(Ropectl({"lint", mscale, "--fail_on=warning"}).status, 1);
  EXPECT_EQ(Ropectl({"lint", mscale, "--fail_on=reading"}).status, 1);
  EXPECT_THAT(Ropectl({"lint", plain, refused}),
              Exits(1, AllOf(HasSubstr(refused + ":1: error: "), HasSubstr("pairing"))))
      << "with the table";
  EXPECT_EQ(Ropectl({"lint", folder + "/none.json"}).status, 2);
  EXPECT_EQ(Ropectl({"lint", refused, folder + "/none.json"}).status, 2);
}

TEST(LintTest, WrongUsageHasStatusTwo) {
  const std::string plain = Written(TemporaryFolder() + "/plain.json", kPlain);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"lint"},
                                             {"lint", plain, "--fail_on=nothing"},
                                             {"lint", plain, "--engine=abacus"},
                                             {"lint", plain, "--engine=vllm@"},
                                             {"lint", plain, "--engine=vllm@abc"},
                                             {"lint", plain, "--engine=hf@5.x"},
                                             {"lint", plain, "--ignore=near-mis-key"},
                                             {"lint", plain, "--baseline=" + plain},
                                             {"lint", plain, "--baseline=/nonexistent.json"},
                                             {"lint", plain, "--write_baseline=/nonexistent/b"},
                                             {"lint", plain, "--json", "--sarif"},
                                             {"lint", plain, "--target=127.0.0.1:1"},
                                             {"diff", plain},
                                             {"diff", plain, plain, plain},
                                             {"diff", plain, plain, "--error=0"}}) {
    EXPECT_THAT(Ropectl(arguments), Exits(2, HasSubstr("ropectl: ")));
  }
  EXPECT_THAT(Ropectl({"lint", "--help"}).output, HasSubstr("Exit status 0"));
  EXPECT_THAT(Ropectl({"diff", "--help"}).output, HasSubstr("Exit status 0"));
}

TEST(LintTest, IgnoredRulesAndTheBaselineAreNotCounted) {
  const std::string folder = TemporaryFolder();
  const std::string mscale = Written(folder + "/mscale.json", kMscale);
  EXPECT_EQ(Ropectl({"lint", mscale, "--fail_on=warning", "--ignore=lone-mscale"}).status, 0);
  EXPECT_EQ(Ropectl({"lint", mscale, "--fail_on=note", "--ignore=lone-mscale"}).status, 1);
  EXPECT_EQ(Ropectl({"lint", mscale, "--fail_on=note", "--ignore=lone-mscale,rounded-ramp",
                     "--ignore=default-assumed", "--ignore=read-differently",
                     "--ignore=scaled-differently"})
                .status,
            0);
  const std::string baseline = "--baseline=" + folder + "/baseline.json";
  EXPECT_EQ(
      Ropectl({"lint", mscale, "--fail_on=note", "--write_baseline=" + folder + "/baseline.json"})
          .status,
      0);
  EXPECT_EQ(Ropectl({"lint", mscale, "--fail_on=note", baseline}).status, 0);
  // A new mistake is counted, and the lines before it may move.
  Written(folder + "/mscale.json", "\n\n" + std::string(kMscale).insert(1, "\"rope_teta\": 1,"));
  EXPECT_THAT(Ropectl({"lint", mscale, "--fail_on=warning", baseline}),
              Exits(1, AllOf(HasSubstr("mscale.json:3: warning: key \"rope_teta\" is not read"),
                             Not(HasSubstr("lone-mscale")))));
}

TEST(LintTest, HostileFilesAreFindingsAndNoCrash) {
  const std::string folder = TemporaryFolder();
  for (const std::string& text :
       {std::string("{\"a\":"), std::string(), std::string("\xff\xfe\x00", 3),
        std::string(1 << 20, '['), std::string(1 << 19, '[') + std::string(1 << 19, ']')}) {
    const std::string path = Written(folder + "/config.json", text);
    EXPECT_THAT(Ropectl({"lint", path}), Exits(1, HasSubstr("error: config_json: got")));
    EXPECT_EQ(Ropectl({"diff", path, path}).status, 2);
    EXPECT_EQ(Ropectl({"describe", path}).status, 1);
  }
  Written(folder + "/config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(Ropectl({"lint", folder}), Exits(2, HasSubstr("more than 1048576 bytes")));
}

TEST(LintTest, GgufFileIsRefusedWithTheProgramThatReadsIt) {
  const std::string path = Written(TemporaryFolder() + "/model.gguf", "GGUF and more");
  const std::vector<std::vector<std::string>> commands = {
      {"lint", path}, {"diff", path, path}, {"describe", path}, {"describe", "--config=" + path}};
  for (const std::vector<std::string>& command : commands) {
    EXPECT_THAT(
        Ropectl(command),
        Exits(2, HasSubstr(path + ": got a GGUF file, want a config.json; `ropeserve lint`")));
  }
}

TEST(OfflineTest, SubConfigIsChosenHereAsOnTheServer) {
  TestServer server;
  const std::string path =
      Written(TemporaryFolder() + "/config.json",
              R"({"model_type": "qwen2_5_vl", "head_dim": 128, "rope_theta": 1000000,
          "vision_config": {"model_type": "qwen2_5_vl", "hidden_size": 1280, "num_heads": 16}})");
  const std::vector<std::string> vision = {"describe", path, "--sub_config=vision_config"};
  std::vector<std::string> asked = vision;
  asked.push_back("--target=" + server.address());
  for (const std::vector<std::string>& arguments : {vision, asked}) {
    EXPECT_THAT(Ropectl(arguments), Exits(0, AllOf(HasSubstr("head_dim          80\n"),
                                                   HasSubstr("theta             10000\n"))));
  }
  EXPECT_THAT(Ropectl({"describe", path}).output, HasSubstr("theta             1000000\n"));
  EXPECT_THAT(Ropectl({"describe", path, "--sub_config=audio_config"}),
              Exits(1, HasSubstr("want one of vision_config")));
  EXPECT_EQ(Ropectl({"lint", path, "--sub_config=audio_config"}).status, 1);
  EXPECT_EQ(Ropectl({"diff", path, path, "--sub_config=vision_config"}).status, 0);
}

TEST(DiffTest, StatusSaysWhetherFilesDifferOrAreUnreadable) {
  const std::string folder = TemporaryFolder();
  const std::string plain = Written(folder + "/plain.json", kPlain);
  const std::string mscale = Written(folder + "/mscale.json", kMscale);
  EXPECT_THAT(Ropectl({"diff", plain, plain}), Exits(0, HasSubstr("all layers: equal")));
  EXPECT_EQ(Ropectl({"diff", plain, mscale}).status, 1);
  EXPECT_EQ(Ropectl({"diff", plain, folder + "/none.json"}).status, 2);
}

}  // namespace
}  // namespace rope::testing
