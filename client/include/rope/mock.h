// A mock of a connection, for tests of programs that use the client library. It needs GoogleTest's
// gmock; nothing else in the library does.
//
//   auto connection = std::make_shared<testing::NiceMock<rope::client::MockConnection>>();
//   EXPECT_CALL(*connection, Rotate).WillOnce(testing::Return(rope::Status(
//       rope::StatusCode::kUnavailable, "draining")));
//   rope::client::Client client(connection);
//
// RotateFuture calls RotateAsync; give it an action that runs the callback (AnswerWith). A tensor
// of a reply needs memory that outlives it: RotatedTensor::data is only a pointer to it.
#ifndef ROPE_MOCK_H_
#define ROPE_MOCK_H_

#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "rope/connection.h"

namespace rope::client {

class MockConnection : public Connection {
 public:
  // By default arena() returns an arena of kArenaBytes that no server shares, and transport()
  // returns kInline. A test may set other actions.
  static constexpr int64_t kArenaBytes = int64_t{1} << 20;
  MockConnection() {
    ON_CALL(*this, arena).WillByDefault([memory = Arena::CreateLocal(kArenaBytes).value()] {
      return memory;
    });
  }

  MOCK_METHOD(Arena, arena, (), (override));
  MOCK_METHOD(ChosenTransport, transport, (), (override));
  MOCK_METHOD(Result<ImportedMemory>, ImportMemory, (const MemoryFile&, const CallOptions&),
              (override));
  MOCK_METHOD(Result<RotateReply>, Rotate, (const RotateRequest&, const CallOptions&), (override));
  MOCK_METHOD(Result<PreparedRotation>, Prepare,
              (const RotateRequest&, const std::string&, const CallOptions&), (override));
  MOCK_METHOD(Result<PreparedRotation>, PrepareJson, (const std::string&, const CallOptions&),
              (override));
  MOCK_METHOD(Call, RotateAsync, (const RotateRequest&, RotateCallback, const CallOptions&),
              (override));
  MOCK_METHOD(Result<RotateReply>, Enqueue, (const RotateRequest&, const DeviceQueue&), (override));
  MOCK_METHOD(Status, Fence, (const CallOptions&), (override));
  MOCK_METHOD(Result<std::string>, CallJson,
              (const std::string&, const std::string&, const CallOptions&), (override));
  MOCK_METHOD(Result<DescribeReply>, Describe, (const DescribeRequest&, const CallOptions&),
              (override));
  MOCK_METHOD(Result<TablesReply>, GetTables, (const TablesRequest&, const CallOptions&),
              (override));
  MOCK_METHOD(Result<ServingStatus>, Health, (const std::string&, const CallOptions&), (override));
};

// An action for RotateAsync that runs the callback with `make_reply(request)` before it returns.
template <typename MakeReply>
auto AnswerWith(MakeReply make_reply) {
  return [make_reply = std::move(make_reply)](const RotateRequest& request,
                                              const RotateCallback& callback, const CallOptions&) {
    callback(make_reply(request));
    return Call();
  };
}

}  // namespace rope::client

#endif  // ROPE_MOCK_H_
