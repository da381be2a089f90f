// Sends a Rotate message through a LocalEngine, as through a server: from received bytes to the
// bytes of the answer.
#ifndef ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_
#define ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/grpc/rope_codec.h"
#include "server/limits.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/local_engine.h"

namespace rope::testing {

struct WireAnswer {
  absl::Status status;
  std::string bytes;    // of the answer, or of the error as a stream carries it
  int overwritten = 0;  // tensors whose result overwrote their received bytes

  v1::RotateResponse Parsed() const {
    v1::RotateResponse response;
    EXPECT_TRUE(response.ParseFromString(bytes));
    return response;
  }
};

// Each fragment in its own allocation.
inline grpc::ByteBuffer BufferOf(absl::Span<const std::string_view> fragments) {
  std::vector<grpc::Slice> slices;
  for (const std::string_view fragment : fragments) {
    slices.emplace_back(fragment.data(), fragment.size());
  }
  return {slices.data(), slices.size()};
}

// `decoded`: the message that came with `arrival`.
inline WireAnswer AnswerDecoded(LocalEngine& engine, server::Arrival arrival,
                                absl::StatusOr<server::Decoded> decoded) {
  WireAnswer answer;
  if (!decoded.ok()) {
    return {decoded.status(), server::ErrorReply(arrival.id, decoded.status()).SerializeAsString()};
  }
  auto request = std::make_unique<server::Request>(std::move(arrival), *std::move(decoded));
  answer.status = engine.Run(request);
  for (const server::TensorPlan& tensor : request->plan.tensors) {
    answer.overwritten += answer.status.ok() && !tensor.overwritten.empty() ? 1 : 0;
  }
  answer.bytes = answer.status.ok()
                     ? BytesOf(server::EncodeReply(*request))
                     : server::ErrorReply(request->arrival.id, answer.status).SerializeAsString();
  return answer;
}

inline WireAnswer Answer(LocalEngine& engine, absl::Span<const std::string_view> fragments,
                         uint64_t session = 0) {
  grpc::ByteBuffer message = BufferOf(fragments);
  server::Arrival arrival;
  arrival.session = session;
  auto decoded = server::DecodeRequest(message, server::limits::kMessageBytesMax, arrival);
  return AnswerDecoded(engine, std::move(arrival), std::move(decoded));
}

// In one piece, as a ring brings it.
inline WireAnswer AnswerOfRing(LocalEngine& engine, const std::string& message, uint64_t session) {
  server::Arrival arrival;
  arrival.session = session;
  auto decoded = server::DecodeSmallRequest(message, arrival);
  return AnswerDecoded(engine, std::move(arrival), std::move(decoded));
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_
