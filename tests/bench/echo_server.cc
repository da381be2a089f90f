// The yardstick of every row about calls: an echo with the same queues, spinning, allocator and
// channel options as the real server. It answers each Rotate, and each message of a RotateStream,
// with the received bytes, copied once into a pooled buffer.
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <grpcpp/support/async_unary_call.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clients/account.h"
#include "server/clients/buffer_pool.h"
#include "server/clients/connections.h"
#include "server/clients/limits.h"
#include "server/clients/regions.h"
#include "server/clock.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/grpc/reflection.h"
#include "server/grpc/rope_codec.h"
#include "server/grpc/stream_call.h"
#include "server/ipc/listener.h"
#include "server/limits.h"
#include "server/options.h"
#include "server/process_setup.h"
#include "server/telemetry/process.h"
#include "tests/bench/modes.h"

namespace rope::bench {
namespace {

using Service = v1::RopeService::WithRawMethod_Rotate<
    v1::RopeService::WithRawMethod_RotateStream<v1::RopeService::Service>>;

// Consumes the bytes of `message`.
grpc::ByteBuffer Echo(server::BufferPool& pool, grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  ROPE_CHECK(message.Dump(&slices).ok());
  server::PooledBuffer buffer = pool.Allocate(static_cast<int64_t>(message.Length()));
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

// One Rotate, served by gRPC's own API: it arrives with its complete message, and no budget counts
// it. The call frees itself when both its answer and gRPC's done notification have come back.
//
// Threading:  Confined to the thread of its queue.
class EchoCall {
 public:
  // Waits for one call on `queue`, and registers for the next one when it has arrived.
  static void Arm(Service& service, server::BufferPool& pool, grpc::ServerCompletionQueue& queue) {
    auto call = std::unique_ptr<EchoCall>(new EchoCall(service, pool, queue));
    EchoCall& armed = *call.release();  // owned by itself
    armed.context_.AsyncNotifyWhenDone(&armed.done_);
    service.RequestRotate(&armed.context_, &armed.request_, &armed.writer_, &queue, &queue,
                          &armed.received_);
  }

 private:
  EchoCall(Service& service, server::BufferPool& pool, grpc::ServerCompletionQueue& queue)
      : service_(service), pool_(pool), queue_(queue), writer_(&context_) {}

  void OnReceived(bool ok) {
    ROPE_CHECK(ok);  // the server never shuts down
    writer_.Finish(Echo(pool_, request_), grpc::Status::OK, &sent_);
    Arm(service_, pool_, queue_);
  }
  void Release(bool) {
    if (--open_ == 0) delete this;
  }

  Service& service_;
  server::BufferPool& pool_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_;
  int open_ = 2;  // sent, and done
  server::CallEvent<EchoCall> received_{this, &EchoCall::OnReceived};
  server::CallEvent<EchoCall> sent_{this, &EchoCall::Release};
  server::CallEvent<EchoCall> done_{this, &EchoCall::Release};
};

// What the calls of the echo share.
struct Parts {
  server::BufferPool pool{server::limits::kPooledBytesMax};
  server::CallsInFlight in_flight;
  const server::SteadyClock clock;
  server::MessageReads reads{clock};
  server::Accounts accounts{{.connections = 2 * server::limits::kMaxConnectionsCeiling}, clock};
  server::RegionTotals regions{{}};  // no regions
  server::Connections connections{accounts, regions};
  server::OpenStreams open_streams;
  Service service;
};

server::StreamCall::Method RotateStream(Parts& parts) {
  return {{[&parts](server::RawContext* context, server::RawStream* stream,
                    grpc::ServerCompletionQueue* queue, void* tag) {
             parts.service.RequestRotateStream(context, stream, queue, queue, tag);
           },
           {&parts.in_flight, &parts.connections, &parts.reads}},
          [&parts](server::StreamCall& call, grpc::ByteBuffer& message) {
            const auto bytes = static_cast<int64_t>(message.Length());
            grpc::ByteBuffer reply = Echo(parts.pool, message);
            call.Answer(reply, bytes, {});
          },
          &parts.open_streams};
}

std::unique_ptr<server::Listener> Listen(const std::string& address, Parts& parts,
                                         grpc::Server* server) {
  auto listener = server::Listener::Create(
      address, parts.connections,
      {.hand_on = [server](int fd) { grpc::AddInsecureChannelFromFd(server, fd); }});
  ROPE_CHECK(listener.ok());
  return *std::move(listener);
}

}  // namespace

void ServeEcho(const std::string& path) {
  const int processors = server::ProcessorCount();
  server::LimitArenas(server::PollThreads(processors));
  Parts parts;
  const server::StreamCall::Method rotate_stream = RotateStream(parts);
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<server::WithoutReflection>());
  server::SetChannelArguments(server::limits::kMessageBytesMax, builder);
  builder.RegisterService(&parts.service);
  server::PollLoop loop(builder, server::PollThreads(processors),
                        processors > 1 ? server::ServerOptions().poll_spin : absl::ZeroDuration(),
                        [] { return false; });
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ROPE_CHECK(server != nullptr);
  const auto tcp = Listen("127.0.0.1:0", parts, server.get());
  const auto socket = Listen(server::kUnixPrefix + path, parts, server.get());
  for (const auto& queue : loop.queues()) {
    for (int i = 0; i < server::limits::kArmedCalls; ++i) {
      EchoCall::Arm(parts.service, parts.pool, queue->completion_queue());
    }
    server::CallArming::Start<server::StreamCall>(*queue, rotate_stream.request, rotate_stream);
  }
  loop.Start();
  std::printf("listening on %s\nlistening on unix:%s\n", tcp->address().c_str(), path.c_str());
  std::fflush(stdout);
  while (true) pause();
}

}  // namespace rope::bench
