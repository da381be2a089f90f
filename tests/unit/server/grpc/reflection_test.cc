#include "server/grpc/reflection.h"

#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "rope/v1/rope_service.pb.h"
#include "server/clock.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;
using ::testing::IsSupersetOf;

// A gRPC server in this process that serves only reflection.
class ReflectionTest : public ::testing::Test {
 protected:
  ReflectionTest()
      : reflection_(
            {v1::GetServerInfoRequest::descriptor()->file()->FindServiceByName("RopeService")},
            {&in_flight_, &connections_, &reads_}) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&reflection_.service());
    loop_ = std::make_unique<PollLoop>(builder, 1, absl::ZeroDuration(), [] { return false; });
    server_ = builder.BuildAndStart();
    reflection_.Arm(*loop_->queues().front());
    loop_->Start();
    stub_ = ServerReflection::NewStub(server_->InProcessChannel({}));
  }
  ~ReflectionTest() override {
    streams_.clear();
    server_->Shutdown();
    in_flight_.AwaitNoneOpen();
    loop_->Shutdown();
  }

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>> io;
  };
  Stream& Open() {
    Stream& stream = streams_.emplace_back();
    stream.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream.io = stub_->ServerReflectionInfo(&stream.context);
    return stream;
  }
  // No answer: one without a kind.
  static ServerReflectionResponse Ask(Stream& stream, const ServerReflectionRequest& request) {
    ServerReflectionResponse response;
    if (!stream.io->Write(request) || !stream.io->Read(&response)) response.Clear();
    return response;
  }

  const SteadyClock clock_;
  MessageReads reads_{clock_};
  Connections connections_{{.all = 4, .owner = 2}};
  CallsInFlight in_flight_;
  Reflection reflection_;
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ServerReflection::Stub> stub_;
  std::deque<Stream> streams_;
};

std::vector<std::string> FilesIn(const ServerReflectionResponse& response) {
  std::vector<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

TEST_F(ReflectionTest, OneStreamAnswersAllThatAToolAsks) {
  Stream& stream = Open();
  ServerReflectionRequest request;
  request.set_host("any");
  request.set_list_services("*");
  ServerReflectionResponse response = Ask(stream, request);
  ASSERT_EQ(response.list_services_response().service_size(), 2);
  EXPECT_EQ(response.list_services_response().service(0).name(), "rope.v1.RopeService");
  EXPECT_EQ(response.list_services_response().service(1).name(),
            "grpc.reflection.v1alpha.ServerReflection");
  EXPECT_EQ(response.original_request().list_services(), "*");

  request.set_file_containing_symbol("rope.v1.RopeService");
  const auto files = FilesIn(Ask(stream, request));
  ASSERT_FALSE(files.empty());
  EXPECT_EQ(files.front(), "rope/v1/rope_service.proto");
  EXPECT_THAT(files, IsSupersetOf({"rope/v1/rotate.proto", "rope/v1/options.proto",
                                   "google/protobuf/descriptor.proto"}));
  request.set_file_containing_symbol("rope.v1.RotateRequest");
  EXPECT_EQ(FilesIn(Ask(stream, request)).front(), "rope/v1/rotate.proto");
  request.set_file_by_filename("google/protobuf/descriptor.proto");
  EXPECT_THAT(FilesIn(Ask(stream, request)), ElementsAre("google/protobuf/descriptor.proto"));

  request.set_all_extension_numbers_of_type("google.protobuf.FieldOptions");
  response = Ask(stream, request);
  EXPECT_THAT(response.all_extension_numbers_response().extension_number(), ElementsAre(50051));
  request.mutable_file_containing_extension()->set_containing_type("google.protobuf.FieldOptions");
  request.mutable_file_containing_extension()->set_extension_number(50051);
  EXPECT_EQ(FilesIn(Ask(stream, request)).front(), "rope/v1/options.proto");

  stream.io->WritesDone();
  EXPECT_TRUE(stream.io->Finish().ok());
}

TEST_F(ReflectionTest, DetailsOfErrorsAreShownAndTheGeneratedPoolHasNone) {
  Stream& stream = Open();
  ServerReflectionRequest request;
  for (const char* name : {"ErrorInfo", "BadRequest", "BadRequest.FieldViolation", "RetryInfo"}) {
    const std::string symbol = std::string("google.rpc.") + name;
    request.set_file_containing_symbol(symbol);
    EXPECT_THAT(FilesIn(Ask(stream, request)),
                ElementsAre("google/rpc/error_details.proto", "google/protobuf/duration.proto"));
    EXPECT_EQ(google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(symbol),
              nullptr);
  }
  request.set_file_by_filename("google/rpc/error_details.proto");
  EXPECT_EQ(FilesIn(Ask(stream, request)).front(), "google/rpc/error_details.proto");
  request.set_file_containing_symbol("google.rpc.Help");
  EXPECT_EQ(Ask(stream, request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ReflectionTest, UnknownNamesAreErrorsOfOneRequest) {
  Stream& stream = Open();
  ServerReflectionRequest request;
  EXPECT_EQ(Ask(stream, request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_file_by_filename("none.proto");
  EXPECT_EQ(Ask(stream, request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_file_containing_symbol("rope.v1.None");
  EXPECT_EQ(Ask(stream, request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_all_extension_numbers_of_type("rope.v1.None");
  EXPECT_EQ(Ask(stream, request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.mutable_file_containing_extension()->set_containing_type("rope.v1.RotateRequest");
  EXPECT_EQ(Ask(stream, request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_list_services("");
  EXPECT_EQ(Ask(stream, request).list_services_response().service_size(), 2);
}

TEST_F(ReflectionTest, LongRequestEndsItsStream) {
  Stream& stream = Open();
  ServerReflectionRequest request;
  request.set_file_containing_symbol(std::string(2000, 'x'));
  Ask(stream, request);
  const grpc::Status status = stream.io->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("want at most 1024"));
}

TEST_F(ReflectionTest, StreamsAreFew) {
  ServerReflectionRequest request;
  request.set_list_services("");
  for (int i = 0; i < Reflection::kStreamsMax / 2; ++i) {  // of one owner
    EXPECT_TRUE(Ask(Open(), request).has_list_services_response()) << i;
  }
  Stream& refused = Open();
  EXPECT_FALSE(Ask(refused, request).has_list_services_response());
  EXPECT_EQ(refused.io->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  Stream& first = streams_.front();
  first.io->WritesDone();
  EXPECT_TRUE(first.io->Finish().ok());
  while (!Ask(Open(), request).has_list_services_response()) continue;
}

TEST_F(ReflectionTest, SilentStreamEndsWithItsRead) {
  ServerReflectionRequest request;
  request.set_list_services("");
  Stream& stream = Open();
  Ask(stream, request);
  while (reads_.EndSince(absl::InfiniteFuture(), absl::CancelledError()) == 0) continue;
  ServerReflectionResponse response;
  EXPECT_FALSE(stream.io->Read(&response));
  EXPECT_EQ(stream.io->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace rope::server
