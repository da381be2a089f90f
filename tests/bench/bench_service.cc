// Rows about calls, over real sockets to real processes:
//   service/decode_token_*            one decode token (40 x 128 bf16), median, against the
//   same-options echo
//   service/inline_*                  Rotate of 1 and 16 MiB, 1 and 8 clients, TCP and Unix,
//   throughput against the echo
//   service/first_request_at_1000000  a new config's first request less the same request warm
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "proto/message_join.h"
#include "rope/v1/rotate.pb.h"
#include "tests/bench/echo_server.h"
#include "tests/bench/measure.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHeads = 40;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kTokenBytes = kHeads * kHeadDim * 2;
constexpr std::chrono::microseconds kSpin{200};

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// The real server and the echo, each a process of its own as in life: gRPC's threads of one process
// take each other's events.
struct Servers {
  Servers()
      : folder(testing::TestServer::TemporaryFolder()),
        rope({"--listen=unix:" + folder + "/rope.sock", "--log_level=warn"}),
        echo({"/proc/self/exe", kServeEcho + folder + "/echo.sock"}),
        echo_address(echo.ReadLine()) {}

  static Servers& Get() {
    static Servers servers;
    return servers;
  }

  const std::string folder;
  testing::TestServer rope;
  testing::Process echo;
  const std::string echo_address;
};

enum class Socket { kTcp, kUnix };

std::string RopeTarget(Socket socket) {
  const Servers& servers = Servers::Get();
  return socket == Socket::kTcp ? servers.rope.address() : "unix:" + servers.folder + "/rope.sock";
}

std::string EchoTarget(Socket socket) {
  const Servers& servers = Servers::Get();
  return socket == Socket::kTcp ? servers.echo_address : "unix:" + servers.folder + "/echo.sock";
}

v1::RotateRequest Head(int64_t start, double theta) {
  v1::RotateRequest head;
  v1::RopeConfig& config = *head.mutable_rope()->mutable_config();
  config.set_head_dim(kHeadDim);
  config.set_rope_theta(theta);
  head.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  head.mutable_positions()->set_start(start);
  return head;
}

// The wire bytes of a Rotate of `tokens` tokens of bf16.
grpc::ByteBuffer MakeRequest(const v1::RotateRequest& head, int64_t tokens) {
  v1::Tensor tensor;
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_BF16);
  for (const int64_t length : {tokens, kHeads, kHeadDim}) tensor.mutable_array()->add_shape(length);
  const std::string raw(static_cast<size_t>(tokens * kTokenBytes), '\x3f');
  const proto::TensorPart part = {&tensor, raw};
  std::vector<grpc::Slice> slices;
  for (const proto::MessagePart& piece : proto::Join(head, {&part, 1})) {
    slices.emplace_back(piece.header.data(), piece.header.size());
    if (!piece.payload.empty()) slices.emplace_back(piece.payload.data(), piece.payload.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// A connection whose calling thread polls as the client library does.
class RawClient {
 public:
  explicit RawClient(const std::string& target) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16 * 1024 * 1024 - 1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  }

  // Seconds that one call took.
  double Call(const grpc::ByteBuffer& request) {
    const auto begin = Clock::now();
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto call = stub_->PrepareUnaryCall(&context, "/rope.v1.RopeService/Rotate", request, &queue_);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    Await();
    const double seconds = Seconds(Clock::now() - begin);
    if (!status.ok()) std::fprintf(stderr, "rope_bench: %s\n", status.error_message().c_str());
    ROPE_CHECK(status.ok() && reply.Length() > 0);
    return seconds;
  }

 private:
  void Await() {
    void* tag = nullptr;
    bool ok = false;
    const auto end = Clock::now() + kSpin;
    do {
      if (queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) ==
          grpc::CompletionQueue::GOT_EVENT) {
        return;
      }
      sched_yield();
    } while (Clock::now() < end);
    queue_.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

Measurement DecodeToken(Socket socket) {
  RawClient rope(RopeTarget(socket));
  RawClient echo(EchoTarget(socket));
  const grpc::ByteBuffer request = MakeRequest(Head(1000, 10000), 1);
  std::vector<double> rope_seconds;
  std::vector<double> echo_seconds;
  constexpr int kRounds = 40;
  constexpr int kCalls = 200;
  for (int round = 0; round < kRounds; ++round) {  // side by side, in turns
    for (int i = 0; i < kCalls; ++i) rope_seconds.push_back(rope.Call(request));
    for (int i = 0; i < kCalls; ++i) echo_seconds.push_back(echo.Call(request));
  }
  const double rope_median = Median(rope_seconds);
  const double echo_median = Median(echo_seconds);
  Measurement measurement;
  measurement.value = rope_median * 1e6;
  measurement.unit = "us";
  measurement.yardstick = absl::StrFormat("same-options echo %.1f us", echo_median * 1e6);
  measurement.ratio = rope_median / echo_median;
  return measurement;
}

// Bytes a second each way that `clients` threads get through together in `seconds`.
double Throughput(const std::string& target, const grpc::ByteBuffer& request, int64_t bytes,
                  int clients, double seconds) {
  std::atomic<int64_t> calls{0};
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(clients));
  const auto begin = Clock::now();
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      RawClient client(target);
      while (Seconds(Clock::now() - begin) < seconds) {
        client.Call(request);
        calls.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(calls.load() * bytes) / Seconds(Clock::now() - begin);
}

Measurement Inline(Socket socket, int64_t mebibytes, int clients) {
  const int64_t tokens = (mebibytes << 20) / kTokenBytes;
  const int64_t bytes = tokens * kTokenBytes;
  const grpc::ByteBuffer request = MakeRequest(Head(0, 10000), tokens);
  std::vector<double> rope;
  std::vector<double> echo;
  Throughput(RopeTarget(socket), request, bytes, clients, 0.2);  // warms pages and buffers
  Throughput(EchoTarget(socket), request, bytes, clients, 0.2);
  constexpr int kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    rope.push_back(Throughput(RopeTarget(socket), request, bytes, clients, 0.5));
    echo.push_back(Throughput(EchoTarget(socket), request, bytes, clients, 0.5));
  }
  Measurement measurement;
  measurement.value = Median(rope) / 1e9;
  measurement.unit = "GB/s";
  measurement.yardstick = absl::StrFormat("same-options echo %.2f GB/s", Median(echo) / 1e9);
  measurement.ratio = Median(rope) / Median(echo);
  return measurement;
}

Measurement FirstRequest() {
  RawClient client(RopeTarget(Socket::kUnix));
  client.Call(MakeRequest(Head(0, 10000), 1));
  std::vector<double> cold;
  std::vector<double> warm;
  constexpr int kConfigs = 200;
  for (int i = 0; i < kConfigs; ++i) {
    // Another base each time: a config that the server has never seen.
    const grpc::ByteBuffer request = MakeRequest(Head(1000000, 20000 + i), 1);
    cold.push_back(client.Call(request));
    std::vector<double> repeats;
    repeats.reserve(5);
    for (int n = 0; n < 5; ++n) repeats.push_back(client.Call(request));
    warm.push_back(Median(repeats));
  }
  Measurement measurement;
  measurement.value = (Median(cold) - Median(warm)) * 1e3;
  measurement.unit = "ms";
  measurement.yardstick = absl::StrFormat("cold %.0f us, warm %.0f us, medians of %d configs",
                                          Median(cold) * 1e6, Median(warm) * 1e6, kConfigs);
  return measurement;
}

}  // namespace

std::vector<Row> ServiceRows() {
  std::vector<Row> rows = {
      {"service/first_request_at_1000000", "<= 1", FirstRequest},
      {"service/decode_token_unix", "<= 1.15", [] { return DecodeToken(Socket::kUnix); }},
      {"service/decode_token_tcp", "", [] { return DecodeToken(Socket::kTcp); }},
  };
  for (const Socket socket : {Socket::kUnix, Socket::kTcp}) {
    for (const int64_t mebibytes : {1, 16}) {
      for (const int clients : {1, 8}) {
        rows.push_back({absl::StrFormat("service/inline_%dMiB_%d_%s", mebibytes, clients,
                                        socket == Socket::kTcp ? "tcp" : "unix"),
                        ">= 0.9", [=] { return Inline(socket, mebibytes, clients); }});
      }
    }
  }
  return rows;
}

}  // namespace rope::bench
