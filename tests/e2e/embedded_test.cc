// The engine in the caller's own process, as a program uses it: through the public client.
#include "rope/embedded.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/random_jobs.h"
#include "tests/e2e/wide_request.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::RotateReply;
using client::RotateRequest;

constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 128;

std::vector<float> Values(int64_t tokens) {
  std::vector<float> values(static_cast<size_t>(tokens * kHeads * kHeadDim));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 23) - 11;
  return values;
}

RotateRequest RequestFor(const std::vector<float>& values, float* output) {
  RotateRequest request;
  request.rope.model = "llama-3.1-8b";
  request.positions.start = 7;
  const auto tokens = static_cast<int64_t>(values.size()) / (kHeads * kHeadDim);
  request.tensors = {{.layout = "SHD",
                      .shape = {tokens, kHeads, kHeadDim},
                      .data = values.data(),
                      .output = output}};
  return request;
}

// What a server answers to RequestFor(values).
std::vector<float> Rotated(const Client& client, const std::vector<float>& values) {
  std::vector<float> result(values.size());
  EXPECT_TRUE(client.Rotate(RequestFor(values, result.data())).ok());
  return result;
}

class EmbeddedTest : public ::testing::Test {
 protected:
  const TestServer server_{{"--device=cpu"}};
  const Client server_client_ = Client::Connect(server_.address()).value();
  const Client client_ = embedded::Connect().value();
};

TEST_F(EmbeddedTest, AnswersOfOtherMethodsAreThoseOfAServer) {
  const std::string keys =
      R"({"key": {"rope": {"model": "gpt-oss-20b"}, "engine": "vllm", "dtype": "DTYPE_BF16"},
          "other": {"rope": {"model": "gpt-oss-20b"}, "engine": "hf"}})";
  EXPECT_EQ(client_.CallJson("Fingerprint", keys).value(),
            server_client_.CallJson("Fingerprint", keys).value());
  EXPECT_EQ(client_.Health().value(), client::ServingStatus::kServing);
  EXPECT_EQ(client_.Health("other").status().ToString(),
            server_client_.Health("other").status().ToString());
  EXPECT_THAT(client_.CallJson("ListRegions", "{}").value(), HasSubstr("\"regions\": []"));
  EXPECT_THAT(client_.CallJson("ListConnections", "{}").value(), HasSubstr("\"connections\": []"));
  EXPECT_THAT(client_.CallJson("GetServerInfo", "{}").value(), HasSubstr("\"transports\": []"));
  EXPECT_STREQ(Name(client_.transport().transport), "in_process");
}

// No memory is taken for a result, and none is read, before its request has been checked.
TEST_F(EmbeddedTest, ImpossibleSizesAreErrors) {
  std::vector<float> values = Values(1);
  for (float* const output : {static_cast<float*>(nullptr), values.data()}) {
    for (const bool strided : {false, true}) {
      RotateRequest request = RequestFor(values, output);
      request.tensors[0].shape[0] = int64_t{1} << 40;
      if (strided) request.tensors[0].strides = {0, 0, 1};
      if (strided) request.tensors[0].shape[1] = int64_t{1} << 20;
      EXPECT_NE(client_.Rotate(request).status().code(), StatusCode::kOk);
      EXPECT_NE(client_.RotateFuture(request).get().status().code(), StatusCode::kOk);
    }
  }
  EXPECT_TRUE(client_.Rotate(RequestFor(values, nullptr)).ok());
}

TEST_F(EmbeddedTest, ThreadsShareTheEngine) {
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      RandomJobs jobs(seed);
      for (int i = 0; i < 100; ++i) {
        const auto job = jobs.Next();
        if (job->Check(client_.Rotate(job->request())).empty()) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 400);
}

TEST_F(EmbeddedTest, CallbacksRunOnAnotherThreadAndMayCallTheClient) {
  const std::vector<float> values = Values(2);
  const std::vector<float> want = Rotated(server_client_, values);
  std::vector<float> first(values.size());
  std::vector<float> second(values.size());
  std::promise<std::thread::id> done;
  client_.RotateAsync(RequestFor(values, first.data()), [&](const Result<RotateReply>& reply) {
    EXPECT_TRUE(reply.ok());
    EXPECT_EQ(client_.Fence().detail().reason, Reason::kWrongState);
    client_.RotateAsync(RequestFor(values, second.data()), [&](const Result<RotateReply>& next) {
      EXPECT_TRUE(next.ok());
      done.set_value(std::this_thread::get_id());
    });
  });
  EXPECT_NE(done.get_future().get(), std::this_thread::get_id());
  EXPECT_EQ(first, want);
  EXPECT_EQ(second, want);
}

// The callback of the first call holds the thread until the others have been cancelled.
TEST_F(EmbeddedTest, CancelledCallsDoNotRunAndFencesWaitForThoseUnderWay) {
  const std::vector<float> values = Values(1);
  std::vector<float> output(values.size(), -1);
  std::promise<void> go;
  client_.RotateAsync(
      RequestFor(values, nullptr),
      [held = go.get_future().share()](const Result<RotateReply>&) { held.wait(); });
  std::promise<StatusCode> code;
  const client::Call call = client_.RotateAsync(
      RequestFor(values, output.data()),
      [&](const Result<RotateReply>& reply) { code.set_value(reply.status().code()); });
  EXPECT_EQ(client_.Fence({.timeout = std::chrono::milliseconds(1)}).code(),
            StatusCode::kDeadlineExceeded);
  call.Cancel();
  go.set_value();
  EXPECT_EQ(code.get_future().get(), StatusCode::kCancelled);
  EXPECT_TRUE(client_.Fence().ok());
  EXPECT_EQ(output[0], -1);
}

TEST_F(EmbeddedTest, LastClientMayGoBeforeItsCallsAndInACallback) {
  const std::vector<float> values = Values(1);
  std::atomic<int> answered = 0;
  {
    const Client client = embedded::Connect().value();
    for (int i = 0; i < 50; ++i) {
      client.RotateAsync(RequestFor(values, nullptr),
                         [&](const Result<RotateReply>&) { ++answered; });
    }
  }
  EXPECT_EQ(answered, 50);
  auto client = std::make_unique<Client>(embedded::Connect().value());
  std::promise<void> gone;
  client->RotateAsync(RequestFor(values, nullptr), [&](const Result<RotateReply>&) {
    client.reset();
    gone.set_value();
  });
  gone.get_future().wait();
}

TEST_F(EmbeddedTest, CallPastItsDeadlineIsNotRun) {
  std::vector<float> values = Values(1);
  const std::vector<float> before = values;
  const Status status = client_.Rotate(RequestFor(values, values.data()), {.timeout = {}}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(values, before);
}

// The second round uses an id that the engine has forgotten: it keeps 8 MiB for a client. The call
// goes whole, and the engine is asked to prepare it again.
TEST_F(EmbeddedTest, PreparedCallsHaveTheBytesOfWholeOnes) {
  const std::vector<float> values = Values(1);
  RotateRequest whole = RequestFor(values, nullptr);
  const client::PreparedRotation rotation = client_.Prepare(whole).value();
  for (int round = 0; round < 2; ++round) {
    for (const int64_t position : {0, 128, 200000}) {
      whole.positions.start = position;
      std::vector<float> want(values.size());
      whole.tensors[0].output = want.data();
      ASSERT_TRUE(client_.Rotate(whole).ok());
      std::vector<float> outputs[2];
      const auto call = [&](int way) {
        outputs[way].resize(values.size());
        return RotateRequest{.prepared = rotation,
                             .positions = {.start = position},
                             .tensors = {{.data = values.data(), .output = outputs[way].data()}}};
      };
      EXPECT_TRUE(client_.Rotate(call(0)).ok());
      EXPECT_TRUE(client_.RotateFuture(call(1)).get().ok());
      for (const std::vector<float>& output : outputs) EXPECT_EQ(output, want);
    }
    for (const double theta : {1e4, 2e4, 3e4, 4e4}) {
      ASSERT_TRUE(client_.Prepare(WideRequest(theta)).ok());
    }
  }
}

// The rows of 16,384 positions take longer than a millisecond.
// K in a pool of pages of 4 tokens, 2 heads of 8 channels, by a table of 16 rows.
TEST_F(EmbeddedTest, PreparedMovesTakeThePagesOfEachCall) {
  std::vector<float> table;
  for (int i = 0; i < 16 * 8; ++i)
    table.push_back(i % 8 < 4 ? 0.8F : 0.05F * static_cast<float>(i / 8));
  std::vector<float> pool(6 * 4 * 2 * 8);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<float>(i % 31) - 15;
  RotateRequest whole{.operation = client::Operation::kReposition};
  whole.rope.pairing = client::Pairing::kHalf;
  whole.reposition.emplace().by = {3};
  whole.rows.emplace().cos_sin = client::ArrayView{.shape = {16, 8}, .data = table.data()};
  whole.tensors = {{.role = client::Role::kK, .layout = "THD", .shape = {4, 2, 8}}};
  whole.tensors[0].paged = client::PagedTokens{.block_size = 4,
                                               .page_stride = 64,
                                               .token_stride = 16,
                                               .head_stride = 8,
                                               .pool_elements = 384,
                                               .pages = {0}};
  const auto at = [](RotateRequest request, std::vector<float>& memory) {
    request.tensors[0].data = request.tensors[0].output = memory.data();
    return request;
  };
  RotateRequest call{.prepared = client_.Prepare(at(whole, pool)).value(),
                     .reposition = whole.reposition,
                     .rows = whole.rows};
  for (const int64_t page : {4, 1}) {
    std::vector<float> want = pool;
    whole.tensors[0].paged->pages = {page};
    EXPECT_TRUE(client_.Rotate(at(whole, want)).ok());
    call.tensors = {{.paged = client::PagedTokens{.pages = {page}}}};
    const auto reply = client_.Rotate(at(call, pool));
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(pool, want) << page;
  }
  call.tensors[0].paged->block_size = 2;
  EXPECT_THAT(client_.Rotate(at(call, pool)).status().message(), HasSubstr("tensors[0]"));
}

TEST_F(EmbeddedTest, OtherCallsHaveADeadlineToo) {
  const client::TablesRequest request{.rope = {.model = "llama-3.1-8b"},
                                      .positions = {.end = 1 << 14}};
  const Status status =
      client_.GetTables(request, {.timeout = std::chrono::milliseconds(1)}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.detail().reason, Reason::kDeadline);
}

TEST_F(EmbeddedTest, ClientsOfInprocShareOneEngine) {
  embedded::Enable({.models = {{"mine", R"({"model_type": "llama", "head_dim": 128})"}}});
  const Client one = Client::Connect("inproc:").value();
  const Client other = Client::Connect("inproc:").value();
  const auto has = [](const Client& client, const std::string& name) {
    const std::string models = client.CallJson("ListModels", "{}").value();
    return models.find("\"name\": \"" + name + "\"") != std::string::npos;
  };
  EXPECT_TRUE(has(other, "mine"));
  EXPECT_TRUE(has(one, "mine"));
  EXPECT_FALSE(has(client_, "mine"));
}

TEST(EmbeddedOptionsTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(embedded::Connect({.threads = -1}).status().detail().field, "threads");
  EXPECT_EQ(embedded::Connect({.memory_bytes = -1}).status().detail().field, "memory_bytes");
  EXPECT_EQ(embedded::Connect({.threads = 1025}).status().detail().field, "threads");
  EXPECT_EQ(embedded::Connect({.memory_bytes = 1}).status().detail().field, "memory_bytes");
  EXPECT_EQ(embedded::Connect({}, {.arena_bytes = -1}).status().detail().field, "arena_bytes");
  EXPECT_EQ(embedded::Connect({}, {.pooled_bytes = -1}).status().detail().field, "pooled_bytes");
  const Status model = embedded::Connect({.models = {{"mine", "{"}}}).status();
  EXPECT_THAT(model.message(), HasSubstr("mine"));
}

}  // namespace
}  // namespace rope::testing
