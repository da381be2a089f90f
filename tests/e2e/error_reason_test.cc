// Each reason of an error has one real situation, and reaches the client as a value. Mistakes in a
// request are cases (tests/conformance/cases). DEVICE_FAULT needs a device that fails: tests/unit
// has it.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/error.h"
#include "proto/wire/error_details.h"
#include "rope/client.h"
#include "rope/v1/status_details.pb.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_limit.h"
#include "tests/support/ring_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using ::testing::Gt;

v1::Error ErrorOf(const grpc::Status& status) {
  const auto error = proto::DecodeStatusDetails(status.error_details());
  EXPECT_TRUE(error.has_value()) << status.error_message();
  return error.value_or(v1::Error());
}

// The text, the code and the parts of an error say the same.
void ExpectError(const v1::Error& error, v1::Reason reason, const std::string& field) {
  EXPECT_EQ(v1::Reason_Name(error.reason()), v1::Reason_Name(reason)) << error.message();
  EXPECT_EQ(error.field(), field);
  EXPECT_EQ(error.code(), static_cast<int>(proto::CodeOf(static_cast<proto::Reason>(reason))));
  if (error.field().empty()) return;
  EXPECT_THAT(error.message(), StartsWith(error.field() + ": got " + error.got()));
}

class ErrorReasonTest : public ::testing::Test {
 protected:
  v1::Error Unary(const v1::RotateRequest& request) { return ErrorOf(Rotate(stub_, request)); }
  v1::Error Streamed(const v1::RotateRequest& request) {
    grpc::ClientContext context;
    const auto stream = OpenStream(stub_, context);
    v1::RotateResponse response;
    EXPECT_TRUE(stream->Write(request) && stream->WritesDone() && stream->Read(&response));
    EXPECT_TRUE(stream->Finish().ok());
    return response.error();
  }
  v1::Error ThroughRing(const v1::RotateRequest& request) {
    v1::RotateResponse response;
    ring_.Rotate(request, 0, &response);
    return response.error();
  }

  const std::string path_ = TemporaryFolder() + "/reasons.sock";
  TestServer server_{{"--enable_shared_memory", "--listen=unix:" + path_}};
  RingClient ring_{path_};
  v1::RopeService::Stub& stub_ = ring_.stub();
};

TEST_F(ErrorReasonTest, UnknownFieldHasTheSameErrorByEveryWay) {
  v1::RotateRequest request = Sample().InPlace(ring_.id(), 0);
  v1::Positions& positions = *request.mutable_positions();
  positions.GetReflection()->MutableUnknownFields(&positions)->AddVarint(200, 1);
  const v1::Error error = Unary(request);
  ExpectError(error, v1::REASON_UNKNOWN_FIELD, "positions");
  EXPECT_EQ(Streamed(request).SerializeAsString(), error.SerializeAsString());
  EXPECT_EQ(ThroughRing(request).SerializeAsString(), error.SerializeAsString());
}

TEST_F(ErrorReasonTest, RegionOfAServerWithoutSharedMemory) {
  const TestServer without;
  const grpc::Status status = Rotate(*without.NewStub(), Sample().InPlace(1, 0));
  ExpectError(ErrorOf(status), v1::REASON_SHARED_MEMORY_OFF, "tensors[0].array.region");
}

TEST_F(ErrorReasonTest, HealthOfAServiceThatIsNotThere) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("none");
  grpc::health::v1::HealthCheckResponse response;
  const auto health = grpc::health::v1::Health::NewStub(server_.NewChannel());
  ExpectError(ErrorOf(health->Check(&context, request, &response)), v1::REASON_SERVICE_NOT_FOUND,
              "service");
}

// gRPC refuses it, without a reason of ours.
TEST_F(ErrorReasonTest, CompressedRequests) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::RotateResponse response;
    const grpc::Status status = stub_.Rotate(&context, UnitRequest(1), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), StartsWith("Compression algorithm '"));
    EXPECT_TRUE(Serves(stub_)) << "a call that takes gzip and deflate";
  }
}

// The rows of each take 0.1 seconds: far more work than the time until the last arrives.
// One connection may have 128 calls under way, so three fill the queue of 256.
TEST_F(ErrorReasonTest, MoreTablesThanTheQueueTakes) {
  constexpr int kCalls = 300;
  RingClient second(path_);
  RingClient third(path_);
  v1::RopeService::Stub* const stubs[] = {&stub_, &second.stub(), &third.stub()};
  struct Call {
    grpc::ClientContext context;
    v1::GetTablesResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GetTablesResponse>> reader;
  };
  std::vector<Call> calls(kCalls);
  grpc::CompletionQueue queue;
  for (int i = 0; i < kCalls; ++i) {
    v1::GetTablesRequest request;
    request.mutable_rope()->mutable_config()->set_head_dim(128);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_positions()->mutable_range()->set_end(8192);
    Call& call = calls[static_cast<size_t>(i)];
    call.reader = stubs[i % 3]->AsyncGetTables(&call.context, request, &queue);
    call.reader->Finish(&call.response, &call.status, &call);
  }
  int refused = 0;
  for (int i = 0; i < kCalls; ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
    const grpc::Status& status = static_cast<Call*>(tag)->status;
    if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) continue;
    if (++refused == 1) {
      for (Call& call : calls) call.context.TryCancel();
    }
    ExpectError(ErrorOf(status), v1::REASON_QUEUE_FULL, "queue");
    EXPECT_THAT(ErrorOf(status).retry_delay_ms(), Gt(0));
  }
  EXPECT_GT(refused, 0);
}

// The first request keeps the engine busy, so that those behind it are held until the connection
// has its part of the budget.
TEST(ErrorReasonOfMemoryTest, MoreBytesThanTheBudgetOfAConnection) {
  if (!kMemoryIsMeasured) GTEST_SKIP() << "a sanitizer's memory uses up the server's";
  const TestServer server({"--memory_bytes=128MiB"});
  const auto stub = server.NewStub();
  v1::RotateRequest mebibyte = SmallRequestForLargeAnswer(1 << 20);
  int full = 0;
  for (int round = 0; round < 20 && full == 0; ++round) {
    grpc::ClientContext context;
    const auto stream = OpenStream(*stub, context);
    ASSERT_TRUE(stream->Write(ScatteredPositions(300'000)));
    std::thread writer([&] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(stream->Write(mebibyte));
      stream->WritesDone();
    });
    v1::RotateResponse response;
    while (stream->Read(&response)) {
      if (!response.has_error() || response.error().reason() == v1::REASON_QUEUE_FULL) continue;
      ++full;
      ExpectError(response.error(), v1::REASON_BUDGET_FULL, response.error().field());
      EXPECT_THAT(response.error().retry_delay_ms(), Gt(0));
    }
    writer.join();
    EXPECT_TRUE(stream->Finish().ok());
  }
  EXPECT_GT(full, 0);
}

// The health watch ends when the drain begins, with an error of the server.
TEST_F(ErrorReasonTest, DrainEndsAHealthWatch) {
  const auto health = grpc::health::v1::Health::NewStub(server_.NewChannel());
  grpc::ClientContext context;
  const auto watch = health->Watch(&context, grpc::health::v1::HealthCheckRequest());
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  server_.process().Signal(SIGTERM);
  while (watch->Read(&response)) {
  }
  ExpectError(ErrorOf(watch->Finish()), v1::REASON_DRAINING, "");
}

// Errors that the client library makes, and what it makes of the server's.
class ClientReasonTest : public ErrorReasonTest {
 protected:
  client::RotateRequest Request() {
    client::RotateRequest request;
    request.rope.model = "llama-3.1-8b";
    request.positions.start = 1;
    request.tensors = {
        {.layout = "SHD", .shape = {1, 32, 128}, .data = values_.data(), .output = values_.data()}};
    return request;
  }

  std::vector<float> values_ = std::vector<float>(32 * 128);
  Client client_ = Client::Connect(server_.address()).value();
};

TEST_F(ClientReasonTest, ServerThatStopsOrDies) {
  server_.process().Signal(SIGSTOP);
  const Status late =
      client_.Rotate(Request(), {.timeout = std::chrono::milliseconds(50)}).status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.detail().reason, Reason::kDeadline);
  server_.process().Signal(SIGKILL);
  server_.process().Wait();
  const Status lost = client_.Rotate(Request(), {.timeout = std::chrono::seconds(1)}).status();
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost.detail().reason, Reason::kConnectionLost);
}

}  // namespace
}  // namespace rope::testing
