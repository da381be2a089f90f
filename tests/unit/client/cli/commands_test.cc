#include "client/cli/commands.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/match.h"
#include "tests/support/matchers.h"

namespace rope::client {
namespace {

struct Outcome {
  int exit_status = 0;
  std::string out;
  std::string err;
};

Outcome Ropectl(const std::vector<absl::string_view>& arguments) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.exit_status = RunRopectl(arguments);
  std::fflush(stdout);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(CommandsTest, HelpListsEveryCommandAndFlag) {
  EXPECT_EQ(Ropectl({"help"}).exit_status, kExitOk);
  EXPECT_EQ(Ropectl({"--help"}).exit_status, kExitOk);
  for (const Command& command : Commands()) {
    EXPECT_THAT(Ropectl({"help"}).out, HasSubstr(std::string(command.name)));
    const Outcome help = Ropectl({"help", command.name});
    EXPECT_EQ(help.exit_status, kExitOk);
    EXPECT_EQ(Ropectl({command.name, "--help"}).out, help.out);
    for (const Flag& flag : command.flags) {
      EXPECT_THAT(help.out, HasSubstr("--" + std::string(flag.name)));
    }
    EXPECT_EQ(absl::StrContains(help.out, "--target"), (command.asks != Command::Asks::kNobody));
    EXPECT_THAT(help.out, HasSubstr(std::string(command.exits)));
  }
}

TEST(CommandsTest, MisuseHasStatusTwo) {
  const std::pair<std::vector<absl::string_view>, const char*> cases[] = {
      {{}, "usage: ropectl"},
      {{"nope"}, "got the command 'nope'"},
      {{"help", "nope"}, "got the command 'nope'"},
      {{"models", "--layer=1"}, "command line: got \"--layer=1\""},
      {{"model"}, "did you mean models?"},
      {{"models", "--targe=x"}, "did you mean --target?"},
      {{"models", "extra"}, "got \"extra\", want a flag"},
      {{"models", "--timeout=0s"}, "--timeout: got no time"},
      {{"describe"}, "got 0 of them, want exactly one"},
      {{"describe", "--model=a", "--config_id=b"}, "got 2 of them, want exactly one"},
      {{"describe", "--model=a", "--layer=-1"}, "--layer: got -1"},
      {{"describe", "--model=a", "--pairing=both"}, "--pairing: got both"},
      {{"diagnose", "--before=q.npy"}, "want `ropeserve diagnose` of the Python package"},
      {{"health", "a", "b"}, "got two services"},
      {{"describe", "a.json", "--model=b"}, "got 2 of them, want exactly one"},
      {{"lint"}, "lint: got no file"},
      {{"lint", "x.json", "--target=y"}, "--target"},
      {{"diff", "a.json"}, "diff: got 1 files, want two"},
      {{"verify"}, "got no file"},
      {{"rotate", "--model=a"}, "--q, --k: got none"},
      {{"reposition", "--model=a"}, "--q, --k: got none"},
      {{"reposition", "--model=a", "--k=a", "--output_k=b", "--layout=SD", "--start=1"},
       "--from_start, --from_starts, --from_positions: got none"},
      {{"reposition", "--model=a", "--k=a", "--output_k=b", "--layout=SD", "--by=1", "--start=1"},
       "--by: got it and a start"},
      {{"tables", "--model=a", "--output=b"}, "--end, --positions: got both or none"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--positions=1"}, "got both or none"},
      {{"tables", "--model=a", "--output=b", "--begin=2", "--end=2"},
       "--begin, --end: got 2 and 2"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--from_positions=1"},
       "--from_positions: got 1 positions, want 2"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--from_model=c"}, "--from_begin"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--dtype=fp8"}, "--dtype: got fp8"},
      {{"tables", "--model=a", "--output=b", "--end=2", "--layout=cos_sin"}, "--output_cos"},
      {{"tables", "--model=a", "--output_cos=b", "--end=2"}, "--output: want FILE.npy"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Ropectl(arguments);
    EXPECT_EQ(outcome.exit_status, kExitUsage) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST(CommandsTest, FailedCallHasStatusOneAndSaysWhy) {
  const Outcome outcome =
      Ropectl({"--target=unix:/nonexistent/rope.sock", "models", "--timeout=100ms"});
  EXPECT_EQ(outcome.exit_status, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("UNAVAILABLE: unix:/nonexistent/rope.sock: "));
}

TEST(CommandsTest, PlotSaysWhichProgramDraws) {
  const Outcome outcome = Ropectl({"describe", "--model=a", "--plot=x.svg"});
  EXPECT_EQ(outcome.exit_status, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("want `ropeserve plot CONFIG --output=FILE`"));
}

TEST(CommandsTest, ConfigThatCannotBeReadHasStatusOne) {
  const Outcome outcome = Ropectl({"describe", "--config=/nonexistent/config.json"});
  EXPECT_EQ(outcome.exit_status, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/config.json: cannot be read (no such file"));
  EXPECT_THAT(Ropectl({"describe", "llama-3.1-8"}).err, HasSubstr("did you mean llama-3.1-8b?"));
  EXPECT_THAT(Ropectl({"describe", "/proc/self/mem"}).err, HasSubstr("(Input/output error)"));
}

TEST(CommandsTest, AMisspeltVariableIsNamed) {
  setenv("ROPE_TARGT", "x", 1);
  EXPECT_THAT(Ropectl({"models"}).err, HasSubstr("warning: ROPE_TARGT: is not read"));
  unsetenv("ROPE_TARGT");
}

}  // namespace
}  // namespace rope::client
