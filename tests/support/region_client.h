// A client that shares memory with a server by the protocol alone, without the client library; and
// tensors in that memory with the right answer to each.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_REGION_CLIENT_H_
#define ROPE_TESTS_SUPPORT_REGION_CLIENT_H_

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/ipc/hello.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "tests/support/shared_memory.h"
#include "tests/support/unix_socket.h"

namespace rope::testing {

// A connection whose memfd is registered.
class RegionClient {
 public:
  explicit RegionClient(const std::string& path, size_t bytes = 1 << 20)
      : RegionClient(path, SharedMemory::Memfd(bytes)) {}
  // `ring`: the memory of a ring that the hello brings too, if not null.
  RegionClient(const std::string& path, SharedMemory memory, const SharedMemory* ring = nullptr)
      : memory_(std::move(memory)) {
    proto::FileDescriptor connection = ConnectUnix(path);
    proto::ClientHello says = {memory_.bytes()};
    std::vector<int> descriptors = {memory_.fd()};
    if (ring != nullptr) {
      says.ring_bytes = ring->bytes();
      descriptors.push_back(ring->fd());
    }
    auto answer = proto::ExchangeHello(connection.get(), says, descriptors);
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (answer.ok()) answer_ = *std::move(answer);
    fcntl(connection.get(), F_SETFL, O_NONBLOCK);
    stub_ = v1::RopeService::NewStub(
        grpc::CreateInsecureChannelFromFd("regions", connection.release()));
  }

  const SharedMemory& memory() const { return memory_; }
  const proto::ServerHello& hello() const { return answer_.hello; }
  uint64_t id() const { return answer_.hello.region_id; }
  // The doorbell of that ring; invalid when the server does not serve it.
  proto::FileDescriptor TakeDoorbell() { return std::move(answer_.doorbell); }
  v1::RopeService::Stub& stub() { return *stub_; }

 private:
  SharedMemory memory_;
  proto::HelloAnswer answer_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
};

// A short text for a call's status: "OK", or the code's number and the message.
inline std::string Text(const grpc::Status& status) {
  return status.ok() ? "OK" : absl::StrCat(status.error_code(), " ", status.error_message());
}

inline grpc::Status Rotate(v1::RopeService::Stub& stub, const v1::RotateRequest& request,
                           v1::RotateResponse* response = nullptr) {
  grpc::ClientContext context;
  v1::RotateResponse ignored;
  return stub.Rotate(&context, request, response != nullptr ? response : &ignored);
}

// [tokens, heads, 8] in fp32, half pairing, theta 10000, at positions from `start`.
struct Sample {
  static constexpr int64_t kHeadDim = 8;
  int64_t tokens = 3;
  int64_t heads = 2;
  int64_t start = 5;

  int64_t elements() const { return tokens * heads * kHeadDim; }
  uint64_t bytes() const { return static_cast<uint64_t>(elements()) * sizeof(float); }
  static float Value(int64_t i) { return static_cast<float>(i % 97) / 16 - 3; }

  std::vector<float> Input() const {
    std::vector<float> values;
    for (int64_t i = 0; i < elements(); ++i) values.push_back(Value(i));
    return values;
  }
  void Fill(float* out) const {
    const std::vector<float> input = Input();
    std::memcpy(out, input.data(), bytes());
  }

  // The right answer: computed in double and rounded once.
  std::vector<float> Rotated() const {
    std::vector<float> result = Input();
    constexpr int64_t kHalf = kHeadDim / 2;
    for (int64_t row = 0; row < tokens * heads; ++row) {
      float* const x = result.data() + row * kHeadDim;
      const int64_t position = start + row / heads;
      for (int64_t i = 0; i < kHalf; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / kHalf);
        const double a = x[i];
        const double b = x[i + kHalf];
        x[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        x[i + kHalf] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
      }
    }
    return result;
  }
  // The largest difference between `values` and Rotated().
  double Error(const float* values) const {
    const std::vector<float> want = Rotated();
    double error = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double difference = std::fabs(static_cast<double>(values[i]) - want[i]);
      if (!(difference <= error)) error = difference;
    }
    return error;
  }

  // The request with the tensor at `offset` of the region.
  v1::RotateRequest Request(uint64_t region, uint64_t offset) const {
    v1::RotateRequest request;
    request.mutable_rope()->mutable_config()->set_head_dim(kHeadDim);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_positions()->set_start(start);
    v1::Tensor& tensor = *request.add_tensors();
    tensor.set_role(v1::ROLE_Q);
    tensor.set_layout("SHD");
    v1::Array& array = *tensor.mutable_array();
    array.set_dtype(v1::DTYPE_FP32);
    for (const int64_t length : {tokens, heads, kHeadDim}) array.add_shape(length);
    array.mutable_region()->set_region_id(region);
    array.mutable_region()->set_offset(offset);
    return request;
  }
  // The same request with the tensor in the message.
  v1::RotateRequest Inline() const {
    v1::RotateRequest request = Request(0, 0);
    v1::Array& array = *request.mutable_tensors(0)->mutable_array();
    array.clear_region();
    array.set_raw(Input().data(), bytes());
    return request;
  }
  v1::RotateRequest InPlace(uint64_t region, uint64_t offset) const {
    v1::RotateRequest request = Request(region, offset);
    request.mutable_output()->set_in_place(true);
    return request;
  }
};

inline void PlaceOutput(uint64_t region, uint64_t offset, v1::RotateRequest& request) {
  v1::RegionSpan& span = *request.mutable_output()->add_regions();
  span.set_region_id(region);
  span.set_offset(offset);
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_REGION_CLIENT_H_
