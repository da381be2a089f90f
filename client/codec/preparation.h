// Preparation: what stays the same in requests that repeat, apart from the server's id for it.
//
//   a request = its preparation + its values (RotateRequest::prepared lists them)
//
// Threading:  Usable from any thread.
// Ownership:  A Preparation owns its message, norm weights included.
#ifndef ROPE_CLIENT_CODEC_PREPARATION_H_
#define ROPE_CLIENT_CODEC_PREPARATION_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/codec/messages.h"
#include "rope/prepared.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/prepare.pb.h"

namespace rope::client {

class Preparation {
 public:
  // A tensor of every call.
  struct Tensor {
    // Its type, shape and layout; of its result layout and strides; of pages the pool's size.
    TensorView view = {};
    int64_t bytes = 0;  // of its elements
    WantedTensor wanted = {};
  };

  // Of Client::Prepare. INVALID_ARGUMENT: as SetConstants and TensorBytes; a norm weight without
  // data, or whose size is not defined; a request with `prepared`.
  static Result<std::shared_ptr<const Preparation>> Create(const RotateRequest& request,
                                                           const std::string& open_axis = {});
  // INVALID_ARGUMENT: as TensorBytes; a dtype that no tensor has; output.in_place. The server
  // checks the rest.
  static Result<std::shared_ptr<const Preparation>> Create(v1::PrepareRequest message);

  const v1::PrepareRequest& message() const { return message_; }

  bool has_open_axis() const { return !message_.open_axis().empty(); }
  const std::vector<Tensor>& tensors() const { return *tensors_; }
  // The tensors of one call. They differ from tensors() if the call has a length of the open axis,
  // or strides. INVALID_ARGUMENT: as TensorBytes. REQUIRES: the call has `prepared`.
  using Tensors = std::shared_ptr<const std::vector<Tensor>>;
  Result<Tensors> TensorsOf(const RotateRequest& call) const;

 private:
  Preparation() = default;
  Result<Tensor> TensorOf(TensorView view, size_t index) const;

  v1::PrepareRequest message_;
  std::optional<DType> output_dtype_;
  std::shared_ptr<std::vector<Tensor>> tensors_ = std::make_shared<std::vector<Tensor>>();
};

// What a PreparedRotation refers to: a preparation and the server's answer to it.
struct PreparedState {
  PreparedState(std::shared_ptr<const Preparation> request, std::string its_id,
                std::vector<std::string> its_warnings = {})
      : preparation(std::move(request)), id(std::move(its_id)), warnings(std::move(its_warnings)) {}

  const std::shared_ptr<const Preparation> preparation;
  const std::string id;
  const std::vector<std::string> warnings;
  // A server that had forgotten it is asked to prepare it again: one question at a time.
  mutable std::atomic<bool> is_asking = false;

  static const std::shared_ptr<const PreparedState>& Of(const PreparedRotation& rotation) {
    return rotation.state_;
  }
  // Of the open axis; nullopt: the rotation gives none.
  static std::optional<int64_t> LengthOf(const PreparedRotation& rotation) {
    return rotation.length_;
  }
  static PreparedRotation RotationOf(std::shared_ptr<const PreparedState> state) {
    return PreparedRotation(std::move(state));
  }
};

// Of a prepared call: they replace those that were prepared.
inline bool HasStrides(const TensorView& view) {
  return !view.strides.empty() || !view.output_strides.empty();
}

// INVALID_ARGUMENT: a request with `prepared` that has another field than those of values, another
// number of tensors, other rows than its preparation, or a length that this does not take.
Status CheckPreparedCall(const RotateRequest& request);

// Reads the answer to Preparation::message. INTERNAL: unreadable, or without an id.
Result<std::shared_ptr<const PreparedState>> ReadPrepared(
    std::shared_ptr<const Preparation> preparation, const Result<grpc::ByteBuffer>& answer);

// Whether a call by an id failed because the server does not have it. Nothing ran then.
inline bool IsForgotten(const Status& status) {
  return status.detail().reason == Reason::kPreparedNotFound;
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_PREPARATION_H_
