// Every kind of invalid request gets the right code and "field: got X, want Y", and the server
// keeps serving.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/support/matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

class BadInputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<TestServer>(); }
  static void TearDownTestSuite() { server_.reset(); }

  // Sends bytes that no generated encoder produces.
  grpc::Status SendBytes(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto call = stub.PrepareUnaryCall(&context, "/rope.v1.RopeService/Rotate", request, &queue);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  grpc::Status Send(const v1::RotateRequest& request) {
    grpc::ClientContext context;
    v1::RotateResponse response;
    return stub_->Rotate(&context, request, &response);
  }

  // The server rejects the changed unit request and answers the next request.
  void ExpectRefused(grpc::StatusCode code, const std::string& message,
                     const std::function<void(v1::RotateRequest&)>& change) {
    v1::RotateRequest request = UnitRequest(1);
    change(request);
    Check(Send(request), code, message);
  }

  void Check(const grpc::Status& status, grpc::StatusCode code, const std::string& message) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), StartsWith(message));
    EXPECT_TRUE(Serves(*stub_));
  }

  static constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  static constexpr grpc::StatusCode kUnimplemented = grpc::StatusCode::UNIMPLEMENTED;

  static std::unique_ptr<TestServer> server_;
  std::shared_ptr<grpc::Channel> channel_ = server_->NewChannel();
  std::unique_ptr<v1::RopeService::Stub> stub_ = v1::RopeService::NewStub(channel_);
};

std::unique_ptr<TestServer> BadInputTest::server_;

v1::Array& ArrayOf(v1::RotateRequest& request) {
  return *request.mutable_tensors(0)->mutable_array();
}

TEST_F(BadInputTest, CompressedRequestsAreRefusedAndClientsThatTakeSuchRepliesAreServed) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::RotateResponse response;
    Check(stub_->Rotate(&context, UnitRequest(1), &response), kUnimplemented,
          "Compression algorithm '");  // Check's own call offers to take gzip and deflate
  }
}

TEST_F(BadInputTest, EmptyMessage) {
  Check(SendBytes(""), kInvalid, "rope: got nothing, want exactly one of model");
}

TEST_F(BadInputTest, GarbageBytes) {
  Check(SendBytes("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), kInvalid, "message: got");
  Check(SendBytes("\x0f\x0f\x0f"), kInvalid, "request_id: got wire type 7");
  std::mt19937 random(7);
  const std::string sample = UnitRequest(1).SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    std::string bytes = sample;
    for (int n = 0; n < 3; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    SendBytes(bytes);
  }
  EXPECT_TRUE(Serves(*stub_));
}

TEST_F(BadInputTest, SingularFieldTwice) {
  v1::RotateRequest id;
  id.set_request_id("twice");
  const std::string sample = UnitRequest(1).SerializeAsString();
  Check(SendBytes(id.SerializeAsString() + id.SerializeAsString() + sample), kInvalid,
        "request_id: got it more than once, want it once");
  Check(SendBytes(sample + sample), kInvalid, "rope: got it more than once");
}

TEST_F(BadInputTest, UnknownFieldNumber) {
  Check(SendBytes(UnitRequest(1).SerializeAsString() + std::string("\x98\x06\x01", 3)),
        kUnimplemented, "request: got unknown field number 99");
}

TEST_F(BadInputTest, InPlaceOutsideARegionAndStridesOfAnotherCount) {
  ExpectRefused(kInvalid, "output.in_place: got tensors[0] outside a region",
                [](v1::RotateRequest& request) { request.mutable_output()->set_in_place(true); });
  ExpectRefused(kInvalid, "tensors[0].array.strides: got 1 strides, want 3 for layout SHD",
                [](v1::RotateRequest& request) { ArrayOf(request).add_strides(2); });
}

TEST_F(BadInputTest, UnknownEnumNumbers) {
  ExpectRefused(kInvalid, "operation: got 77", [](v1::RotateRequest& request) {
    request.set_operation(static_cast<v1::Operation>(77));
  });
  ExpectRefused(kInvalid, "rope.pairing: got 77", [](v1::RotateRequest& request) {
    request.mutable_rope()->set_pairing(static_cast<v1::Pairing>(77));
  });
  ExpectRefused(kInvalid, "tensors[0].array.dtype: got number 77", [](v1::RotateRequest& request) {
    ArrayOf(request).set_dtype(static_cast<v1::DType>(77));
  });
}

TEST_F(BadInputTest, MissingFields) {
  ExpectRefused(kInvalid, "rope: got nothing", [](auto& request) { request.clear_rope(); });
  ExpectRefused(kInvalid, "tensors: got nothing", [](auto& request) { request.clear_tensors(); });
  ExpectRefused(kInvalid, "positions: got nothing",
                [](auto& request) { request.clear_positions(); });
  ExpectRefused(kInvalid, "rope.pairing: got nothing",
                [](auto& request) { request.mutable_rope()->clear_pairing(); });
  ExpectRefused(kInvalid, "tensors[0].role: got nothing",
                [](auto& request) { request.mutable_tensors(0)->clear_role(); });
  ExpectRefused(kInvalid, "tensors[0].layout: got \"\"",
                [](auto& request) { request.mutable_tensors(0)->clear_layout(); });
  ExpectRefused(kInvalid, "tensors[0].array.dtype: got DTYPE_UNSPECIFIED",
                [](auto& request) { ArrayOf(request).clear_dtype(); });
  ExpectRefused(kInvalid, "tensors[0].array.shape: got 0 axes, want 3",
                [](auto& request) { ArrayOf(request).clear_shape(); });
  ExpectRefused(kInvalid, "tensors[0].array: got no elements, want 2",
                [](auto& request) { ArrayOf(request).clear_numbers(); });
}

// Appends a field that the message's class would not hold together with those that it has.
void AddField(int number, const std::string& value, google::protobuf::Message& message) {
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(number, value);
}

TEST_F(BadInputTest, AlternativesTogether) {
  ExpectRefused(kInvalid,
                "rope: got config and model, want exactly one of model, config_id, config",
                [](auto& request) {
                  v1::RopeSpec& rope = *request.mutable_rope();
                  AddField(v1::RopeSpec::kModelFieldNumber, "llama-3.1-8b", rope);
                });
  ExpectRefused(kInvalid, "tensors[0].array: got raw and numbers, want exactly one",
                [](auto& request) { ArrayOf(request).set_raw("01234567"); });
  ExpectRefused(kInvalid,
                "positions: got start and position_ids, want exactly one of start, starts",
                [](auto& request) {
                  v1::Positions& positions = *request.mutable_positions();
                  AddField(v1::Positions::kPositionIdsFieldNumber, "", positions);
                });
}

TEST_F(BadInputTest, ByteCountsThatDifferFromTheShape) {
  for (const size_t bytes : {0, 7, 9}) {
    ExpectRefused(kInvalid, "tensors[0].array", [bytes](auto& request) {
      ArrayOf(request).clear_numbers();
      ArrayOf(request).set_raw(std::string(bytes, 'x'));
    });
  }
}

TEST_F(BadInputTest, ShapesThatDoNotExist) {
  const int64_t huge = int64_t{1} << 62;
  ExpectRefused(kInvalid, "tensors[0].array.shape: got [4611686018427387904, ",
                [&](auto& request) { ArrayOf(request).set_shape(0, huge); });
  ExpectRefused(kInvalid, "tensors[0].array.shape: got -1",
                [](auto& request) { ArrayOf(request).set_shape(0, -1); });
  // 2^40 tokens of 0 heads have 0 bytes.
  ExpectRefused(grpc::StatusCode::RESOURCE_EXHAUSTED, "tensors[0].array.shape: got 1099511627776",
                [](auto& request) {
                  ArrayOf(request).set_shape(0, int64_t{1} << 40);
                  ArrayOf(request).set_shape(1, 0);
                  ArrayOf(request).clear_numbers();
                });
}

TEST_F(BadInputTest, UnknownNames) {
  ExpectRefused(grpc::StatusCode::NOT_FOUND, "rope.model: got \"no-such-model\"",
                [](auto& request) {
                  request.mutable_rope()->clear_config();
                  request.mutable_rope()->set_model("no-such-model");
                });
  ExpectRefused(grpc::StatusCode::NOT_FOUND, "rope.config_id: got \"feed\"", [](auto& request) {
    request.mutable_rope()->Clear();
    request.mutable_rope()->set_config_id("feed");
  });
}

TEST_F(BadInputTest, PositionsOutOfBounds) {
  ExpectRefused(kInvalid, "positions.start: got -1, want positions >= 0",
                [](auto& request) { request.mutable_positions()->set_start(-1); });
  ExpectRefused(
      grpc::StatusCode::OUT_OF_RANGE, "positions.start: got 1073741825, want at most 1073741824",
      [](auto& request) { request.mutable_positions()->set_start((int64_t{1} << 30) + 1); });
  EXPECT_TRUE(Send(UnitRequest(int64_t{1} << 30)).ok());
}

TEST_F(BadInputTest, ConfigValues) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto config = [this](const std::string& message, auto change) {
    ExpectRefused(kInvalid, message, [&change](v1::RotateRequest& request) {
      change(*request.mutable_rope()->mutable_config());
    });
  };
  config("rope.config.rope_theta: got nan", [&](auto& c) { c.set_rope_theta(nan); });
  config("rope.config.rope_theta: got inf", [&](auto& c) { c.set_rope_theta(infinity); });
  config("rope.config.rope_theta: got -1", [](auto& c) { c.set_rope_theta(-1); });
  config("rope.config.rotary_dim: got 1", [](auto& c) { c.set_rotary_dim(1); });
  config("rope.config.rotary_dim: got 4", [](auto& c) { c.set_rotary_dim(4); });
  config("rope.config.rope_type: got", [](auto& c) { c.set_rope_type("spiral"); });
  config("rope.config.factor: got 0", [](auto& c) {
    c.set_rope_type("linear");
    c.set_factor(0);
  });
  config("rope.config.factor: got nothing", [](auto& c) { c.set_rope_type("linear"); });
  config("rope.config.mrope_section: got 2 counts, want three", [](auto& c) {
    c.add_mrope_section(1);
    c.add_mrope_section(0);
  });
}

TEST_F(BadInputTest, ConfigJson) {
  const auto json = [this](const std::string& message, const std::string& text) {
    ExpectRefused(kInvalid, message, [&text](v1::RotateRequest& request) {
      request.mutable_rope()->clear_config();
      request.mutable_rope()->set_config_json(text);
    });
  };
  json("rope.config_json: got a syntax error", "{");
  json("rope.config_json: got a list", "[1, 2]");
  json("rope.config_json.head_dim: got \"two\"", R"({"head_dim": "two"})");
  json("rope.config_json.factor: got -1",
       R"({"head_dim": 2, "rope_scaling": {"type": "linear", "factor": -1}})");
  json("rope.config_json", std::string(100000, '['));
}

TEST_F(BadInputTest, HeadDimensionThatIsNotTheConfigs) {
  ExpectRefused(kInvalid, "tensors[0].array.shape: got D 2, want the config's head_dim 4",
                [](auto& request) { request.mutable_rope()->mutable_config()->set_head_dim(4); });
}

TEST_F(BadInputTest, InvalidUtf8) {
  std::string bytes = UnitRequest(1).SerializeAsString();
  bytes += std::string("\x0a\x02\xc3\x28", 4);
  Check(SendBytes(bytes), kInvalid, "request: got bytes that do not parse");
}

TEST_F(BadInputTest, ErrorsCarryTheirFieldInTheDetails) {
  v1::RotateRequest request = UnitRequest(-5);
  const grpc::Status status = Send(request);
  EXPECT_THAT(status.error_details(), HasSubstr("positions.start"));
}

TEST_F(BadInputTest, OtherMethodsAreAsStrict) {
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::DescribeResponse response;
  request.mutable_rope()->set_model("llama-3.1-8b");
  request.add_positions(-1);
  EXPECT_EQ(stub_->Describe(&context, request, &response).error_code(), kInvalid);
  grpc::ClientContext other;
  v1::WarmUpResponse warm;
  EXPECT_EQ(stub_->WarmUp(&other, v1::WarmUpRequest(), &warm).error_code(), kInvalid);
  EXPECT_TRUE(Serves(*stub_));
}

TEST_F(BadInputTest, PlannedFieldSaysItsName) {
  grpc::ClientContext context;
  v1::RegisterRegionRequest request;
  request.set_device_uuid("GPU-0");
  v1::RegisterRegionResponse response;
  const grpc::Status status = stub_->RegisterRegion(&context, request, &response);
  EXPECT_EQ(status.error_code(), kUnimplemented);
  EXPECT_THAT(status.error_message(), StartsWith("device_uuid: got"));
}

}  // namespace
}  // namespace rope::testing
