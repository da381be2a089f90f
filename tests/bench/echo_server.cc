#include "tests/bench/echo_server.h"

#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clients/limits.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/limits.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/reflection.h"
#include "server/grpc/rope_codec.h"
#include "server/limits.h"
#include "server/options.h"
#include "server/process_setup.h"
#include "server/telemetry/process.h"

namespace rope::bench {
namespace {

using Service = v1::RopeService::WithRawMethod_Rotate<
    v1::RopeService::WithRawMethod_RotateStream<v1::RopeService::Service>>;

}  // namespace

EchoServer::EchoServer(const std::string& path, int threads, absl::Duration spin)
    : pool_(server::limits::kPooledBytesMax) {
  auto service = std::make_unique<Service>();
  rotate_ = {[raw = service.get()](grpc::ServerContext* context, grpc::ByteBuffer* request,
                                   grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* writer,
                                   grpc::ServerCompletionQueue* queue, void* tag) {
               raw->RequestRotate(context, request, writer, queue, queue, tag);
             },
             [this](EchoCall& call) { call.Finish(absl::OkStatus(), Echo(call.request())); },
             &in_flight_};
  rotate_stream_ = {{[raw = service.get()](server::RawContext* context, server::RawStream* stream,
                                           grpc::ServerCompletionQueue* queue, void* tag) {
                       raw->RequestRotateStream(context, stream, queue, queue, tag);
                     },
                     {&in_flight_, &connections_, &reads_}},
                    [this](server::StreamCall& call, grpc::ByteBuffer& message) {
                      const auto bytes = static_cast<int64_t>(message.Length());
                      grpc::ByteBuffer reply = Echo(message);
                      call.Answer(reply, bytes, {});
                    },
                    &open_streams_};
  service_ = std::move(service);
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<server::WithoutReflection>());
  server::SetChannelArguments(server::limits::kMessageBytesMax, builder);
  builder.RegisterService(service_.get());
  loop_ = std::make_unique<server::PollLoop>(builder, threads, spin);
  server_ = builder.BuildAndStart();
  ROPE_CHECK(server_ != nullptr);
  for (const std::string& address : {std::string("127.0.0.1:0"), server::kUnixPrefix + path}) {
    auto listener = server::Listener::Create(address, connections_, {.hand_on = [this](int fd) {
                                               grpc::AddInsecureChannelFromFd(server_.get(), fd);
                                             }});
    ROPE_CHECK(listener.ok());
    listeners_.push_back(*std::move(listener));
  }
  for (const auto& queue : loop_->queues()) {
    for (int i = 0; i < server::limits::kArmedCalls; ++i) {
      EchoCall::Arm(rotate_, queue->completion_queue());
    }
    server::StreamCall::Arm(rotate_stream_, *queue, server::limits::kArmedCalls);
  }
  loop_->Start();
}

EchoServer::~EchoServer() {
  listeners_.clear();
  server_->Shutdown(std::chrono::system_clock::now());
  in_flight_.AwaitNoneOpen();  // of streams, which ask for more until then
  loop_->Shutdown();
}

grpc::ByteBuffer EchoServer::Echo(grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  ROPE_CHECK(message.Dump(&slices).ok());
  server::PooledBuffer buffer = pool_.Allocate(static_cast<int64_t>(message.Length()));
  char* out = buffer.data();
  for (const grpc::Slice& slice : slices) {
    std::memcpy(out, slice.begin(), slice.size());
    out += slice.size();
  }
  message.Clear();
  slices.clear();
  const grpc::Slice reply = server::SliceOf(std::move(buffer));
  return grpc::ByteBuffer(&reply, 1);
}

void ServeEcho(const std::string& path) {
  const int processors = server::ProcessorCount();
  server::LimitArenas(server::PollThreads(processors));
  const absl::Duration spin =
      processors > 1 ? server::ServerOptions().poll_spin : absl::ZeroDuration();
  const EchoServer echo(path, server::PollThreads(processors), spin);
  std::printf("listening on %s\nlistening on unix:%s\n", echo.address().c_str(), path.c_str());
  std::fflush(stdout);
  while (true) pause();
}

}  // namespace rope::bench
