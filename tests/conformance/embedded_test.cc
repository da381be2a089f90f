// The engine in this process against a server: the same bytes for every kind of request, whether
// its tensors are in the message or named by their addresses.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/codec/codec.h"
#include "proto/ipc/process_memory.h"
#include "server/embedded/local_service.h"
#include "tests/conformance/request_generator.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/matchers.h"
#include "tests/support/prepared_call.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

grpc::ByteBuffer BufferOf(const google::protobuf::Message& request) {
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

  // By the id of the prepared request. `like`: the tensors of the answer, without their bytes.
  v1::RotateResponse InProcessById(const v1::RotateRequest& request, v1::RotateResponse like) {
    grpc::ByteBuffer prepare = BufferOf(PrepareOf(request));
    const auto answer =
        service_->Call(server::Method::kPrepare, prepare, absl::Minutes(1), not_cancelled_);
    v1::PrepareResponse prepared;
    EXPECT_TRUE(answer.ok() && prepared.ParseFromString(BytesOf(*answer))) << InShort(request);
    const auto reply = service_->Rotate(MessageOf(CallOf(request, prepared.prepared_id())),
                                        std::vector<client::WantedTensor>(like.tensors().size()),
                                        absl::Minutes(1), not_cancelled_);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString() << ": " << InShort(request);
    if (!reply.ok()) return {};
    like.set_attention_factor(reply->attention_factor);
    like.set_attention_factor_applied(reply->attention_factor_applied);
    like.set_device(reply->device);
    like.mutable_warnings()->Assign(reply->warnings.begin(), reply->warnings.end());
    for (int i = 0; i < like.tensors_size(); ++i) {
      v1::Tensor& tensor = *like.mutable_tensors(i);
      tensor.mutable_array()->clear_raw();
      const std::optional<double> scale = reply->tensors[static_cast<size_t>(i)].fp8_scale;
      EXPECT_EQ(scale.has_value(), tensor.fp8_scales_size() > 0);
      if (scale.has_value()) tensor.set_fp8_scales(0, *scale);
    }
    return like;
  }

  // The same answer, with the results at the addresses that the request names.
  v1::RotateResponse ByAddress(v1::RotateRequest request, const v1::RotateResponse& sizes,
                               bool by_id) {
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
    v1::RotateResponse response = by_id ? InProcessById(request, sizes) : InProcess(request);
    for (size_t i = 0; i < outputs.size() && static_cast<int>(i) < response.tensors_size(); ++i) {
      v1::Array& array = *response.mutable_tensors(static_cast<int>(i))->mutable_array();
      EXPECT_THAT(array.raw(), IsEmpty());
      array.clear_region();
      array.set_raw(outputs[i]);
    }
    return response;
  }

  // The values of a request, in a message that is never sent.
  static client::CallMessage MessageOf(const v1::RotateRequest& values) {
    client::CallMessage call = {.arena = std::make_unique<google::protobuf::Arena>()};
    call.head = google::protobuf::Arena::CreateMessage<v1::RotateRequest>(call.arena.get());
    *call.head = values;
    const auto lend = [&call](const v1::Array& from, v1::Array& to) {
      if (!from.raw().empty()) proto::SetPayload(from.raw(), to, call.split);
    };
    const auto lend_positions = [&lend](const v1::Positions& from, v1::Positions& to) {
      if (from.has_starts()) lend(from.starts(), *to.mutable_starts());
      if (from.has_position_ids()) lend(from.position_ids(), *to.mutable_position_ids());
      if (from.has_cu_seqlens()) lend(from.cu_seqlens(), *to.mutable_cu_seqlens());
    };
    if (values.has_positions()) {
      lend_positions(values.positions(), *call.head->mutable_positions());
    }
    if (values.reposition().has_from()) {
      lend_positions(values.reposition().from(), *call.head->mutable_reposition()->mutable_from());
    }
    return call;
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
    for (const bool by_id : {false, true}) {
      ASSERT_TRUE(Compared(ByAddress(request, response, by_id)) == Compared(response))
          << by_id << InShort(request);
    }
    ++by_address;
  });
  std::printf("measured: %ld requests in process by message, %ld by address, whole and by id\n",
              by_message, by_address);
  EXPECT_GT(by_address, 1000);
}

}  // namespace
}  // namespace rope::testing
