// The engine in this process against a server: the same bytes for every kind of request, whether
// its tensors are in the message or named by their addresses.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "proto/ipc/process_memory.h"
#include "server/embedded/local_service.h"
#include "tests/conformance/request_generator.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

grpc::ByteBuffer BufferOf(const v1::RotateRequest& request) {
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// The request without its elements.
std::string InShort(v1::RotateRequest message) {
  for (v1::Tensor& tensor : *message.mutable_tensors()) {
    tensor.mutable_array()->clear_raw();
    tensor.mutable_array()->clear_numbers();
  }
  return message.ShortDebugString();
}

class EmbeddedPropertyTest : public ::testing::Test {
 protected:
  v1::RotateResponse ByServer(const v1::RotateRequest& request) {
    grpc::ClientContext context;
    v1::RotateResponse response;
    const grpc::Status status = stub_->Rotate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message() << ": " << InShort(request);
    return response;
  }

  v1::RotateResponse InProcess(const v1::RotateRequest& request) {
    v1::RotateResponse response;
    grpc::ByteBuffer message = BufferOf(request);
    const auto answer =
        service_->Call(server::Method::kRotate, message, absl::Minutes(1), not_cancelled_);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString() << ": " << InShort(request);
    EXPECT_TRUE(answer.ok() && response.ParseFromString(BytesOf(*answer)));
    return response;
  }

  // The same answer, with the results at the addresses that the request names.
  v1::RotateResponse ByAddress(v1::RotateRequest request, const v1::RotateResponse& sizes) {
    std::vector<std::string> inputs;
    std::vector<std::string> outputs;
    for (const v1::Tensor& tensor : request.tensors()) inputs.push_back(tensor.array().raw());
    for (const v1::Tensor& tensor : sizes.tensors()) {
      outputs.emplace_back(tensor.array().raw().size(), '?');
    }
    const auto name = [this](const std::string& bytes, v1::RegionSpan& span) {
      span.set_region_id(service_->region_id());
      span.set_offset(static_cast<uint64_t>(proto::ProcessMemoryOffset(bytes.data())));
    };
    for (size_t i = 0; i < inputs.size(); ++i) {
      v1::Array& array = *request.mutable_tensors(static_cast<int>(i))->mutable_array();
      array.clear_raw();
      name(inputs[i], *array.mutable_region());
      name(outputs[i], *request.mutable_output()->add_regions());
    }
    v1::RotateResponse response = InProcess(request);
    for (size_t i = 0; i < outputs.size() && static_cast<int>(i) < response.tensors_size(); ++i) {
      v1::Array& array = *response.mutable_tensors(static_cast<int>(i))->mutable_array();
      EXPECT_THAT(array.raw(), IsEmpty());
      array.clear_region();
      array.set_raw(outputs[i]);
    }
    return response;
  }

  static std::string Compared(v1::RotateResponse response) {
    response.clear_request_id();  // the engine's own
    response.clear_stage_times();
    return response.SerializeAsString();
  }

  const TestServer server_{{"--device=cpu"}};
  const std::unique_ptr<v1::RopeService::Stub> stub_ = server_.NewStub();
  const std::shared_ptr<embedded::LocalService> service_ =
      embedded::LocalService::Create({}).value();
  const embedded::LocalService::Cancelled not_cancelled_ =
      std::make_shared<std::atomic<bool>>(false);
};

TEST_F(EmbeddedPropertyTest, EveryCombinationIsAnsweredAsByAServer) {
  RequestGenerator generator(20261126);
  EveryChoice every;
  std::minstd_rand random(1);
  int64_t by_message = 0;
  int64_t by_address = 0;
  every.ForEach([&](const Choices& choices) {
    // The messages differ in few ways from each other: one in eight takes seconds.
    if (random() % 8 != 0 || HasFailure()) return;
    const v1::RotateRequest request = generator.Make(choices);
    const v1::RotateResponse response = ByServer(request);
    ASSERT_TRUE(Compared(InProcess(request)) == Compared(response)) << InShort(request);
    ++by_message;
    // Numbers have no address.
    const auto has_numbers = [](const auto& tensor) { return tensor.array().numbers_size() > 0; };
    if (std::ranges::any_of(request.tensors(), has_numbers)) return;
    ASSERT_TRUE(Compared(ByAddress(request, response)) == Compared(response)) << InShort(request);
    ++by_address;
  });
  std::printf("measured: %ld requests in process by message, %ld by address\n", by_message,
              by_address);
  EXPECT_GT(by_address, 1000);
}

}  // namespace
}  // namespace rope::testing
