// A Rotate message on its way through a LocalEngine as through a server: from the bytes that were
// received to the bytes of the answer.
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
#include "server/limits.h"
#include "server/rope_codec.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/local_engine.h"

namespace rope::testing {

struct WireAnswer {
  absl::Status status;
  std::string bytes;      // of the answer, or of the error as streams carry it
  bool prepared = false;  // recognised by its bytes

  v1::RotateResponse Parsed() const {
    v1::RotateResponse response;
    EXPECT_TRUE(response.ParseFromString(bytes));
    return response;
  }
};

// Each fragment in memory of its own.
inline grpc::ByteBuffer BufferOf(absl::Span<const std::string_view> fragments) {
  std::vector<grpc::Slice> slices;
  for (const std::string_view fragment : fragments) {
    slices.emplace_back(fragment.data(), fragment.size());
  }
  return {slices.data(), slices.size()};
}

// `prepared`: where the message is looked up and kept.
inline WireAnswer Answer(LocalEngine& engine, server::PreparedRequests& prepared,
                         grpc::ByteBuffer message, uint64_t session = 0) {
  auto request = std::make_unique<server::Request>();
  request->session = session;
  WireAnswer answer;
  answer.status =
      server::DecodeRequest(message, server::limits::kMessageBytesMax, prepared, *request);
  answer.prepared = request->prepared != nullptr;
  if (answer.status.ok()) answer.status = engine.Run(request);
  answer.bytes = BytesOf(answer.status.ok() ? server::EncodeReply(*request)
                                            : server::EncodeError(request->id, answer.status));
  return answer;
}

// By an engine that knows what came before.
inline WireAnswer Answer(LocalEngine& engine, absl::Span<const std::string_view> fragments) {
  return Answer(engine, engine.prepared(), BufferOf(fragments));
}

// As if no message had come before.
inline WireAnswer AnswerAsNew(LocalEngine& engine, absl::Span<const std::string_view> fragments) {
  server::PreparedRequests nothing(engine.registry());
  return Answer(engine, nothing, BufferOf(fragments));
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_WIRE_ANSWER_H_
