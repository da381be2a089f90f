// ropectl against a real server, and the examples of the pages.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "client/cli/local_describe.h"
#include "kernels/config/presets.h"
#include "rope/client.h"
#include "tests/support/metrics_page.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

// The command-line tool against a real server.

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(ROPE_SOURCE_DIR "/tests/conformance/golden")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  return files;
}

std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
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

TEST_F(RopectlTest, VerifyFailsOnABadFileAndVerifiesTheOthers) {
  const std::string path = Altered("default_half_d64", [](nlohmann::json& golden) {
    golden["q_out_f64"][7] = golden["q_out_f64"][7].get<double>() + 1e-3;
  });
  EXPECT_THAT(Run({"verify", path}), Exits(1, HasSubstr("default_half_d64")));
  const Outcome as_json = Run({"verify", "--json", path});
  EXPECT_EQ(as_json.status, 1);
  const nlohmann::json json = nlohmann::json::parse(as_json.output);
  EXPECT_FALSE(json[0]["ok"]);
  EXPECT_GT(json[0]["fp32"], 1);
  const std::string garbage = TemporaryFolder() + "/garbage.json";
  std::ofstream(garbage) << "{";
  const std::string refused = Altered(
      "default_half_d64", [](nlohmann::json& golden) { golden["config"]["rope_theta"] = -1; });
  EXPECT_THAT(Run({"verify", garbage, "/nonexistent.json", path, refused, GoldenFiles().front()}),
              Exits(1, AllOf(HasSubstr("FAIL got other text, want a JSON object"),
                             HasSubstr("FAIL /nonexistent.json: cannot be read"),
                             HasSubstr("FAIL fp32: q["), HasSubstr("FAIL fp32: INVALID_ARGUMENT: "),
                             HasSubstr("   ok\n"))));
}

// Specs of every preset and every published config, as they are and as other callers read them.
std::vector<client::RopeSpec> SpecsToIdentify() {
  std::vector<client::RopeSpec> specs;
  for (const kernels::Preset& preset : kernels::Presets()) specs.push_back({.model = preset.name});
  for (const auto& file :
       std::filesystem::directory_iterator(ROPE_SOURCE_DIR "/tests/conformance/configs")) {
    if (file.path().extension() != ".json") continue;
    std::ifstream in(file.path());
    specs.push_back({.config_json = {std::istreambuf_iterator<char>(in), {}}});
  }
  for (const client::RopeSpec& spec : std::vector<client::RopeSpec>(specs)) {
    client::RopeSpec other = spec;
    other.pairing = client::Pairing::kInterleaved;
    other.precision = client::Precision::kHf;
    specs.push_back(other);
    other.compat = client::Compat::kHf;
    specs.push_back(other);
  }
  return specs;
}

TEST_F(RopectlTest, ConfigIdsWithoutAServerAreTheServers) {
  ASSERT_OK(client, client::Client::Connect(server_.address()));
  std::set<std::string> ids;
  for (const client::RopeSpec& spec : SpecsToIdentify()) {
    SCOPED_TRACE(spec.model + spec.config_json);
    const auto here = client::DescribeHere({.rope = spec});
    if (!here.ok()) {  // Transformers does not read this config: the server says the same
      const auto there = client->Describe({.rope = spec});
      ASSERT_FALSE(there.ok());
      EXPECT_THAT(here.status().message(), StartsWith("compat: got hf"));
      EXPECT_EQ("rope." + here.status().message(), there.status().message());
      continue;
    }
    for (const client::DescribeReply& layer : *here) {
      client::DescribeRequest request{.rope = spec};
      request.rope.layer_type = layer.layer_type;
      ASSERT_OK(there, client->Describe(request));
      EXPECT_EQ(layer.config_id, there->config_id);
      ids.insert(layer.config_id);
    }
  }
  EXPECT_GE(ids.size(), 120u);
  EXPECT_EQ(ids.begin()->size(), 32u);
}

TEST_F(RopectlTest, FingerprintPrintsTheNameOfKAndSameSaysWhatTwoHaveInCommon) {
  const std::string configs = ROPE_SOURCE_DIR "/tests/conformance/configs/";
  const std::string llama = configs + "llama-3.1-8b.json";
  const std::string phi = configs + "phi-3.5-mini.json";
  const std::string here =
      RunProgram({RopectlProgram(), "fingerprint", llama, "--engine=vllm", "--dtype=bf16"}).output;
  EXPECT_THAT(here, MatchesRegex("[0-9a-f]{32}\n"));
  EXPECT_THAT(Run({"fingerprint", llama, "--engine=vllm", "--dtype=bf16"}), Exits(0, Eq(here)));
  EXPECT_THAT(Run({"fingerprint", "--model=llama-3.1-8b", "--engine=vllm", "--dtype=bf16"}),
              Exits(0, Eq(here)));

  EXPECT_THAT(Run({"same", llama, llama, "--engine=vllm@0.33.0,vllm@0.11.0"}),
              Exits(0, HasSubstr("same: an engine writes the same bits of K")));
  EXPECT_THAT(Run({"same", llama, "--engine=vllm,llamacpp"}),
              Exits(1, AllOf(HasSubstr("in another order"),
                             HasSubstr("channel order: half | interleaved"))));
  EXPECT_THAT(Run({"same", phi, "--engine=vllm", "--max_model_len=4096,8192"}),
              Exits(1, AllOf(HasSubstr("convertible by one rotation"), HasSubstr("inv_freq[0]"))));
  EXPECT_THAT(Run({"same", phi, "--engine=vllm"}), Exits(2, HasSubstr("same: got one side")));
  EXPECT_THAT(Run({"same", phi, phi, "--engine=vllm"}),
              Exits(2, HasSubstr("key.max_model_len: got nothing")));
  EXPECT_THAT(Run({"same", llama, "--engine=hf,vllm,sglang"}),
              Exits(2, HasSubstr("--engine: got 3 values, want at most 2")));
  EXPECT_THAT(Run({"fingerprint", llama, "--dtype=int8"}), Exits(2, HasSubstr("fp32, fp16 or")));
  EXPECT_THAT(Run({"fingerprint"}), Exits(2, HasSubstr("want CONFIG or --model")));
}

TEST_F(RopectlTest, DescribeInJsonIsAListOfLayerTypesOrTheChosenOne) {
  std::vector<std::string> describe = {RopectlProgram(), "describe",
                                       ROPE_SOURCE_DIR "/tests/conformance/configs/gemma-3-4b.json",
                                       "--json"};
  EXPECT_EQ(nlohmann::json::parse(RunProgram(describe).output).size(), 2u);
  describe.push_back("--layer=0");
  EXPECT_TRUE(nlohmann::json::parse(RunProgram(describe).output).is_object());
}

TEST_F(RopectlTest, HealthExitsZeroWhileServingAndOtherwiseOne) {
  EXPECT_THAT(Run({"health"}), Exits(0, HasSubstr("SERVING")));
  server_.process().Signal(SIGTERM);
  server_.process().Wait();
  EXPECT_EQ(Run({"health", "--timeout=100ms"}).status, 1);
}

TEST_F(RopectlTest, AModelFileOfTheOperatorsIsServed) {
  const std::string path = TemporaryFolder() + "/config.json";
  std::ofstream(path) << R"({"model_type": "llama", "head_dim": 4, "rope_theta": 7})";
  TestServer server({"--model=mine=" + path});
  EXPECT_THAT(
      RunProgram({RopectlProgram(), "describe", "--model=mine", "--target=" + server.address()}),
      Exits(0, HasSubstr("theta             7\n")));
  const Outcome models =
      RunProgram({RopectlProgram(), "models", "--json", "--target=" + server.address()});
  ASSERT_EQ(models.status, 0);
  const nlohmann::json list = nlohmann::json::parse(models.output);
  EXPECT_TRUE(std::any_of(list.begin(), list.end(), [](const nlohmann::json& model) {
    return model["name"] == "mine" && model["origin"] == "flag";
  }));
}

// The floats of a .npy file, whose data begins at the first multiple of 64 after the header.
std::vector<float> Floats(const std::string& path) {
  const std::string bytes = ReadBytes(path);
  const size_t begin = bytes.find('\n') + 1;
  std::vector<float> floats((bytes.size() - begin) / sizeof(float));
  std::memcpy(floats.data(), bytes.data() + begin, floats.size() * sizeof(float));
  return floats;
}

TEST_F(RopectlTest, TablesLongerThanOneCallAreWrittenInOnePiece) {
  const std::string folder = TemporaryFolder();
  std::ofstream(folder + "/config.json") << R"({"model_type": "llama", "head_dim": 4})";
  const std::string config = "--config=" + folder + "/config.json";
  const Outcome outcome =
      Run({"tables", config, "--end=3000", "--output=" + folder + "/table.npy", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(nlohmann::json::parse(outcome.output)["shape"], nlohmann::json({3000, 4}));
  const std::vector<float> table = Floats(folder + "/table.npy");
  ASSERT_EQ(table.size(), 12000U);
  for (const size_t row : {size_t{0}, size_t{1023}, size_t{1024}, size_t{2999}}) {
    EXPECT_FLOAT_EQ(table[row * 4], static_cast<float>(std::cos(static_cast<double>(row))));
    EXPECT_FLOAT_EQ(table[row * 4 + 2], static_cast<float>(std::sin(static_cast<double>(row))));
  }
  ASSERT_EQ(Run({"tables", config, "--positions=5,6", "--from_begin=3", "--layout=cos_sin",
                 "--output_cos=" + folder + "/cos.npy", "--output_sin=" + folder + "/sin.npy"})
                .status,
            0);
  EXPECT_FLOAT_EQ(Floats(folder + "/sin.npy")[0], std::sin(2.0F));
}

TEST_F(RopectlTest, RepositionMovesWhatRotateHasRotated) {
  const std::string folder = TemporaryFolder();
  const auto npy = [&folder](const std::string& name) { return folder + "/" + name + ".npy"; };
  std::ofstream(folder + "/config.json") << R"({"model_type": "llama", "head_dim": 4})";
  const std::string config = "--config=" + folder + "/config.json";
  // A tensor of two tokens: the rows of a table.
  ASSERT_EQ(Run({"tables", config, "--end=2", "--output=" + npy("k")}).status, 0);
  const auto rotate = [&](const std::string& to, const std::string& start) {
    return Run({"rotate", config, "--k=" + npy("k"), "--output_k=" + npy(to), "--layout=SD",
                "--start=" + start});
  };
  ASSERT_EQ(rotate("at_10", "10").status, 0);
  ASSERT_EQ(rotate("at_500", "500").status, 0);
  const Outcome moved =
      Run({"reposition", config, "--k=" + npy("at_10"), "--output_k=" + npy("moved"), "--layout=SD",
           "--from_start=10", "--start=500", "--json"});
  ASSERT_EQ(moved.status, 0) << moved.output;
  EXPECT_EQ(nlohmann::json::parse(moved.output)["attention_factor"], 1);
  const std::vector<float> got = Floats(npy("moved"));
  const std::vector<float> want = Floats(npy("at_500"));
  ASSERT_EQ(got.size(), 8U);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);
  const auto move = [&](const std::string& by, const std::string& to) {
    return Run({"reposition", config, "--k=" + npy("at_10"), "--output_k=" + npy(to), "--layout=SD",
                "--by=" + by});
  };
  ASSERT_EQ(move("490", "by").status, 0);
  const std::vector<float> by = Floats(npy("by"));
  ASSERT_EQ(by.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(by[i], want[i], 1e-6);
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "llama", "head_dim": 4, "max_position_embeddings": 8,
             "rope_scaling": {"rope_type": "dynamic", "factor": 2}})";
  EXPECT_THAT(move("-3", "x"), Exits(2, HasSubstr("--seq_lens: got none, want the lengths")));
}

TEST_F(RopectlTest, RepositionToAnotherConfigEqualsItsRotation) {
  const std::string folder = TemporaryFolder();
  const auto npy = [&folder](const std::string& name) { return folder + "/" + name + ".npy"; };
  std::ofstream(folder + "/old.json") << R"({"model_type": "llama", "head_dim": 4})";
  std::ofstream(folder + "/new.json")
      << R"({"model_type": "llama", "head_dim": 4, "rope_theta": 500000})";
  const std::string old_config = "=" + folder + "/old.json";
  const std::string new_config = "=" + folder + "/new.json";
  ASSERT_EQ(Run({"tables", "--config" + old_config, "--end=2", "--output=" + npy("k")}).status, 0);
  for (const auto& [config, to] : {std::pair(old_config, "old"), std::pair(new_config, "new")}) {
    ASSERT_EQ(Run({"rotate", "--config" + config, "--k=" + npy("k"), "--output_k=" + npy(to),
                   "--layout=SD", "--start=7"})
                  .status,
              0);
  }
  const Outcome moved =
      Run({"reposition", "--config" + new_config, "--from_config" + old_config, "--k=" + npy("old"),
           "--output_k=" + npy("moved"), "--layout=SD", "--from_start=7", "--start=7"});
  ASSERT_EQ(moved.status, 0) << moved.output;
  const std::vector<float> got = Floats(npy("moved"));
  const std::vector<float> want = Floats(npy("new"));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);
}

// The same command with and without a server.
TEST_F(RopectlTest, FilesNeedNoServerAndAreTheSameByte) {
  const std::string folder = TemporaryFolder();
  const auto here = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), RopectlProgram());
    return RunProgram(arguments);
  };
  const auto same = [&](const std::vector<std::string>& flags, const std::string& output) {
    std::vector<std::string> with = flags;
    std::vector<std::string> without = flags;
    with.push_back("--output" + output + "=" + folder + "/server.npy");
    without.push_back("--output" + output + "=" + folder + "/here.npy");
    const Outcome outcome = here(without);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(Run(with).status, 0);
    EXPECT_EQ(ReadBytes(folder + "/here.npy"), ReadBytes(folder + "/server.npy")) << flags[0];
  };
  const std::string k = "--k=" + folder + "/k.npy";
  std::ofstream(folder + "/config.json") << R"({"model_type": "llama", "head_dim": 4})";
  const std::string config = "--config=" + folder + "/config.json";
  same({"tables", config, "--end=100"}, "");
  std::filesystem::copy(folder + "/here.npy", folder + "/k.npy");
  same({"rotate", config, k, "--layout=SD", "--start=1000"}, "_k");
  same({"reposition", config, k, "--layout=SD", "--from_start=10", "--start=1000"}, "_k");
  EXPECT_EQ(here({"models"}).output, Run({"models"}).output);
  EXPECT_EQ(here({"verify", GoldenFiles().front()}).status, 0);
  const std::vector<std::string> unknown = {"rotate",    "--model=llama-3.1-8",
                                            k,           "--layout=SD",
                                            "--start=0", "--output_k=" + folder + "/x.npy"};
  EXPECT_THAT(here(unknown), Exits(1, HasSubstr("want a preset of this program; --target asks")));
  EXPECT_THAT(here({"tables", "--config_id=0123456789abcdef0123456789abcdef", "--end=1",
                    "--output=" + folder + "/x.npy"}),
              Exits(1, HasSubstr("want the server that gave it")));
}

TEST_F(RopectlTest, InfoNamesTheTransportAndTheMemoryOfItsConnection) {
  const Outcome inline_only = Run({"info", "--json"});
  ASSERT_EQ(inline_only.status, 0) << inline_only.output;
  const nlohmann::json info = nlohmann::json::parse(inline_only.output);
  EXPECT_EQ(info["transport"], "inline");
  EXPECT_TRUE(info["regions"].empty());
  EXPECT_EQ(info["limits"]["tables_rows_max"], 65536);
  EXPECT_EQ(nlohmann::json::parse(Run({"health", "--json"}).output)["status"], "SERVING");
  const std::string path = "unix:" + TemporaryFolder() + "/rope.sock";
  TestServer sharing({"--listen=" + path, "--enable_shared_memory"});
  EXPECT_THAT(RunProgram({RopectlProgram(), "info", "--target=" + path}),
              Exits(0, HasSubstr("region      memfd, 67108864 bytes")));
}

// ropectl lint, diff and describe without a server, on real files.

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
       std::vector<std::vector<std::string>>{{"lint", plain, "--fail_on=nothing"},
                                             {"lint", plain, "--engine=abacus"},
                                             {"lint", plain, "--engine=vllm@"},
                                             {"lint", plain, "--engine=vllm@abc"},
                                             {"lint", plain, "--engine=hf@5.x"},
                                             {"lint", plain, "--ignore=near-mis-key"},
                                             {"lint", plain, "--baseline=" + plain},
                                             {"lint", plain, "--baseline=/nonexistent.json"},
                                             {"lint", plain, "--write_baseline=/nonexistent/b"},
                                             {"lint", plain, "--json", "--sarif"},
                                             {"diff", plain, plain, plain},
                                             {"diff", plain, plain, "--error=0"}}) {
    EXPECT_THAT(Ropectl(arguments), Exits(2, HasSubstr("ropectl: ")));
  }
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

// ropectl load against a real server.

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
  for (const char* flag : {"--transport=staged", "--transport=ring"}) {
    EXPECT_THAT(Load({"--requests=5", flag}), Exits(1, HasSubstr("want unix:PATH")));
  }
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

// The README's examples are what the programs do.

std::string ReadFile(const std::string& path) {
  std::ifstream file(std::string(ROPE_SOURCE_DIR "/") + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ReadmeTest, ClientExampleIsTheFileThatIsCompiled) {
  const std::string example = ReadFile("client/quickstart/example.cc");
  const std::string body = example.substr(example.find("#include"));
  EXPECT_THAT(ReadFile("README.md"), HasSubstr("```cpp\n" + body + "```\n"));
}

TEST(ReadmeTest, ExampleInCIsTheFileThatIsCompiled) {
  const std::string example = ReadFile("client/quickstart/c_example.c");
  const std::string body = example.substr(example.find("#include"));
  EXPECT_THAT(ReadFile("client/README.md"), HasSubstr("```c\n" + body + "```\n"));
}

TEST(ReadmeTest, ClientExamplesRun) {
  TestServer server({"--device=cpu"});
  const Outcome outcome = RunProgram({ROPE_BINARY_DIR "/bin/rope_example", server.address()});
  EXPECT_EQ(RunProgram({ROPE_BINARY_DIR "/bin/rope_embedded_example"}).output, outcome.output);
  for (const std::string& target : {std::string("inproc:"), server.address()}) {
    EXPECT_EQ("cpu: " + RunProgram({ROPE_BINARY_DIR "/tests/rope_c_example", target}).output,
              outcome.output);
  }
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  // All channels are 1 and the first pair has frequency 1: cos p - sin p.
  const double first = std::cos(100000.0) - std::sin(100000.0);
  ASSERT_THAT(outcome.output, HasSubstr("cpu: "));
  EXPECT_NEAR(std::stod(outcome.output.substr(5)), first, 3e-7);
}

// The lines of the example that client/README.md quotes.
TEST(ReadmeTest, ExcerptIsOfTheFileThatIsCompiled) {
  const std::string readme = ReadFile("client/README.md");
  const size_t begin =
      readme.find("```cpp\nauto connection = std::make_shared<rope::client::MockConnection>();");
  ASSERT_NE(begin, std::string::npos);
  const size_t text = begin + std::strlen("```cpp\n");
  const std::string excerpt = readme.substr(text, readme.find("```", text) - text);
  const std::string file = ReadFile("client/quickstart/mock_example.cc");
  EXPECT_THAT(absl::StrReplaceAll(file, {{"\n  ", "\n"}}), HasSubstr("\n" + excerpt));
}

TEST(ReadmeTest, GrpcurlExampleIsTheOneThatQuickstartPrints) {
  const std::string readme = ReadFile("README.md");
  const std::string script = ReadFile("deploy/quickstart.sh");
  for (const char* line :
       {R"("rope": {"config": {"head_dim": 2}, "pairing": "PAIRING_HALF"},)",
        R"("positions": {"position_ids": {"numbers": [1]}},)",
        R"("array": {"dtype": "DTYPE_FP32", "shape": [1, 1, 2], "numbers": [1, 0]}}])"}) {
    EXPECT_THAT(readme, HasSubstr(line));
    EXPECT_THAT(script, HasSubstr(line));
  }
}

}  // namespace
}  // namespace rope::testing
