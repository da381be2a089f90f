// FakeServer: a gRPC server in this process whose answers the test defines; and a request for it.
#ifndef ROPE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
#define ROPE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "rope/client.h"
#include "rope/v1/rope_service.grpc.pb.h"

namespace rope::client {

class FakeServer {
 public:
  // Answers a Rotate with bytes or with a status. Runs on gRPC's threads.
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
  ~FakeServer() { Stop(); }

  // Ends every call. No handler runs once it returns.
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

  // Serves a connection that another listener has accepted; takes its descriptor.
  void TakeOver(int socket) {
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    grpc::AddInsecureChannelFromFd(server_.get(), socket);
  }

  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }
  int rotate_calls() const { return rope_.calls; }

  // REQUIRES: set before the first call that uses them.
  void OnRotate(RotateHandler handler) { rope_.handler = std::move(handler); }
  using PrepareHandler =
      std::function<grpc::Status(const v1::PrepareRequest&, v1::PrepareResponse&)>;
  void OnPrepare(PrepareHandler handler) { rope_.prepare = std::move(handler); }
  using RegisterRegionHandler =
      std::function<grpc::Status(const v1::RegisterRegionRequest&, v1::RegisterRegionResponse&)>;
  using UnregisterRegionHandler = std::function<grpc::Status(const v1::UnregisterRegionRequest&)>;
  void OnRegisterRegion(RegisterRegionHandler handler) {
    rope_.register_region = std::move(handler);
  }
  void OnUnregisterRegion(UnregisterRegionHandler handler) {
    rope_.unregister_region = std::move(handler);
  }
  void HangOnRotate() { rope_.hangs = true; }
  void SetHealth(grpc::health::v1::HealthCheckResponse::ServingStatus status) {
    health_.serving = status;
  }

 private:
  // Returns when the client cancels.
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
    grpc::Status Prepare(grpc::ServerContext*, const v1::PrepareRequest* request,
                         v1::PrepareResponse* response) override {
      return prepare(*request, *response);
    }
    grpc::Status RegisterRegion(grpc::ServerContext*, const v1::RegisterRegionRequest* request,
                                v1::RegisterRegionResponse* response) override {
      return register_region(*request, *response);
    }
    grpc::Status UnregisterRegion(grpc::ServerContext*, const v1::UnregisterRegionRequest* request,
                                  v1::UnregisterRegionResponse*) override {
      return unregister_region(*request);
    }

    std::atomic<int> calls = 0;
    RotateHandler handler;
    PrepareHandler prepare = [](const auto&, auto&) {
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no Prepare");
    };
    RegisterRegionHandler register_region = [](const auto&, auto&) {
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no regions");
    };
    UnregisterRegionHandler unregister_region = [](const auto&) {
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no regions");
    };
    std::atomic<bool> hangs = false;
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

// The values as a [tokens, 2] tensor of float32.
inline RotateRequest RequestFor(const std::vector<float>& data, float* output = nullptr) {
  RotateRequest request{.request_id = "mine", .rope = {.model = "m"}, .positions = {.start = 0}};
  request.tensors = {{.layout = "TD",
                      .shape = {static_cast<int64_t>(data.size()) / 2, 2},
                      .data = data.data(),
                      .output = output}};
  return request;
}

// An answer that contains the request's own tensors.
inline v1::RotateResponse EchoOf(const v1::RotateRequest& request) {
  v1::RotateResponse response;
  response.set_device("fake");
  response.set_request_id(request.request_id());
  *response.mutable_tensors() = request.tensors();
  return response;
}

// Answers a Rotate with the request's own tensors.
inline grpc::Status Echo(grpc::CallbackServerContext&, const std::string& request,
                         std::string& reply) {
  v1::RotateRequest message;
  if (!message.ParseFromString(request)) return {grpc::StatusCode::INVALID_ARGUMENT, "garbage"};
  reply = EchoOf(message).SerializeAsString();
  return grpc::Status::OK;
}

// Echo, which keeps the request in `sent`.
inline FakeServer::RotateHandler EchoTo(v1::RotateRequest& sent) {
  return [&sent](grpc::CallbackServerContext& context, const std::string& request,
                 std::string& reply) {
    sent.ParseFromString(request);
    return Echo(context, request, reply);
  };
}

}  // namespace rope::client

#endif  // ROPE_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
