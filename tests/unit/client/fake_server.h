// FakeServer: a gRPC server in this process whose answers a test writes.
#ifndef ROPE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
#define ROPE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "rope/v1/rope_service.grpc.pb.h"

namespace rope::client {

class FakeServer {
 public:
  // Answers a Rotate with bytes or a status. Runs on gRPC's threads.
  using RotateHandler = std::function<grpc::Status(grpc::CallbackServerContext& context,
                                                   const std::string& request, std::string& reply)>;

  FakeServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&rope_);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }
  int rotate_calls() const { return rope_.calls; }

  // Set before the first call that needs them.
  void OnRotate(RotateHandler handler) { rope_.handler = std::move(handler); }
  void HangOnRotate() { rope_.hangs = true; }
  void SetHealth(grpc::health::v1::HealthCheckResponse::ServingStatus status) {
    health_.serving = status;
  }
  v1::DescribeRequest described() const { return rope_.described; }
  v1::DescribeResponse& describe_response() { return rope_.describe_response; }

 private:
  // Ends when the client gives up.
  class HangingReactor : public grpc::ServerUnaryReactor {
   public:
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { std::unique_ptr<HangingReactor> self(this); }
  };

  class Rope : public v1::RopeService::WithRawCallbackMethod_Rotate<v1::RopeService::Service> {
   public:
    grpc::ServerUnaryReactor* Rotate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
      ++calls;
      if (hangs) return std::make_unique<HangingReactor>().release();
      grpc::Slice slice;
      static_cast<void>(request->DumpToSingleSlice(&slice));
      std::string reply;
      const grpc::Status status = handler(
          *context, std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()), reply);
      const grpc::Slice reply_slice(reply);
      *response = grpc::ByteBuffer(&reply_slice, 1);
      auto* reactor = context->DefaultReactor();
      reactor->Finish(status);
      return reactor;
    }
    grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest* request,
                          v1::DescribeResponse* response) override {
      described = *request;
      *response = describe_response;
      return grpc::Status::OK;
    }

    std::atomic<int> calls = 0;
    RotateHandler handler;
    std::atomic<bool> hangs = false;
    v1::DescribeRequest described;
    v1::DescribeResponse describe_response;
  };

  class Health : public grpc::health::v1::Health::Service {
   public:
    grpc::Status Check(grpc::ServerContext*, const grpc::health::v1::HealthCheckRequest* request,
                       grpc::health::v1::HealthCheckResponse* response) override {
      if (!request->service().empty()) return {grpc::StatusCode::NOT_FOUND, "no such service"};
      response->set_status(serving);
      return grpc::Status::OK;
    }
    std::atomic<grpc::health::v1::HealthCheckResponse::ServingStatus> serving =
        grpc::health::v1::HealthCheckResponse::SERVING;
  };

  int port_ = 0;
  Rope rope_;
  Health health_;
  std::unique_ptr<grpc::Server> server_;
};

// Answers a Rotate with its own tensors.
inline grpc::Status Echo(grpc::CallbackServerContext&, const std::string& request,
                         std::string& reply) {
  v1::RotateRequest message;
  if (!message.ParseFromString(request)) return {grpc::StatusCode::INVALID_ARGUMENT, "garbage"};
  v1::RotateResponse response;
  response.set_device("fake");
  response.set_request_id(message.request_id());
  *response.mutable_tensors() = message.tensors();
  reply = response.SerializeAsString();
  return grpc::Status::OK;
}

}  // namespace rope::client

#endif  // ROPE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
