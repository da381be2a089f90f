#include "client/cli/load/load.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

class LoadTest : public ::testing::Test {
 protected:
  Result<LoadResult> Run(const LoadPlan& plan) {
    return RunLoad(plan, [this](const ConnectOptions& options) {
      ++connections_;
      return Client::Connect(server_.target(), options);
    });
  }

  static LoadPlan Plan(LoadTransport transport, int64_t requests, int64_t concurrency) {
    LoadPlan plan;
    plan.rope.model = "m";
    plan.transport = transport;
    plan.requests = requests;
    plan.concurrency = concurrency;
    return plan;
  }

  FakeServer server_;
  std::atomic<int> connections_ = 0;
};

TEST(PercentileTest, IsALatencyThatIsNotExceededByThatPart) {
  EXPECT_EQ(Percentile({}, 50), 0);
  EXPECT_EQ(Percentile({7}, 0.1), 7);
  EXPECT_EQ(Percentile({1, 2, 3, 4}, 50), 2);
  EXPECT_EQ(Percentile({1, 2, 3, 4}, 50.1), 3);
  EXPECT_EQ(Percentile({1, 2, 3, 4}, 100), 4);
}

TEST_F(LoadTest, InlineSendsTheCountOnAConnectionEach) {
  server_.OnRotate(&Echo);
  ASSERT_OK(result, Run(Plan(LoadTransport::kInline, 100, 4)));
  EXPECT_EQ(result->latencies_us.size(), 100u);
  EXPECT_THAT(result->errors, IsEmpty());
  EXPECT_EQ(result->device, "fake");
  EXPECT_GT(result->seconds, 0);
  EXPECT_EQ(server_.rotate_calls(), 101);  // one call before the load is not counted
  EXPECT_EQ(connections_, 4);
}

TEST_F(LoadTest, TensorsAreOfTheShapeAskedFor) {
  v1::RotateRequest sent;
  server_.OnRotate(EchoTo(sent));
  LoadPlan plan = Plan(LoadTransport::kInline, 1, 1);
  plan.tokens = 5;
  plan.heads = 3;
  plan.kv_heads = 0;
  plan.head_dim = 8;
  plan.dtype = DType::kFloat32;
  ASSERT_TRUE(Run(plan).ok());
  ASSERT_EQ(sent.tensors_size(), 1);
  EXPECT_THAT(sent.tensors(0).array().shape(), ElementsAre(5, 3, 8));
  EXPECT_EQ(sent.tensors(0).array().raw().size(), 480u);
  EXPECT_EQ(plan.RequestBytes(), 480);
}

TEST_F(LoadTest, FirstRequestThatFailsEndsTheLoad) {
  server_.OnRotate([](grpc::CallbackServerContext&, const std::string&, std::string&) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "rope.model: got m, want a known one");
  });
  EXPECT_EQ(Run(Plan(LoadTransport::kInline, 10, 1)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(server_.rotate_calls(), 1);
}

TEST_F(LoadTest, DurationEndsIt) {
  server_.OnRotate(&Echo);
  LoadPlan plan = Plan(LoadTransport::kInline, 1, 1);
  plan.requests.reset();
  plan.duration = std::chrono::milliseconds(500);
  ASSERT_OK(result, Run(plan));
  EXPECT_GE(result->seconds, 0.5);
  EXPECT_GT(result->latencies_us.size(), 1u);
}

class CommandLoadTest : public ::testing::Test {
 protected:
  // The exit status; what was printed is in out_ and err_.
  int Load(const std::vector<std::string>& flags) {
    const std::string target = "--target=" + server_.target();
    std::vector<absl::string_view> arguments = {"load", target};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int exit_status = RunRopectl(arguments);
    std::fflush(stdout);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return exit_status;
  }

  FakeServer server_;
  std::string out_;
  std::string err_;
};

TEST_F(CommandLoadTest, PrintsThroughputAndPercentiles) {
  server_.OnRotate(&Echo);
  ASSERT_EQ(Load({"--requests=20", "--concurrency=2", "--tokens=3", "--dtype=fp16"}), kExitOk)
      << err_;
  EXPECT_THAT(out_, HasSubstr("inline, 2 in flight, 3 tokens of 32 + 8 heads of 128 (fp16), on"));
  EXPECT_THAT(out_, HasSubstr("20 answered, 0 failed"));
  for (const char* word :
       {"requests/s", "tokens/s", "GB/s", "p50", "p90", "p99 ", "p99.9", "max"}) {
    EXPECT_THAT(out_, HasSubstr(word));
  }
}

TEST_F(CommandLoadTest, WithoutAConfigTheEmbeddingIsPlainAndHalf) {
  v1::RotateRequest sent;
  server_.OnRotate(EchoTo(sent));
  ASSERT_EQ(Load({"--requests=1", "--head_dim=64"}), kExitOk) << err_;
  EXPECT_EQ(sent.rope().config().head_dim(), 64);
  EXPECT_EQ(sent.rope().pairing(), v1::PAIRING_HALF);
  ASSERT_EQ(Load({"--requests=1", "--model=m", "--pairing=interleaved"}), kExitOk) << err_;
  EXPECT_EQ(sent.rope().model(), "m");
  EXPECT_EQ(sent.rope().pairing(), v1::PAIRING_INTERLEAVED);
  EXPECT_FALSE(sent.rope().has_config());
}

TEST_F(CommandLoadTest, FailedCallsHaveStatusOneAreNotRetriedAndAreListedInJson) {
  server_.OnRotate(
      [this](grpc::CallbackServerContext& context, const std::string& request, std::string& reply) {
        if (server_.rotate_calls() % 5 == 2) {
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no");
        }
        return Echo(context, request, reply);
      });
  EXPECT_EQ(Load({"--requests=50", "--json"}), kExitFailed);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["answered"], 40);
  EXPECT_EQ(json["failed"], 10);
  EXPECT_EQ(json["errors"].dump(), R"({"UNAVAILABLE":10})");
  EXPECT_EQ(json["first_error"], "UNAVAILABLE: no");
}

TEST_F(CommandLoadTest, MisuseIsRefusedBeforeTheServerIsAsked) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--tokens=0"}, "--tokens: got 0, want 1 to 4194304"},
      {{"--heads=0"}, "--heads: got 0"},
      {{"--kv_heads=-1"}, "--kv_heads: got -1"},
      {{"--head_dim=4194305"}, "--head_dim: got 4194305"},
      {{"--tokens=4194304", "--heads=4194304", "--head_dim=4194304"},
       "--tokens: got a request of more than 2147483648 bytes"},
      {{"--dtype=fp8"}, "--dtype: got fp8, want fp32, fp16 or bf16"},
      {{"--transport=pigeon"}, "--transport: got pigeon, want one of inline, staged, ring, memfd"},
      {{"--concurrency=0"}, "--concurrency: got 0, want 1 to 4096"},
      {{"--duration=0s"}, "--duration: got 0s"},
      {{"--requests=0"}, "--requests: got 0"},
      {{"--requests=1", "--duration=1s"}, "--requests: got it and --duration, want one of them"},
      {{"--pairing=half"}, "got 0 of them, want exactly one"},
  };
  for (const auto& [flags, message] : cases) {
    EXPECT_EQ(Load(flags), kExitUsage) << message;
    EXPECT_THAT(err_, HasSubstr(message));
  }
  EXPECT_EQ(server_.rotate_calls(), 0);
}

}  // namespace
}  // namespace rope::client
