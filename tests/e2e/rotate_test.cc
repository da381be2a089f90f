// What a client keeps of its replies, and calls whose time is up.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "rope/client.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::RotateReply;
using client::RotateRequest;

constexpr int64_t kHeadDim = 128;

class RotateTest : public ::testing::Test {
 protected:
  static RotateRequest RequestFor(const std::vector<float>& values, int64_t tokens) {
    RotateRequest request;
    request.rope.model = "llama-3.1-8b";
    request.positions.start = 1000;
    const auto heads = static_cast<int64_t>(values.size()) / tokens / kHeadDim;
    request.tensors = {
        {.layout = "SHD", .shape = {tokens, heads, kHeadDim}, .data = values.data()}};
    return request;
  }

  TestServer server_;
  Client client_ = *Client::Connect(server_.address());
};

// Returns the address of the reply's tensor after the reply is destroyed. An array of that size,
// kept in `arrays`, would reuse the memory if the destruction had freed it.
const void* PlaceOf(Result<RotateReply> reply, std::vector<std::vector<float>>& arrays) {
  EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  if (!reply.ok()) return nullptr;
  const void* place = reply->tensors[0].owned.get();
  reply->tensors.clear();
  arrays.emplace_back(512 * 4 * 128);
  return place;
}

TEST_F(RotateTest, RepliesWithoutAnOutputShareTheirMemoryOneAfterAnother) {
  const std::vector<float> values(512 * 4 * kHeadDim);  // 1 MiB
  const RotateRequest request = RequestFor(values, 512);
  std::vector<std::vector<float>> arrays;
  const void* first = PlaceOf(client_.Rotate(request), arrays);
  EXPECT_EQ(PlaceOf(client_.Rotate(request), arrays), first);
  EXPECT_EQ(PlaceOf(client_.RotateFuture(request).get(), arrays), first);

  const auto held = client_.Rotate(request).value();
  EXPECT_EQ(held.tensors[0].data, first);
  EXPECT_NE(PlaceOf(client_.Rotate(request), arrays), first);
}

// The deadline passes during a call. How the call ends is a race; the server must survive in any
// case.
TEST_F(RotateTest, DeadlineThatPassesEndsTheCallAndNotTheServer) {
  const std::vector<float> values(4096 * 32 * 128);
  for (const int milliseconds : {1, 5, 20}) {
    client::CallOptions options;
    options.timeout = std::chrono::milliseconds(milliseconds);
    const auto reply = client_.Rotate(RequestFor(values, 4096), options);
    if (!reply.ok()) {
      EXPECT_EQ(reply.status().code(), StatusCode::kDeadlineExceeded) << reply.status().ToString();
    }
  }
  EXPECT_TRUE(Serves(*server_.NewStub()));
}

}  // namespace
}  // namespace rope::testing
