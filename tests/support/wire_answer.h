// Sends a Rotate message through a LocalEngine, as through a server: from received bytes to the
// bytes of the answer.
#ifndef ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_
#define ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <string>
#include <string_view>
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
  std::string bytes;      // of the answer, or of the error as a stream carries it
  bool prepared = false;  // the server recognised the message by its bytes
  int overwritten = 0;    // tensors whose result overwrote their received bytes

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

// `prepared`: the store of earlier requests. `may_overwrite`: results may overwrite the received
// bytes.
inline WireAnswer Answer(LocalEngine& engine, server::PreparedRequests& prepared,
                         grpc::ByteBuffer message, uint64_t session = 0,
                         bool may_overwrite = false) {
  auto request = std::make_unique<server::Request>();
  request->session = session;
  request->may_overwrite = may_overwrite;
  WireAnswer answer;
  answer.status =
      server::DecodeRequest(message, server::limits::kMessageBytesMax, prepared, *request);
  answer.prepared = request->prepared != nullptr;
  if (answer.status.ok()) answer.status = engine.Run(request);
  for (size_t i = 0; answer.status.ok() && i < request->outputs.size(); ++i) {
    answer.overwritten += request->Overwrites(i) ? 1 : 0;
  }
  answer.bytes = answer.status.ok() ? BytesOf(server::EncodeReply(*request))
                                    : server::EncodeSmallError(request->id, answer.status);
  return answer;
}

// Answers with an engine that remembers earlier requests.
inline WireAnswer Answer(LocalEngine& engine, absl::Span<const std::string_view> fragments,
                         uint64_t session = 0) {
  return Answer(engine, engine.prepared(), BufferOf(fragments), session);
}

// Answers as if no message had come before.
inline WireAnswer AnswerAsNew(LocalEngine& engine, absl::Span<const std::string_view> fragments,
                              uint64_t session = 0) {
  server::PreparedRequests nothing(engine.registry());
  return Answer(engine, nothing, BufferOf(fragments), session);
}

// The same, with results over the received bytes where that is possible.
inline WireAnswer AnswerOverReceived(LocalEngine& engine,
                                     absl::Span<const std::string_view> fragments) {
  server::PreparedRequests nothing(engine.registry());
  return Answer(engine, nothing, BufferOf(fragments), 0, /*may_overwrite=*/true);
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_
