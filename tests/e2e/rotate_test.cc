// Calls of the client against a real server: replies, deadlines, 64 asynchronous clients, streams.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/stream_message.h"
#include "rope/client.h"
#include "tests/e2e/random_jobs.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_limit.h"
#include "tests/support/metrics_page.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Call;
using client::Client;
using client::RotateReply;
using client::RotateRequest;

// What a client keeps of its replies.

constexpr int64_t kHeadDim = 128;

class RotateTest : public ::testing::Test {
 protected:
  static RotateRequest RequestFor(const std::vector<float>& values, int64_t tokens) {
    RotateRequest request;
    request.rope.model = "llama-3.1-8b";
    request.positions.start = 1000;
    const auto heads = static_cast<int64_t>(values.size()) / tokens / kHeadDim;
    request.tensors = {
        {.layout = "SHD", .shape = {tokens, heads, kHeadDim}, .data = values.data()}};
    return request;
  }

  TestServer server_;
  Client client_ = *Client::Connect(server_.address());
};

// Returns the address of the reply's tensor after the reply is destroyed. An array of that size,
// kept in `arrays`, would reuse the memory if the destruction had freed it.
const void* PlaceOf(Result<RotateReply> reply, std::vector<std::vector<float>>& arrays) {
  EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  if (!reply.ok()) return nullptr;
  const void* place = reply->tensors[0].owned.get();
  reply->tensors.clear();
  arrays.emplace_back(512 * 4 * 128);
  return place;
}

TEST_F(RotateTest, RepliesWithoutAnOutputShareTheirMemoryOneAfterAnother) {
  const std::vector<float> values(512 * 4 * kHeadDim);  // 1 MiB
  const RotateRequest request = RequestFor(values, 512);
  std::vector<std::vector<float>> arrays;
  const void* first = PlaceOf(client_.Rotate(request), arrays);
  EXPECT_EQ(PlaceOf(client_.Rotate(request), arrays), first);
  EXPECT_EQ(PlaceOf(client_.RotateFuture(request).get(), arrays), first);

  const auto held = client_.Rotate(request).value();
  EXPECT_EQ(held.tensors[0].data, first);
  EXPECT_NE(PlaceOf(client_.Rotate(request), arrays), first);
}

// 64 asynchronous clients at once against a real server. Every answer must arrive and be right,
// also when half of the calls are cancelled.

constexpr size_t kClients = 64;
constexpr int kInFlight = 4;            // for each client
constexpr int kRequestsPerClient = 32;  // fixed: 2048 in all

// Counts over all clients.
struct Tally {
  std::mutex mu;
  std::vector<std::string> wrong;  // guarded by mu
  std::atomic<int> right = 0;
  std::atomic<int> cancelled = 0;
};

// One client with several calls in flight: each callback starts the next call.
class Pipeline {
 public:
  Pipeline(const std::string& target, uint32_t seed, bool cancels, Tally& tally)
      : jobs_(seed), cancels_(cancels), tally_(tally), client_(*Client::Connect(target)) {}

  void Start() {
    for (int i = 0; i < kInFlight; ++i) Next();
  }
  void Wait() { done_.wait(); }
  // How many times each request's callback ran.
  std::vector<int> runs() const { return {runs_.begin(), runs_.end()}; }

 private:
  void Next() {
    Call now;
    Call before;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (started_ == kRequestsPerClient) return;
      const auto index = static_cast<size_t>(started_++);
      const std::shared_ptr<Job> job = jobs_.Next();
      // Every second request is cancelled: at once, or after the next one has started.
      const bool marked = cancels_ && jobs_.OneIn(2);
      const Call call = client_.RotateAsync(
          job->request(), [this, job, index, marked](const Result<RotateReply>& reply) {
            ++runs_[index];
            Count(*job, reply, marked);
            Next();
            done_.count_down();
          });
      before = std::exchange(later_, Call());
      if (marked) (jobs_.OneIn(2) ? now : later_) = call;
    }
    now.Cancel();
    before.Cancel();
  }

  void Count(const Job& job, const Result<RotateReply>& reply, bool marked) {
    if (marked && reply.status().code() == StatusCode::kCancelled) {
      ++tally_.cancelled;
      return;
    }
    const std::string wrong = job.Check(reply);
    if (wrong.empty()) {
      ++tally_.right;
      return;
    }
    const std::lock_guard<std::mutex> lock(tally_.mu);
    tally_.wrong.push_back(wrong);
  }

  std::mutex mu_;
  RandomJobs jobs_;  // guarded by mu_, as the members below
  int started_ = 0;
  Call later_;
  const bool cancels_;
  Tally& tally_;
  std::array<std::atomic<int>, kRequestsPerClient> runs_ = {};
  std::latch done_{kRequestsPerClient};
  Client client_;  // destroyed first: no callback runs after that
};

void RunClients(const std::string& target, bool cancels, Tally& tally) {
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  for (size_t i = 0; i < kClients; ++i) {
    pipelines.push_back(
        std::make_unique<Pipeline>(target, static_cast<uint32_t>(i + 1), cancels, tally));
  }
  for (const auto& pipeline : pipelines) pipeline->Start();
  for (const auto& pipeline : pipelines) pipeline->Wait();
  for (const auto& pipeline : pipelines) EXPECT_THAT(pipeline->runs(), Each(1));
}

constexpr int kAllRequests = static_cast<int>(kClients) * kRequestsPerClient;

TEST(AsyncClientTest, SixtyFourClientsGetEveryAnswerRight) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  Tally tally;
  RunClients(server.address(), /*cancels=*/false, tally);
  EXPECT_THAT(tally.wrong, IsEmpty());
  EXPECT_EQ(tally.right, kAllRequests);
  EXPECT_EQ(Scrape(MetricsPort(server)).Value(CallsOf("Rotate")), kAllRequests);
}

TEST(AsyncClientTest, NoRequestIsLostWhenHalfOfThemAreCancelled) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  Tally tally;
  RunClients(server.address(), /*cancels=*/true, tally);
  EXPECT_THAT(tally.wrong, IsEmpty());
  EXPECT_EQ(tally.right + tally.cancelled, kAllRequests);
  EXPECT_GT(tally.cancelled, kAllRequests / 8);  // the others were answered before the cancellation
  EXPECT_GE(tally.right, kAllRequests / 4);
  // The server still answers, and a drain finds no request left.
  EXPECT_TRUE(Serves(*server.NewStub()));
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
}

// After a cancelled call the server may still work on memory that no other call may use.
TEST(AsyncClientTest, NoStagedRequestIsLostOrMixedUpWhenHalfOfThemAreCancelled) {
  const std::string target = "unix:" + TemporaryFolder() + "/rope.sock";
  TestServer server({"--enable_shared_memory", "--listen=" + target});
  Tally tally;
  RunClients(target, /*cancels=*/true, tally);
  EXPECT_THAT(tally.wrong, IsEmpty());
  EXPECT_EQ(tally.right + tally.cancelled, kAllRequests);
  EXPECT_TRUE(Serves(*server.NewStub()));
}

// RotateStream as a client in any language uses it: many requests in flight on one stream, each
// answered once. An error ends its request and not the stream.

v1::RotateRequest NamedRequest(const std::string& id, int64_t position) {
  v1::RotateRequest request = UnitRequest(position);
  request.set_request_id(id);
  return request;
}

// 1 MiB of zeros.
v1::RotateRequest MebibyteRequest(const std::string& id) {
  v1::RotateRequest request;
  request.set_request_id(id);
  request.mutable_rope()->set_model("llama-3.1-8b");
  request.mutable_positions()->set_start(0);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  for (const int64_t length : {64, 32, 128}) tensor.mutable_array()->add_shape(length);
  tensor.mutable_array()->set_raw(std::string(1 << 20, '\0'));
  return request;
}

double FirstNumber(const v1::RotateResponse& response) {
  return response.tensors(0).array().numbers(0);
}

class RotateStreamTest : public ::testing::Test {
 protected:
  // Sends one message of any bytes on a stream of its own, and returns its answer.
  v1::RotateStreamResponse AnswerTo(const std::string& bytes) {
    grpc::GenericStub generic(server_.NewChannel());
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto stream = generic.PrepareCall(&context, "/rope.v1.RopeService/RotateStream", &queue);
    const auto step = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    v1::RotateStreamResponse response;
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer reply;
    grpc::Slice flat;
    stream->StartCall(nullptr);
    EXPECT_TRUE(step());
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    EXPECT_TRUE(step());
    stream->Read(&reply, nullptr);
    EXPECT_TRUE(step());
    EXPECT_TRUE(reply.DumpToSingleSlice(&flat).ok());
    EXPECT_TRUE(response.ParseFromArray(flat.begin(), static_cast<int>(flat.size())));
    context.TryCancel();
    grpc::Status status;
    stream->Finish(&status, nullptr);
    EXPECT_TRUE(step());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    return response;
  }

  TestServer server_;
  std::unique_ptr<v1::RopeService::Stub> stub_ = server_.NewStub();
  grpc::ClientContext context_;
};

// Sends that many requests at once. Each must be answered once with its own numbers.
void ExpectAnswers(v1::RopeService::Stub& stub, int requests) {
  grpc::ClientContext context;
  const auto stream = OpenStream(stub, context);
  std::thread writer([&stream, requests] {
    for (int i = 0; i < requests; ++i) stream->Write(NamedRequest(absl::StrCat(i), i));
    stream->WritesDone();
  });
  std::set<std::string> seen;
  v1::RotateResponse response;
  while (stream->Read(&response)) {
    EXPECT_FALSE(response.has_error()) << response.error().message();
    EXPECT_TRUE(seen.insert(response.request_id()).second) << response.request_id();
    if (response.has_error()) continue;
    EXPECT_NEAR(FirstNumber(response), std::cos(std::stoi(response.request_id())), 1e-6);
  }
  writer.join();
  EXPECT_EQ(seen.size(), static_cast<size_t>(requests));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(RotateStreamBatchTest, SmallRequestsThatArriveTogetherRunTogetherWhereTheyArrived) {
  constexpr int kRequests = 2000;
  for (const char* spin : {"--poll_spin_us=0", "--poll_spin_us=200"}) {
    const TestServer server({"--device=cpu", "--metrics_listen=127.0.0.1:0", spin});
    ExpectAnswers(*server.NewStub(), kRequests);
    const Exposition page = Scrape(MetricsPort(server));
    const double batches = page.Value("rope_batch_requests_count");
    EXPECT_EQ(page.Value("rope_batch_requests_sum"), kRequests);
    EXPECT_EQ(page.Value(R"(rope_batches_total{closed_by="direct",device="cpu"})"), batches);
    EXPECT_LT(page.Value(R"(rope_batch_requests_bucket{le="1"})"), batches) << spin;
    EXPECT_EQ(page.Value(R"(rope_batch_requests_bucket{le="8"})"), batches) << spin;
  }
}

TEST_F(RotateStreamTest, AnswersOfAllSizesArriveAtAClientThatReadsThemLate) {
  constexpr int kRequests = 600;
  const auto stream = OpenStream(*stub_, context_);
  for (int i = 0; i < kRequests; ++i) {  // 1 to 300 KiB, most of them small
    const int tokens = i % 40 == 0 ? 600 : i % 7 == 0 ? 50 : 2;
    v1::RotateRequest request = NamedRequest(absl::StrCat(i), i);
    v1::Array& array = *request.mutable_tensors(0)->mutable_array();
    array.clear_numbers();
    array.set_shape(0, tokens);
    array.set_shape(1, 64);
    array.set_raw(std::string(static_cast<size_t>(tokens) * 64 * 8, '\0'));
    ASSERT_TRUE(stream->Write(request));
  }
  ASSERT_TRUE(stream->WritesDone());
  std::map<std::string, size_t> bytes;
  v1::RotateResponse response;
  while (stream->Read(&response)) {
    ASSERT_FALSE(response.has_error()) << response.error().message();
    bytes[response.request_id()] = response.tensors(0).array().raw().size();
  }
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(bytes.size(), static_cast<size_t>(kRequests));
  EXPECT_EQ(bytes["0"], 600u * 64 * 8);
  EXPECT_EQ(bytes["7"], 50u * 64 * 8);
  EXPECT_EQ(bytes["1"], 2u * 64 * 8);
}

TEST_F(RotateStreamTest, AMessageThatIsRefusedBeforeItIsParsedStillNamesItsRequest) {
  const auto stream = OpenStream(*stub_, context_);
  v1::RotateRequest request = NamedRequest("unknown", 1);
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(1000, 1);
  ASSERT_TRUE(stream->Write(request));
  v1::RotateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), "unknown");
  EXPECT_EQ(response.error().code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(response.error().message(), HasSubstr("1000"));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RotateStreamTest, GarbageIsAnsweredUnderTheServersOwnId) {
  const v1::RotateStreamResponse refused = AnswerTo("\xff\xff");
  EXPECT_EQ(refused.sequence(), 0U);
  EXPECT_EQ(refused.rotate().error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(refused.rotate().request_id().empty());
}

TEST_F(RotateStreamTest, GarbageInARequestIsAnsweredUnderItsNumber) {
  const v1::RotateStreamResponse refused = AnswerTo(proto::StreamPrefix(7, 2) + "\xff\xff");
  EXPECT_EQ(refused.sequence(), 7U);
  EXPECT_EQ(refused.rotate().error().code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RotateStreamTest, AnswersNameTheirRequestsByTheClientsNumbers) {
  const auto stream = OpenStream(*stub_, context_);
  const std::vector<uint64_t> numbers = {7, 1, std::numeric_limits<uint64_t>::max()};
  for (const uint64_t number : numbers) ASSERT_TRUE(stream->Write(UnitRequest(1), number));
  std::set<uint64_t> seen;
  v1::RotateResponse response;
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint64_t number = 0;
    ASSERT_TRUE(stream->Read(&response, &number));
    EXPECT_FALSE(response.has_error()) << response.error().message();
    seen.insert(number);
  }
  EXPECT_EQ(seen, std::set<uint64_t>(numbers.begin(), numbers.end()));
  ASSERT_TRUE(stream->Write(UnitRequest(1), 7)) << "a number that was answered is free";
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_error());
}

TEST_F(RotateStreamTest, ANumberThatIsUnansweredIsRefusedAndBothAreAnswered) {
  const auto stream = OpenStream(*stub_, context_);
  // The first is long enough to be unanswered when the second arrives.
  ASSERT_TRUE(stream->Write(ScatteredPositions(500'000), 7));
  ASSERT_TRUE(stream->Write(UnitRequest(1), 7));
  v1::RotateResponse response;
  uint64_t number = 0;
  ASSERT_TRUE(stream->Read(&response, &number));
  EXPECT_EQ(number, 7U);
  EXPECT_EQ(response.error().field(), "sequence");
  EXPECT_EQ(response.error().got(), "7");
  ASSERT_TRUE(stream->Read(&response, &number));
  EXPECT_EQ(number, 7U);
  EXPECT_FALSE(response.has_error()) << response.error().message();
}

// The rules of ReadStreamMessageTest hold before these two.
TEST_F(RotateStreamTest, MessagesThatAreNoRequestAreRefusedByField) {
  const std::string one = proto::StreamPrefix(1, 0);  // sequence 1, an empty rotate
  for (const std::string& bytes :
       {std::string(), one.substr(2), std::string("\x12\0", 2), std::string("\x08\0", 2)}) {
    EXPECT_EQ(AnswerTo(bytes).rotate().error().field(), "sequence") << bytes.size();
  }
  EXPECT_EQ(AnswerTo(one.substr(0, 2)).rotate().error().field(), "request");
  EXPECT_EQ(AnswerTo(one + one.substr(2)).rotate().error().field(), "rotate");
}

// Another client keeps the device busy, so that the request is queued while its cancellation is
// read. It may run first, so several rounds are made; its neighbours must be served in each.
TEST_F(RotateStreamTest, ACancelledRequestIsAnsweredCancelledAndItsNeighboursAreServed) {
  const auto other = server_.NewStub();
  grpc::ClientContext busy;
  const auto heavy = OpenStream(*other, busy);
  ASSERT_TRUE(heavy->Write(ScatteredPositions(2'000'000)));
  int cancelled = 0;
  for (int round = 0; round < 50 && cancelled == 0; ++round) {
    grpc::ClientContext context;
    const auto stream = OpenStream(*stub_, context);
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(stream->Write(MebibyteRequest(""), i));
    ASSERT_TRUE(stream->Cancel(2));
    ASSERT_TRUE(stream->Cancel(99)) << "no such request: ignored";
    stream->WritesDone();
    std::map<uint64_t, int> codes;
    v1::RotateResponse response;
    uint64_t number = 0;
    while (stream->Read(&response, &number)) {
      codes[number] = response.error().code();
      if (response.has_error()) {
        EXPECT_EQ(response.error().reason(), v1::REASON_CANCELLED);
      }
    }
    EXPECT_TRUE(stream->Finish().ok());
    ASSERT_EQ(codes.size(), 3U);
    EXPECT_EQ(codes[1], 0);
    EXPECT_EQ(codes[3], 0);
    if (codes[2] == grpc::StatusCode::CANCELLED) ++cancelled;
  }
  EXPECT_EQ(cancelled, 1);
  busy.TryCancel();
}

TEST_F(RotateStreamTest, AnEmptyStreamEndsWell) {
  const auto stream = OpenStream(*stub_, context_);
  stream->WritesDone();
  v1::RotateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

// Maximum resident memory of the process so far, in MiB.
int64_t PeakMebibytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) / 1024;
  }
  return -1;
}

// The server stops to read the stream while 64 MiB are not taken, and goes on by steps. Its
// connection is never taken for one that wastes time.
TEST_F(RotateStreamTest, AClientThatReadsNowAndThenHoldsUpItselfAndABoundedShareOfMemory) {
  const auto stream = OpenStream(*stub_, context_);
  constexpr int kRequests = 400;  // 400 MiB
  std::thread writer([&stream] {
    for (int i = 0; i < kRequests; ++i) stream->Write(MebibyteRequest(absl::StrCat(i)));
    stream->WritesDone();
  });
  const auto others_are_served = [this] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(Serves(*server_.NewStub()));
  };
  others_are_served();
  int answered = 0;
  v1::RotateResponse response;
  while (stream->Read(&response)) {
    EXPECT_FALSE(response.has_error()) << response.error().message();
    if (++answered % 10 == 0) others_are_served();
  }
  writer.join();
  EXPECT_EQ(answered, kRequests);
  EXPECT_TRUE(stream->Finish().ok());
  if (kMemoryIsMeasured) {
    EXPECT_LT(PeakMebibytes(server_.process().pid()), 300);
  }
}

TEST_F(RotateStreamTest, ACancelledStreamLeavesTheServerServing) {
  for (int round = 0; round < 20; ++round) {
    grpc::ClientContext context;
    const auto stream = OpenStream(*stub_, context);
    for (int i = 0; i < round; ++i) stream->Write(MebibyteRequest(absl::StrCat(i)));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Serves(*stub_));
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);  // no part of those streams is left
}

TEST_F(RotateStreamTest, ADrainAnswersWhatWasAcceptedAndEndsTheStreamUnavailable) {
  const auto stream = OpenStream(*stub_, context_);
  constexpr int kRequests = 50;
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream->Write(MebibyteRequest(absl::StrCat(i))));
  v1::RotateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  server_.process().Signal(SIGTERM);
  std::set<std::string> seen = {response.request_id()};
  while (stream->Read(&response)) {
    EXPECT_TRUE(seen.insert(response.request_id()).second) << response.request_id();
    if (response.has_error()) {
      EXPECT_EQ(response.error().code(), grpc::StatusCode::UNAVAILABLE);
    }
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_.process().Wait(), 0);
}

}  // namespace
}  // namespace rope::testing
