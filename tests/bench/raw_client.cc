#include "tests/bench/raw_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/transport/channel.h"
#include "kernels/check.h"
#include "proto/wire/message_join.h"
#include "proto/wire/stream_message.h"
#include "rope/v1/prepare.pb.h"
#include "rope/v1/rope_service.grpc.pb.h"

namespace rope::bench {
namespace {

constexpr std::chrono::microseconds kSpin{200};

// q without its elements.
v1::Tensor QueryTensor(int64_t tokens) {
  v1::Tensor tensor;
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_BF16);
  for (const int64_t length : {tokens, kHeads, kHeadDim}) tensor.mutable_array()->add_shape(length);
  return tensor;
}

grpc::ByteBuffer WithPayload(const v1::RotateRequest& head, const v1::Tensor& tensor,
                             int64_t tokens) {
  const std::string raw(static_cast<size_t>(tokens * kTokenBytes), '\x3f');
  const proto::TensorPart part = {&tensor, raw};
  std::vector<grpc::Slice> slices;
  for (const proto::MessagePart& piece : proto::Join(head, {&part, 1})) {
    slices.emplace_back(piece.header.data(), piece.header.size());
    if (!piece.payload.empty()) slices.emplace_back(piece.payload.data(), piece.payload.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

v1::RotateRequest Head(int64_t start, double theta) {
  v1::RotateRequest head;
  v1::RopeConfig& config = *head.mutable_rope()->mutable_config();
  config.set_head_dim(kHeadDim);
  config.set_rope_theta(theta);
  head.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  head.mutable_positions()->set_start(start);
  return head;
}

grpc::ByteBuffer MakeRequest(const v1::RotateRequest& head, int64_t tokens) {
  return WithPayload(head, QueryTensor(tokens), tokens);
}

grpc::ByteBuffer MakePreparedRequest(const std::string& target, const v1::RotateRequest& head,
                                     int64_t tokens) {
  v1::PrepareRequest request;
  *request.mutable_rotate() = head;
  request.mutable_rotate()->clear_positions();
  *request.mutable_rotate()->add_tensors() = QueryTensor(tokens);
  v1::PrepareResponse prepared;
  grpc::ClientContext context;
  const auto stub = v1::RopeService::NewStub(MakeChannel(target, true));
  ROPE_CHECK(stub->Prepare(&context, request, &prepared).ok());
  v1::RotateRequest call;
  call.set_prepared_id(prepared.prepared_id());
  *call.mutable_positions() = head.positions();
  v1::Tensor elements;
  elements.mutable_array();
  return WithPayload(call, elements, tokens);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, bool tuned) {
  if (tuned) {
    const client::ConnectOptions options;
    const std::optional<std::string> path = client::UnixPathOf(target);
    if (!path.has_value()) return client::MakeChannel(target, options);
    auto socket = client::ConnectSocket(*path, std::chrono::seconds(1));
    ROPE_CHECK(socket.ok());
    return client::MakeChannelOn(*std::move(socket), options);
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

double RawClient::Call(const grpc::ByteBuffer& request, grpc::ByteBuffer* reply) {
  const auto begin = Clock::now();
  grpc::ClientContext context;
  grpc::ByteBuffer received;
  grpc::Status status;
  auto call = grpc::GenericStub(channel_).PrepareUnaryCall(&context, "/rope.v1.RopeService/Rotate",
                                                           request, &queue_);
  call->StartCall();
  call->Finish(&received, &status, nullptr);
  Await();
  const double seconds = Seconds(Clock::now() - begin);
  if (!status.ok()) std::fprintf(stderr, "rope_bench: %s\n", status.error_message().c_str());
  ROPE_CHECK(status.ok() && received.Length() > 0);
  if (reply != nullptr) reply->Swap(&received);
  return seconds;
}

void* RawClient::Await() {
  // As many threads may poll as in the client library.
  static const int pollers_max =
      std::max(static_cast<int>(std::thread::hardware_concurrency() / 2), 1);
  static std::atomic<int> waiting{0};
  const bool may_poll = waiting.fetch_add(1) < pollers_max;
  void* tag = nullptr;
  bool ok = false;
  bool has_event = false;
  const auto end = Clock::now() + kSpin;
  while (may_poll && !has_event && Clock::now() < end) {
    has_event = queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) ==
                grpc::CompletionQueue::GOT_EVENT;
    if (!has_event) sched_yield();
  }
  if (!has_event) queue_.Next(&tag, &ok);
  waiting.fetch_sub(1);
  ROPE_CHECK(ok);
  return tag;
}

grpc::ByteBuffer StreamMessageOf(uint64_t sequence, const grpc::ByteBuffer& rotate) {
  std::vector<grpc::Slice> slices;
  ROPE_CHECK(rotate.Dump(&slices).ok());
  slices.emplace(slices.begin(),
                 proto::StreamPrefix(sequence, static_cast<int64_t>(rotate.Length())));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

double RawClient::StreamRate(const grpc::ByteBuffer& request, int window, double seconds) {
  grpc::ClientContext context;
  auto stream = grpc::GenericStub(channel_).PrepareCall(
      &context, "/rope.v1.RopeService/RotateStream", &queue_);
  int started = 0;
  int written = 0;
  int read = 0;
  stream->StartCall(&started);
  Await();
  grpc::ByteBuffer reply;
  const auto begin = Clock::now();
  int64_t sent = 1;
  int64_t answered = 0;
  bool writing = true;
  stream->Write(StreamMessageOf(1, request), &written);
  stream->Read(&reply, &read);
  while (answered < sent) {
    const bool is_answer = Await() == &read;
    if (is_answer) {
      ROPE_CHECK(reply.Length() > 0);
      ++answered;
    } else {
      writing = false;
    }
    if (!writing && sent - answered < window && Seconds(Clock::now() - begin) < seconds) {
      ++sent;
      stream->Write(StreamMessageOf(static_cast<uint64_t>(sent), request), &written);
      writing = true;
    }
    if (is_answer && answered < sent) stream->Read(&reply, &read);
  }
  const double elapsed = Seconds(Clock::now() - begin);
  if (writing) Await();
  grpc::Status status;
  stream->WritesDone(&written);
  Await();
  stream->Finish(&status, &started);
  Await();
  return static_cast<double>(answered) / elapsed;
}

double CallRate(const std::function<std::function<void()>()>& connect, int clients,
                double seconds) {
  std::atomic<int64_t> calls{0};
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(clients));
  const auto begin = Clock::now();
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      const std::function<void()> call = connect();
      while (Seconds(Clock::now() - begin) < seconds) {
        call();
        calls.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(calls.load()) / Seconds(Clock::now() - begin);
}

double RawCallRate(const std::string& target, const grpc::ByteBuffer& request, int clients,
                   double seconds) {
  return CallRate(
      [&]() -> std::function<void()> {
        auto client = std::make_shared<RawClient>(target);
        return [client, &request] { client->Call(request); };
      },
      clients, seconds);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace rope::bench
