// Prepared rotations that a real server has forgotten: calls get the replies of whole requests, on
// every path.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rope/client.h"
#include "tests/e2e/wide_request.h"
#include "tests/support/metrics_page.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::PreparedRotation;
using client::Role;
using client::RotateReply;
using client::RotateRequest;
using client::Slot;
using client::Transport;

constexpr int64_t kHeadDim = 128;
constexpr int kStepsMax = 2000;  // until an asynchronous question has been answered

// A decode step of q and k, whose results replace its tensors.
class Step {
 public:
  explicit Step(int64_t position) : q_(4 * kHeadDim), k_(kHeadDim) {
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = static_cast<float>(i % 17) + 1;
    for (size_t i = 0; i < k_.size(); ++i) k_[i] = static_cast<float>(i % 13) - 5;
    request_.request_id = "step-" + std::to_string(position);
    request_.rope.model = "llama-3.1-8b";
    request_.positions.start = position;
    request_.tensors = {{.layout = "SHD", .shape = {1, 4, kHeadDim}, .scale = 0.5},
                        {.role = Role::kK, .layout = "SHD", .shape = {1, 1, kHeadDim}}};
    request_.tensors[0].data = request_.tensors[0].output = q_.data();
    request_.tensors[1].data = request_.tensors[1].output = k_.data();
  }
  Step(const Step&) = delete;

  const RotateRequest& request() const { return request_; }
  // The step as a call of `rotation`.
  RotateRequest CallOf(const PreparedRotation& rotation) const {
    RotateRequest call{
        .prepared = rotation, .request_id = request_.request_id, .positions = request_.positions};
    for (const auto& tensor : request_.tensors) {
      call.tensors.push_back({.data = tensor.data, .output = tensor.output});
    }
    return call;
  }
  // Both were rotated, and are the same to the bit.
  static void ExpectSame(const Step& a, const Result<RotateReply>& reply_a, const Step& b,
                         const Result<RotateReply>& reply_b) {
    ASSERT_TRUE(reply_a.ok()) << reply_a.status().ToString();
    ASSERT_TRUE(reply_b.ok()) << reply_b.status().ToString();
    EXPECT_EQ(a.q_, b.q_);
    EXPECT_EQ(a.k_, b.k_);
    EXPECT_EQ(reply_a->request_id, reply_b->request_id);
    EXPECT_EQ(reply_a->warnings, reply_b->warnings);
  }

 private:
  std::vector<float> q_;
  std::vector<float> k_;
  RotateRequest request_;
};

class PreparedServer {
 public:
  const std::string& tcp() const { return server_.address(); }
  std::string unix() const { return "unix:" + socket_; }
  // Number of Prepare calls that were answered with OK, without those of Forget.
  int Prepared() const {
    const double count = Scrape(MetricsPort(server_)).Value(CallsOf("Prepare"));
    return count < 0 ? 0 : static_cast<int>(count) - others_;
  }
  // Prepares requests of the owner at `address` until the server, which keeps 16 MiB, has forgotten
  // the owner's earlier ones.
  void Forget(const std::string& address) {
    const Client client = Client::Connect(address).value();
    for (int i = 0; i < 12; ++i, ++others_) {
      ASSERT_TRUE(client.Prepare(WideRequest(1e4 + i)).ok());
    }
  }

 private:
  int others_ = 0;
  const std::string socket_ = TemporaryFolder() + "/rope.sock";
  TestServer server_{
      {"--metrics_listen=127.0.0.1:0", "--enable_shared_memory", "--listen=unix:" + socket_}};
};

// One way to send requests.
struct Way {
  std::string name;
  bool over_unix = false;
  std::vector<Transport> transports;
  bool is_async = false;
};

class PreparedTest : public ::testing::TestWithParam<Way> {
 protected:
  std::string Address() const { return GetParam().over_unix ? server_.unix() : server_.tcp(); }
  Client Connected() const {
    return Client::Connect(Address(), {.transports = GetParam().transports}).value();
  }
  static Result<RotateReply> Rotate(const Client& client, const RotateRequest& request) {
    return GetParam().is_async ? client.RotateFuture(request).get() : client.Rotate(request);
  }
  // Rotates a step as a call of `rotation` and whole, and compares.
  static void Compare(const Client& client, const PreparedRotation& rotation, int64_t position) {
    const Step a(position);
    const Step b(position);
    const auto reply = Rotate(client, a.CallOf(rotation));
    Step::ExpectSame(a, reply, b, Rotate(client, b.request()));
  }

  PreparedServer server_;
};

// That the server is asked again shows that the id was used: it is the only one to know that it has
// forgotten it.
TEST_P(PreparedTest, WhatTheServerForgetsIsSentWholeUnseenAndPreparedAgain) {
  const Client client = Connected();
  const PreparedRotation rotation = client.Prepare(Step(0).request()).value();
  Compare(client, rotation, 1);
  server_.Forget(Address());
  int64_t position = 2;
  do {
    Compare(client, rotation, position++);
  } while (position < kStepsMax && server_.Prepared() < 2 && !HasFailure());
  for (int i = 0; i < 5; ++i) Compare(client, rotation, position++);
  EXPECT_GE(server_.Prepared(), 2);
}

INSTANTIATE_TEST_SUITE_P(Ways, PreparedTest,
                         ::testing::Values(Way{"TcpCall", false, {Transport::kInline}},
                                           Way{"TcpAsync", false, {Transport::kInline}, true},
                                           Way{"RingCall", true, {Transport::kRing}},
                                           Way{"RingAsync", true, {Transport::kRing}, true},
                                           Way{"MemfdAsync", true, {Transport::kMemfd}, true}),
                         [](const auto& way) { return way.param.name; });

TEST(PreparedClientTest, AForgottenCallInPlaceRunsOnce) {
  PreparedServer server;
  const Client client = Client::Connect(server.unix(), {.arena_bytes = 1 << 20}).value();
  const Slot slot = client.arena().Allocate(kHeadDim * 4).value();
  auto* values = static_cast<float*>(slot.data());
  const auto rotate = [&](const RotateRequest& request) {
    std::fill_n(values, kHeadDim, 1.0f);
    EXPECT_TRUE(client.Rotate(request).ok());
    return std::vector<float>(values, values + kHeadDim);
  };
  RotateRequest request{.rope = {.model = "llama-3.1-8b"}, .positions = {.start = 1}};
  request.tensors = {{.layout = "SD", .shape = {1, kHeadDim}, .data = values, .output = values}};
  RotateRequest call{.prepared = client.Prepare(request).value(), .positions = request.positions};
  call.tensors = {{.data = values, .output = values}};
  const std::vector<float> whole = rotate(request);
  EXPECT_EQ(rotate(call), whole);
  server.Forget(server.unix());
  EXPECT_EQ(rotate(call), whole);
  EXPECT_EQ(rotate(call), whole);
  EXPECT_EQ(server.Prepared(), 2) << "the id was used, and forgotten once";
}

}  // namespace
}  // namespace rope::testing
