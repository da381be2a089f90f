// Rows about a client of decode tokens, next to a client that keeps the server busy with large
// tensors:
//   bystander/decode_p99_inline  64 MiB in messages over a Unix socket
//   bystander/decode_p99_ring    64 MiB in shared memory, through a ring
//   bystander/decode_p99_echo    as inline, with the same-options echo in place of the server: what
//                                the socket, gRPC and the processors cost without any rotation
// Yardstick: the decode client's p99 when it is alone, plus the time of two slices.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#include "server/engine/job_tiler.h"
#include "tests/bench/measure.h"
#include "tests/bench/raw_client.h"
#include "tests/bench/servers.h"
#include "tests/bench/shared_tensor.h"
#include "tests/bench/workload.h"

namespace rope::bench {
namespace {

constexpr int64_t kLargeTokens = (int64_t{64} << 20) / kTokenBytes;
constexpr int64_t kSliceTokens = server::limits::kSliceBytesMax / kTokenBytes;
constexpr int kRounds = 8;
constexpr int kCalls = 250;

double Percentile99(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() * 99 / 100];
}

// Calls `large` in a loop on a background thread until it is destroyed.
class Busy {
 public:
  explicit Busy(const std::function<void()>& large)
      : thread_([this, &large] {
          large();
          began_.store(true);
          while (!stopped_.load()) large();
        }) {
    while (!began_.load()) std::this_thread::yield();
  }
  ~Busy() {
    stopped_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> began_ = false;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

void CallOften(RawClient& client, const grpc::ByteBuffer& request, std::vector<double>& seconds) {
  for (int i = 0; i < kCalls; ++i) seconds.push_back(client.Call(request));
}

// The time for the rotation of two slices on this machine, on all threads.
double TwoSlices() {
  const Workload workload(kSliceTokens, kernels::DType::kBFloat16, kernels::Pairing::kHalf);
  const auto backend = kernels::CreateBackend("cpu", {.threads = Threads()}).value();
  const kernels::RotateJob job = workload.job(/*in_place=*/false);
  return 2 * MedianSeconds({[&] { ROPE_CHECK(backend->Rotate({&job, 1}).ok()); }}, 51)[0];
}

Measurement DecodeBystander(const std::string& target, const std::function<void()>& large) {
  RawClient decode(target);
  const grpc::ByteBuffer request = MakeRequest(Head(1000, 10000), 1);
  std::vector<double> alone;
  std::vector<double> beside;
  CallOften(decode, request, alone);  // warm-up
  alone.clear();
  for (int round = 0; round < kRounds; ++round) {
    CallOften(decode, request, alone);
    const Busy busy(large);
    CallOften(decode, request, beside);
  }
  const double slices = TwoSlices();
  const double yardstick = Percentile99(alone) + slices;
  return {
      .value = Percentile99(beside) * 1e3,
      .unit = "ms",
      .yardstick = absl::StrFormat("alone %.2f ms, two slices %.2f ms; median beside %.2f ms",
                                   Percentile99(alone) * 1e3, slices * 1e3, Median(beside) * 1e3),
      .ratio = Percentile99(beside) / yardstick};
}

Measurement InlineBystander(Kind kind) {
  const std::string target = Target(kind, Socket::kUnix);
  RawClient client(target);
  const grpc::ByteBuffer request = MakeRequest(Head(0, 10000), kLargeTokens);
  return DecodeBystander(target, [&] { client.Call(request); });
}

Measurement RingBystander() {
  const SharedTensor shared(client::Transport::kRing, kLargeTokens);
  return DecodeBystander(Target(Kind::kSharedMemory, Socket::kUnix), [&] { shared.Call(); });
}

}  // namespace

std::vector<Row> BystanderRows() {
  return {
      {"bystander/decode_p99_inline", "<= 1.5", [] { return InlineBystander(Kind::kRope); }},
      {"bystander/decode_p99_echo", "", [] { return InlineBystander(Kind::kEcho); }},
      {"bystander/decode_p99_ring", "<= 1.5", RingBystander},
  };
}

}  // namespace rope::bench
