// A RotateRequest as a server receives it: serialized, cut into buffers, split and parsed.
#ifndef ROPE_TESTS_SUPPORT_RECEIVED_REQUEST_H_
#define ROPE_TESTS_SUPPORT_RECEIVED_REQUEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/status_macros.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/request.h"
#include "server/request/validate.h"

namespace rope::testing {

// `bytes` in pieces of `size`, each in its own allocation.
inline std::vector<std::string> CutIntoPieces(std::string_view bytes, size_t size) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < bytes.size(); i += size) pieces.emplace_back(bytes.substr(i, size));
  return pieces;
}

inline std::vector<std::string_view> ViewsOf(const std::vector<std::string>& pieces) {
  return {pieces.begin(), pieces.end()};
}

// A request of which nothing matters but where it comes from.
inline std::unique_ptr<server::Request> EmptyRequest(const std::string& id = "",
                                                     uint64_t session = 0) {
  server::Arrival arrival;
  arrival.id = id;
  arrival.session = session;
  return std::make_unique<server::Request>(
      std::move(arrival),
      server::Decoded(std::make_unique<server::ReceivedBytes>(), proto::SplitMessage()));
}

struct ReceivedRequest {
  explicit ReceivedRequest(const v1::RotateRequest& sent, size_t piece = size_t{1} << 30)
      : pieces(std::make_shared<const std::vector<std::string>>(
            CutIntoPieces(sent.SerializeAsString(), piece))) {
    auto result =
        proto::Split(proto::Schema::Of(v1::RotateRequest::descriptor()), ViewsOf(*pieces));
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok()) return;
    split = *std::move(result);
    EXPECT_TRUE(message.ParseFromString(split.skeleton));
  }

  // Bytes that are never overwritten.
  struct Pieces final : server::ReceivedBytes {
    explicit Pieces(std::shared_ptr<const std::vector<std::string>> held)
        : pieces(std::move(held)) {}
    std::shared_ptr<const std::vector<std::string>> pieces;
  };

  // Not validated yet, and without a `done` callback.
  std::unique_ptr<server::Request> MakeRequest() const {
    server::Decoded decoded(std::make_unique<Pieces>(pieces), split);
    decoded.message() = message;
    return std::make_unique<server::Request>(server::Arrival(), std::move(decoded));
  }

  // All stages of validation, without admission and without regions.
  absl::StatusOr<server::Plan> Validate(server::ModelRegistry& registry) const {
    server::Plan plan;
    server::Ropes ropes;
    server::ArraySource source(split);
    ROPE_RETURN_IF_ERROR(server::PrepareFixed(message, source, registry, ropes, plan));
    ROPE_RETURN_IF_ERROR(server::PlanElements(message, message, source, plan));
    ROPE_RETURN_IF_ERROR(server::PlanPositions(message, message, ropes, source, plan));
    return plan;
  }

  std::shared_ptr<const std::vector<std::string>> pieces;  // the memory that `split` refers to
  proto::SplitMessage split;
  v1::RotateRequest message;
};

// The bytes of `values` in memory order.
template <typename T>
std::string RawBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline void SetShape(v1::Array& array, const std::vector<int64_t>& shape) {
  array.mutable_shape()->Assign(shape.begin(), shape.end());
}

// Adds a packed tensor of fp32 zeros.
inline v1::Tensor& AddFloatTensor(v1::RotateRequest& request, v1::Role role,
                                  const std::string& layout, const std::vector<int64_t>& shape) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(role);
  tensor.set_layout(layout);
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), shape);
  int64_t count = 1;
  for (const int64_t length : shape) count *= length;
  if (count > 0) tensor.mutable_array()->set_raw(std::string(static_cast<size_t>(count) * 4, 0));
  return tensor;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_RECEIVED_REQUEST_H_
