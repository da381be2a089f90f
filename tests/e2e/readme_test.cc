// The README's examples are what the programs do.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

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

TEST(ReadmeTest, ChunkExampleMovesTheChunkInTheProgramsMemory) {
  const std::string target = "unix:" + TemporaryFolder() + "/s";
  const TestServer server({"--device=cpu", "--listen=" + target, "--enable_shared_memory"});
  const Outcome outcome = RunProgram({ROPE_BINARY_DIR "/bin/rope_chunk_example", target});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  ASSERT_THAT(outcome.output, StartsWith("ring \n"));
  EXPECT_NEAR(std::stod(outcome.output.substr(6)), std::cos(1000.0) - std::sin(1000.0), 3e-7);
}

TEST(ReadmeTest, ServersExampleAsksBoth) {
  const std::vector<std::string> flags = {"--device=cpu", "--metrics_listen=127.0.0.1:0"};
  const TestServer first(flags);
  const TestServer second(flags);
  const std::string target = first.address() + "," + second.address();
  for (const TestServer* server : {&first, &second}) {
    const auto is_asked = [server] {
      return Scrape(MetricsPort(*server))
                 .Value(R"(rope_requests_total{code="OK",method="Rotate"})") >= 1;
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_asked() && std::chrono::steady_clock::now() < end) {
      const Outcome outcome = RunProgram({ROPE_BINARY_DIR "/bin/rope_servers_example", target});
      ASSERT_EQ(outcome.status, 0) << outcome.output;
    }
    EXPECT_TRUE(is_asked());
  }
}

// The lines of an example that client/README.md quotes.
TEST(ReadmeTest, ExcerptsAreLinesOfTheFilesThatAreCompiled) {
  const std::pair<const char*, const char*> excerpts[] = {
      {"chunk_example.cc", "const auto pool = "},
      {"servers_example.cc", "auto client = rope::client::Client::Connect(target);"},
      {"mock_example.cc", "auto connection = std::make_shared<rope::client::MockConnection>();"},
  };
  const std::string readme = ReadFile("client/README.md");
  for (const auto& [name, first_line] : excerpts) {
    const size_t begin = readme.find(std::string("```cpp\n") + first_line);
    ASSERT_NE(begin, std::string::npos) << name;
    const size_t text = begin + std::strlen("```cpp\n");
    const std::string excerpt = readme.substr(text, readme.find("```", text) - text);
    const std::string file = ReadFile(std::string("client/quickstart/") + name);
    EXPECT_THAT(absl::StrReplaceAll(file, {{"\n  ", "\n"}}), HasSubstr("\n" + excerpt));
  }
}

TEST(ReadmeTest, ConfigCheckOfTheFirstScreenPrintsWhatThePageSays) {
  const std::string readme = ReadFile("README.md");
  const std::string config = "tests/conformance/configs/ministral-3-8b.json";
  ASSERT_THAT(readme, HasSubstr("build/bin/ropectl describe " + config));
  const Outcome outcome = RunProgram({RopectlProgram(), "describe", ROPE_SOURCE_DIR "/" + config});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::istringstream lines(outcome.output);
  int shown = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("reads this differently") == std::string::npos &&
        line.find("attention factor  ") != 0) {
      continue;
    }
    EXPECT_THAT(readme, HasSubstr("    " + line + "\n"));
    ++shown;
  }
  EXPECT_EQ(shown, 3) << outcome.output;
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
