// Rows about requests that repeat:
//   prepared/encode               a decode token of q and k in the arena, encoded by id or whole
//   prepared/decode_token_ring    the call through the ring, prepared against whole
//   embedded/prepared_token       the prepared call in process, against the ring
//   embedded/c_prepared_token     the same call by the C API, against C++
//   embedded/device_enqueue       the same of tensors on a GPU, with positions there, up to the
//                                 launch: time of the host, over a driver without a device
#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/codec/codec.h"
#include "client/memory/arena_memory.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/check.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "rope/rope.h"
#include "tests/bench/library_client.h"
#include "tests/bench/measure.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

using client::RotateRequest;

constexpr int kEncodings = 2000;
constexpr int kCalls = 100;

RotateRequest DecodeToken(void* q, void* k) {
  RotateRequest request{.rope = {.model = "llama-3.1-8b"}, .positions = {.start = 100000}};
  request.tensors = {{.layout = "SHD",
                      .dtype = client::DType::kBFloat16,
                      .shape = {1, 32, 128},
                      .data = q,
                      .output = q},
                     {.role = client::Role::kK,
                      .layout = "SHD",
                      .dtype = client::DType::kBFloat16,
                      .shape = {1, 8, 128},
                      .data = k,
                      .output = k}};
  return request;
}

Measurement Encode() {
  const auto memory = std::make_shared<client::ArenaMemory>(
      client::SharedMemory::CreateMemfd(1 << 20, client::SharedMemory::Use::kArena).value());
  const client::Region region = {.memory = memory, .ids = std::make_shared<client::RegionIds>(1)};
  const RotateRequest request =
      DecodeToken(memory->Allocate(32 * 256).value(), memory->Allocate(8 * 256).value());
  client::BorrowedSlices borrowed;
  const RotateRequest call =
      CallOf(client::PreparedRotation::CreateLocal(request).value(), request);
  const auto encode = [&](const RotateRequest& either) {
    for (int i = 0; i < kEncodings; ++i) {
      ROPE_CHECK(client::EncodeRotate(either, region, client::Route::kRing, borrowed).ok());
    }
  };
  const std::vector<double> seconds =
      MinSeconds({[&] { encode(call); }, [&] { encode(request); }}, 101);
  return {.value = seconds[0] / kEncodings * 1e9,
          .unit = "ns",
          .yardstick = absl::StrFormat("whole %.0f ns", seconds[1] / kEncodings * 1e9),
          .ratio = seconds[0] / seconds[1]};
}

// A client with q and k in its arena.
class Caller {
 public:
  Caller(const std::string& target, bool prepared)
      : Caller(ConnectClient(target,
                             {.arena_bytes = 1 << 20, .transports = {client::Transport::kRing}}),
               prepared) {}
  Caller(client::Client client, bool prepared)
      : client_(std::move(client)),
        q_(client_.arena().Allocate(32 * 256).value()),
        k_(client_.arena().Allocate(8 * 256).value()),
        request_(DecodeToken(q_.data(), k_.data())) {
    if (prepared) request_ = Prepared(client_, request_);
  }

  void Call() {
    for (int i = 0; i < kCalls; ++i) {
      ++*request_.positions.start;
      ROPE_CHECK(client_.Rotate(request_).ok());
    }
  }

 private:
  const client::Client client_;
  const client::Slot q_;
  const client::Slot k_;
  RotateRequest request_;
};

Measurement DecodeTokenRing() {
  const std::string socket = testing::TemporaryFolder() + "/rope.sock";
  const testing::TestServer server({"--enable_shared_memory", "--listen=unix:" + socket});
  Caller prepared("unix:" + socket, true);
  Caller whole("unix:" + socket, false);
  const std::vector<double> seconds =
      MedianSeconds({[&] { prepared.Call(); }, [&] { whole.Call(); }}, 301);
  return {.value = seconds[0] / kCalls * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("whole %.1f us", seconds[1] / kCalls * 1e6),
          .ratio = seconds[0] / seconds[1]};
}

Measurement EmbeddedToken() {
  const std::string socket = testing::TemporaryFolder() + "/rope.sock";
  const testing::TestServer server({"--enable_shared_memory", "--listen=unix:" + socket});
  Caller in_process(embedded::Connect({}, {.arena_bytes = 1 << 20}).value(), true);
  Caller ring("unix:" + socket, true);
  const std::vector<double> seconds =
      MedianSeconds({[&] { in_process.Call(); }, [&] { ring.Call(); }}, 301);
  return {.value = seconds[0] / kCalls * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("ring %.1f us", seconds[1] / kCalls * 1e6),
          .ratio = seconds[0] / seconds[1]};
}

// The caller in C: the same token, with q and k in memory of its own.
class CCaller {
 public:
  CCaller() {
    ROPE_CHECK(rope_connect_embedded(nullptr, &client_) == nullptr);
    ROPE_CHECK(rope_prepare(client_, R"({"rotate": {"rope": {"model": "llama-3.1-8b"}, "tensors": [
      {"role": "ROLE_Q", "layout": "SHD",
       "array": {"dtype": "DTYPE_BF16", "shape": [1, 32, 128]}},
      {"role": "ROLE_K", "layout": "SHD",
       "array": {"dtype": "DTYPE_BF16", "shape": [1, 8, 128]}}]}})",
                            nullptr, &prepared_) == nullptr);
  }
  ~CCaller() {
    rope_prepared_free(prepared_);
    rope_close(client_);
  }
  CCaller(const CCaller&) = delete;
  CCaller& operator=(const CCaller&) = delete;

  void Call() {
    for (int i = 0; i < kCalls; ++i) {
      ++position_;
      ROPE_CHECK(rope_rotate(prepared_, arguments_, 3, nullptr) == nullptr);
    }
  }

 private:
  rope_client* client_ = nullptr;
  rope_prepared* prepared_ = nullptr;
  std::vector<uint16_t> q_memory_ = std::vector<uint16_t>(32 * 128);
  std::vector<uint16_t> k_memory_ = std::vector<uint16_t>(8 * 128);
  int64_t position_ = 100000;
  int64_t shapes_[2][3] = {{1, 32, 128}, {1, 8, 128}};
  const DLTensor q_ = {q_memory_.data(), {kDLCPU, 0}, 3, {kDLBfloat, 16, 1},
                       shapes_[0],       nullptr,     0};
  const DLTensor k_ = {k_memory_.data(), {kDLCPU, 0}, 3, {kDLBfloat, 16, 1},
                       shapes_[1],       nullptr,     0};
  const DLTensor start_ = {&position_, {kDLCPU, 0}, 0, {kDLInt, 64, 1}, nullptr, nullptr, 0};
  const rope_argument arguments_[3] = {{"q", &q_}, {"k", &k_}, {"positions", &start_}};
};

Measurement EmbeddedCToken() {
  CCaller c;
  Caller cpp(embedded::Connect({}, {.arena_bytes = 1 << 20}).value(), true);
  const std::vector<double> seconds = MedianSeconds({[&] { c.Call(); }, [&] { cpp.Call(); }}, 301);
  return {.value = seconds[0] / kCalls * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("C++ %.1f us", seconds[1] / kCalls * 1e6),
          .ratio = seconds[0] / seconds[1]};
}

// Work that waits in a stream goes with it: nothing computes.
Measurement DeviceEnqueue() {
  using kernels::Cuda;
  if (dlopen(ROPE_BINARY_DIR "/tests/fake_cuda/libcuda.so.1", RTLD_NOW) == nullptr) {
    return {.unit = "us", .yardstick = "a build without CUDA's kernels", .measured = false};
  }
  void* context = nullptr;
  void* memory = nullptr;
  const auto ok = [](kernels::CudaError error) {
    ROPE_CHECK(error == kernels::CudaError::kSuccess);
  };
  ok(Cuda().cuDevicePrimaryCtxRetain(&context, 0));
  ok(Cuda().cuCtxSetCurrent(context));
  ok(Cuda().cuMemAlloc(&memory, 3 * 8192));
  char* const q = static_cast<char*>(memory);
  const client::Client client = embedded::Connect({.threads = 1}).value();
  const RotateRequest whole = DecodeToken(q, q + 8192);
  RotateRequest call = CallOf(client.Prepare(whole).value(), whole);
  for (client::TensorView& tensor : call.tensors) tensor.memory = client::Memory::kCuda;
  call.positions = {.position_ids_shape = {1}, .device_ids = q + 2 * 8192};
  const std::vector<double> seconds =
      MedianSeconds({[&] {
                      CUstream_st* stream = nullptr;
                      ok(Cuda().cuStreamCreate(&stream, kernels::kCudaStreamNonBlocking));
                      const DeviceQueue queue{.stream = stream, .positions_max = 4096};
                      for (int i = 0; i < kCalls; ++i) ROPE_CHECK(client.Enqueue(call, queue).ok());
                      ok(Cuda().cuStreamDestroy(stream));
                    }},
                    301);
  ok(Cuda().cuMemFree(memory));
  return {.value = seconds[0] / kCalls * 1e6, .unit = "us", .yardstick = "the driver is a fake"};
}

}  // namespace

std::vector<Row> PreparedRows() {
  return {
      {"prepared/encode", "<= 0.5", Encode},
      {"prepared/decode_token_ring", "<= 1", DecodeTokenRing},
      {"embedded/prepared_token", "<= 0.6", EmbeddedToken},
      {"embedded/c_prepared_token", "<= 1.25", EmbeddedCToken},
      {"embedded/device_enqueue", "<= 4", DeviceEnqueue},
  };
}

}  // namespace rope::bench
