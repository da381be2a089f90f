#include "tests/bench/untuned_echo.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>

#include "kernels/check.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/grpc/reflection.h"
#include "tests/bench/modes.h"
#include "tests/bench/raw_client.h"

namespace rope::bench {
namespace {

class UntunedEcho final
    : public v1::RopeService::WithRawCallbackMethod_Rotate<v1::RopeService::Service> {
  grpc::ServerUnaryReactor* Rotate(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override {
    *response = *request;
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

void Call(grpc::GenericStub& stub, const grpc::ByteBuffer& request) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  stub.UnaryCall(&context, "/rope.v1.RopeService/Rotate", {}, &request, &reply,
                 [&](const grpc::Status& status) {
                   ROPE_CHECK(status.ok());
                   const std::lock_guard<std::mutex> lock(mutex);
                   done = true;
                   changed.notify_one();
                 });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
  ROPE_CHECK(reply.Length() == request.Length());
}

}  // namespace

void ServeUntunedEcho(const std::string& path) {
  UntunedEcho service;
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<server::WithoutReflection>());
  builder.SetMaxReceiveMessageSize(-1);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ROPE_CHECK(server != nullptr);
  std::printf("listening on 127.0.0.1:%d\nlistening on unix:%s\n", port, path.c_str());
  std::fflush(stdout);
  while (true) pause();
}

std::function<void()> ConnectCallback(const std::string& target, const grpc::ByteBuffer& request) {
  auto stub = std::make_shared<grpc::GenericStub>(MakeChannel(target, false));
  return [stub, request] { Call(*stub, request); };
}

}  // namespace rope::bench
