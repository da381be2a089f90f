#include "tests/bench/echo_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/grpc_options.h"
#include "server/limits.h"
#include "server/options.h"
#include "server/processors.h"
#include "server/rope_codec.h"

namespace rope::bench {
namespace {

using Service = v1::RopeService::WithRawMethod_Rotate<v1::RopeService::Service>;

}  // namespace

EchoServer::EchoServer(const std::string& path, int threads, absl::Duration spin)
    : pool_(server::limits::kPooledBytesMax) {
  auto service = std::make_unique<Service>();
  method_.request = [raw = service.get()](grpc::ServerContext* context, grpc::ByteBuffer* request,
                                          grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* writer,
                                          grpc::ServerCompletionQueue* queue, void* tag) {
    raw->RequestRotate(context, request, writer, queue, queue, tag);
  };
  method_.handler = [this](server::UnaryCall& call) { Echo(call); };
  method_.in_flight = &in_flight_;
  service_ = std::move(service);
  grpc::ServerBuilder builder;
  server::SetChannelArguments(server::limits::kMessageBytesMax, builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(service_.get());
  loop_ = std::make_unique<server::PollLoop>(builder, threads, spin);
  server_ = builder.BuildAndStart();
  ROPE_CHECK(server_ != nullptr);
  auto listener = server::UnixListener::Create(path, *server_);
  ROPE_CHECK(listener.ok());
  listener_ = *std::move(listener);
  for (const auto& queue : loop_->queues()) {
    for (int i = 0; i < server::limits::kArmedCalls; ++i) server::UnaryCall::Arm(method_, *queue);
  }
  loop_->Start();
}

EchoServer::~EchoServer() {
  listener_.reset();
  server_->Shutdown(std::chrono::system_clock::now());
  loop_->Shutdown();
}

void EchoServer::Echo(server::UnaryCall& call) {
  std::vector<grpc::Slice> slices;
  ROPE_CHECK(call.request().Dump(&slices).ok());
  server::PooledBuffer buffer = pool_.Take(static_cast<int64_t>(call.request().Length()));
  char* out = buffer.data();
  for (const grpc::Slice& slice : slices) {
    std::memcpy(out, slice.begin(), slice.size());
    out += slice.size();
  }
  call.request().Clear();
  slices.clear();
  const grpc::Slice reply = server::SliceOf(std::move(buffer));
  call.Finish(absl::OkStatus(), grpc::ByteBuffer(&reply, 1));
}

void ServeEcho(const std::string& path) {
  const int processors = server::ProcessorCount();
  const absl::Duration spin =
      processors > 1 ? server::ServerOptions().poll_spin : absl::ZeroDuration();
  const EchoServer echo(path, server::PollThreads(processors), spin);
  std::printf("127.0.0.1:%d\n", echo.port());
  std::fflush(stdout);
  while (true) pause();
}

}  // namespace rope::bench
