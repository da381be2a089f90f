// The README's examples are what the programs do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
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
