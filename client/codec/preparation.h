// Preparation: what stays the same in requests that repeat, apart from the server's id for it.
//
//   a request = its preparation + its values (RotateRequest::prepared lists them)
//
// Threading:  Immutable; usable from any thread.
// Ownership:  A Preparation owns copies, norm weights included. RotateValues owns copies, but
//             borrows the memory of the tensors.
#ifndef ROPE_CLIENT_CODEC_PREPARATION_H_
#define ROPE_CLIENT_CODEC_PREPARATION_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/codec/rotate_messages.h"
#include "rope/prepared.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

// The values of one request.
struct RotateValues {
  struct Memory {
    const void* data = nullptr;
    void* output = nullptr;
  };

  explicit RotateValues(const RotateRequest& request);

  std::string request_id;
  std::map<std::string, std::string> labels;
  Positions positions;
  std::optional<Positions> from;
  std::vector<Memory> tensors;
  std::optional<int64_t> length;  // of the open axis
};

class Preparation {
 public:
  // A tensor of every call.
  struct Tensor {
    TensorView view = {};  // without data and output
    int64_t bytes = 0;     // of its elements
    WantedTensor wanted = {};
  };

  // INVALID_ARGUMENT: as TensorBytes; a norm weight without data, or whose size is not defined.
  static Result<std::shared_ptr<const Preparation>> Create(const RotateRequest& request,
                                                           std::string open_axis = {});

  // Whether `request` is this one with other values, to the bit; -0 and 0 of a RopeConfig count as
  // equal. False: it has `prepared` or `rows`, or an axis is open.
  bool Matches(const RotateRequest& request) const;

  // An encoded PrepareRequest. INVALID_ARGUMENT: as SetConstants.
  Result<grpc::ByteBuffer> Message() const;

  // The whole request. REQUIRES: as many tensors as here; a length only of an open axis.
  RotateRequest With(const RotateValues& values) const;

  bool has_open_axis() const { return !open_axis_.empty(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Of calls whose open axis has `length`. INVALID_ARGUMENT: as TensorBytes.
  Result<std::vector<Tensor>> TensorsOf(int64_t length) const;

 private:
  Preparation() = default;
  // Copies and checks; `request` without its tensors is in constants_.
  Status AddTensor(const TensorView& view);
  TensorView WithLength(TensorView view, int64_t length) const;

  RotateRequest constants_;  // without values and tensors
  std::vector<Tensor> tensors_;
  std::vector<std::string> weights_;  // of norms
  std::string open_axis_;
};

// What a PreparedRotation refers to: a preparation and the server's answer to it.
struct PreparedState {
  std::shared_ptr<const Preparation> preparation;
  std::string id;
  std::vector<std::string> warnings = {};

  static const std::shared_ptr<const PreparedState>& Of(const PreparedRotation& rotation) {
    return rotation.state_;
  }
  static std::optional<int64_t> LengthOf(const PreparedRotation& rotation) {
    return rotation.length_;
  }
  static PreparedRotation RotationOf(std::shared_ptr<const PreparedState> state) {
    return PreparedRotation(std::move(state));
  }
};

// INVALID_ARGUMENT: a request with `prepared` that has another field than those of values, another
// number of tensors, or a length that its preparation does not take.
Status CheckPreparedCall(const RotateRequest& request);
// Of the open axis; nullopt: the request gives none.
std::optional<int64_t> LengthOf(const RotateRequest& request);

// The preparation of Client::Prepare. INVALID_ARGUMENT: as there, as far as the client checks it.
Result<std::shared_ptr<const Preparation>> PreparationOf(const RotateRequest& request,
                                                         const std::string& open_axis);

// Reads the answer to Preparation::Message. INTERNAL: unreadable, or without an id.
Result<std::shared_ptr<const PreparedState>> ReadPrepared(
    std::shared_ptr<const Preparation> preparation, const Result<grpc::ByteBuffer>& answer);

// Whether a call by an id failed because the server does not have it. Nothing ran then.
inline bool IsForgotten(const Status& status) {
  return status.detail().reason == Reason::kPreparedNotFound;
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_PREPARATION_H_
