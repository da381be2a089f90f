// What every way of a call has in common: the same requests have the same answers and the same
// errors as one message over TCP.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/e2e/random_jobs.h"
#include "tests/support/matchers.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::ConnectOptions;
using client::DType;
using client::RotateReply;
using client::RotateRequest;
using client::TensorView;
using client::Transport;

constexpr int64_t kTokens = 96;
constexpr int64_t kHeads = 6;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kRow = kHeads * kHeadDim;
constexpr size_t kElements = kTokens * kRow;
constexpr size_t kBytes = kElements * sizeof(float);

struct Way {
  enum class Kind { kCall, kAsync, kStream };

  Transport transport = Transport::kInline;
  Kind kind = Kind::kCall;
  bool has_arena = false;  // of a Unix socket; tensors lie in it
  bool is_tcp = false;
};

std::string NameOf(const Way& way) {
  const char* const kinds[] = {"call", "async", "stream"};
  return std::string(way.is_tcp ? "tcp" : Name(way.transport)) + (way.has_arena ? "_arena_" : "_") +
         kinds[static_cast<int>(way.kind)];
}

// q [S, H, D], and a k of two heads from the same data.
class Tensors {
 public:
  Tensors() {
    std::minstd_rand random(1);
    for (float& value : data) value = static_cast<float>(random() % 128) / 16 - 4;
  }
  RotateRequest Request(DType dtype = DType::kFloat32) const {
    RotateRequest request;
    request.rope.config = client::RopeConfig{.head_dim = kHeadDim};
    request.rope.pairing = client::Pairing::kHalf;
    request.positions.start = 1000;
    request.tensors = {{.layout = "SHD",
                        .dtype = dtype,
                        .shape = {kTokens, kHeads, kHeadDim},
                        .data = data.data()},
                       {.role = client::Role::kK,
                        .layout = "SHD",
                        .dtype = dtype,
                        .shape = {kTokens, 2, kHeadDim},
                        .data = data.data()}};
    return request;
  }

  std::vector<float> data = std::vector<float>(kElements);
  std::vector<float> weight = std::vector<float>(kHeadDim, 1.5f);
};

using Change = std::function<void(RotateRequest&, const Tensors&)>;

const std::pair<const char*, Change> kKinds[] = {
    {"plain", [](auto&, auto&) {}},
    {"bf16", [](auto& request, auto& tensors) { request = tensors.Request(DType::kBFloat16); }},
    {"fp16", [](auto& request, auto& tensors) { request = tensors.Request(DType::kFloat16); }},
    {"narrower", [](auto& request, auto&) { request.output_dtype = DType::kBFloat16; }},
    {"wider",
     [](auto& request, auto& tensors) {
       request = tensors.Request(DType::kBFloat16);
       request.output_dtype = DType::kFloat32;
     }},
    {"fp8",
     [](auto& request, auto&) {
       request.output_dtype = DType::kFloat8E4M3;
       for (TensorView& tensor : request.tensors) tensor.fp8_scale = 0.5;
     }},
    {"reordered", [](auto& request, auto&) { request.tensors[0].output_layout = "HSD"; }},
    {"strided",
     [](auto& request, auto&) {
       request.tensors[1].strides = {kRow, kHeadDim, 1};
     }},
    {"packed",
     [](auto& request, auto&) {
       request.tensors.resize(1);
       request.tensors[0].head_ranges = {{client::Role::kQ, 0, 3}, {client::Role::kK, 3, 5}};
     }},
    {"norm and scale",
     [](auto& request, auto& tensors) {
       request.tensors[0].norm = {.eps = 1e-6,
                                  .weight = {.shape = {kHeadDim}, .data = tensors.weight.data()}};
       request.tensors[1].scale = 0.25;
     }},
    {"inverse", [](auto& request, auto&) { request.operation = client::Operation::kInverse; }},
    {"reposition",
     [](auto& request, auto&) {
       request.operation = client::Operation::kReposition;
       request.reposition = {{.from = {.start = 5}}};
     }},
    {"no heads of k",
     [](auto& request, auto&) {
       request.tensors[1].shape = {kTokens, 0, kHeadDim};
     }},
    {"no tokens",
     [](auto& request, auto&) {
       for (TensorView& tensor : request.tensors) tensor.shape[0] = 0;
     }},
};

const std::pair<const char*, Change> kMistakes[] = {
    {"letter", [](auto& request, auto&) { request.tensors[1].layout = "SHX"; }},
    {"layout", [](auto& request, auto&) { request.tensors[0].layout = "what"; }},
    {"length < 0", [](auto& request, auto&) { request.tensors[0].shape[0] = -1; }},
    {"head_dim", [](auto& request, auto&) { request.tensors[0].shape[2] = kHeadDim / 2; }},
    {"no data", [](auto& request, auto&) { request.tensors[0].data = nullptr; }},
    {"no tensors", [](auto& request, auto&) { request.tensors.clear(); }},
    {"theta", [](auto& request, auto&) { request.rope.config->rope_theta = -1; }},
    {"model", [](auto& request, auto&) { request.rope = {.model = "no-such-model"}; }},
    {"position < 0", [](auto& request, auto&) { request.positions.start = -1; }},
    {"position", [](auto& request, auto&) { request.positions.start = int64_t{1} << 31; }},
    {"far position", [](auto& request, auto&) { request.positions.start = int64_t{1} << 62; }},
    {"no positions", [](auto& request, auto&) { request.positions = {}; }},
};

class ContractTest : public ::testing::TestWithParam<Way> {
 protected:
  Client Connected() const {
    const ConnectOptions options = {.arena_bytes = GetParam().has_arena ? int64_t{8} << 20 : 0,
                                    .transports = {GetParam().transport}};
    if (GetParam().transport == Transport::kInProcess) return embedded::Connect().value();
    return Client::Connect(GetParam().is_tcp ? server_.address() : target_, options).value();
  }
  // Sends the request this way; with an arena its tensors go there first.
  Result<RotateReply> Rotate(RotateRequest request) {
    if (GetParam().has_arena) {
      for (TensorView& tensor : request.tensors) {
        if (tensor.data == tensors_.data.data()) tensor.data = slot_.data();
      }
    }
    return RotateAsItIs(request);
  }
  Result<RotateReply> RotateAsItIs(const RotateRequest& request) {
    switch (GetParam().kind) {
      case Way::Kind::kCall:
        return client_.Rotate(request);
      case Way::Kind::kAsync:
        return client_.RotateFuture(request).get();
      case Way::Kind::kStream:
        return stream_.RotateFuture(request).get();
    }
    return Status();
  }
  client::Slot NewSlot() const {
    client::Slot slot = client_.arena().Allocate(kBytes).value();
    std::memcpy(slot.data(), tensors_.data.data(), kBytes);
    return slot;
  }
  static std::vector<std::string> BytesOf(const RotateReply& reply) {
    std::vector<std::string> bytes;
    for (const client::RotatedTensor& tensor : reply.tensors) {
      bytes.emplace_back(static_cast<const char*>(tensor.data), tensor.bytes);
    }
    return bytes;
  }

  const Tensors tensors_;
  const std::string target_ = "unix:" + TemporaryFolder() + "/s";
  const TestServer server_{{"--device=cpu", "--enable_shared_memory", "--listen=" + target_}};
  const Client by_message_ =
      Client::Connect(server_.address(), {.transports = {Transport::kInline}}).value();
  const Client client_ = Connected();
  client::RotateStream stream_ = client_.OpenStream().value();
  const client::Slot slot_ = GetParam().has_arena ? NewSlot() : client::Slot();
};

TEST_P(ContractTest, EveryKindOfRequestHasTheAnswerOfAMessage) {
  EXPECT_EQ(client_.transport().transport, GetParam().transport);
  for (const auto& [name, change] : kKinds) {
    SCOPED_TRACE(name);
    RotateRequest request = tensors_.Request();
    change(request, tensors_);
    ASSERT_OK(want, by_message_.Rotate(request));
    ASSERT_OK(got, Rotate(request));
    EXPECT_TRUE(BytesOf(*got) == BytesOf(*want));
    EXPECT_EQ(got->attention_factor, want->attention_factor);
    EXPECT_EQ(got->warnings, want->warnings);
    ASSERT_EQ(got->tensors.size(), want->tensors.size());
    for (size_t i = 0; i < want->tensors.size(); ++i) {
      EXPECT_EQ(got->tensors[i].shape, want->tensors[i].shape);
      EXPECT_EQ(got->tensors[i].layout, want->tensors[i].layout);
      EXPECT_EQ(got->tensors[i].role, want->tensors[i].role);
      EXPECT_EQ(got->tensors[i].fp8_scale, want->tensors[i].fp8_scale);
      EXPECT_TRUE(got->tensors[i].owned != nullptr || want->tensors[i].bytes == 0);
    }
  }
}

TEST_P(ContractTest, RandomRequestsAreRight) {
  RandomJobs jobs(5);
  for (int i = 0; i < 100; ++i) {
    const auto job = jobs.Next();
    EXPECT_EQ(job->Check(Rotate(job->request())), "");
  }
}

TEST_P(ContractTest, ErrorsAreThoseOfAMessage) {
  for (const auto& [name, change] : kMistakes) {
    SCOPED_TRACE(name);
    RotateRequest request = tensors_.Request();
    change(request, tensors_);
    const Status want = by_message_.Rotate(request).status();
    const Status got = Rotate(request).status();
    EXPECT_FALSE(want.ok());
    EXPECT_EQ(got.ToString(), want.ToString());
    EXPECT_EQ(got.detail().reason, want.detail().reason);
    EXPECT_EQ(got.detail().field, want.detail().field);
    EXPECT_EQ(got.detail().got, want.detail().got);
    EXPECT_EQ(got.detail().want, want.detail().want);
    EXPECT_EQ(got.detail().retry_delay_ms, want.detail().retry_delay_ms);
    EXPECT_EQ(got.detail().may_have_executed, want.detail().may_have_executed);
  }
}

// In place, and with an output that begins within the input, the input counts as it was.
TEST_P(ContractTest, TheOutputMayBeTheInputOrOverlapIt) {
  RotateRequest request = tensors_.Request();
  request.tensors.resize(1);
  ASSERT_OK(want, by_message_.Rotate(request));
  for (const size_t shift : {size_t{0}, static_cast<size_t>(kRow)}) {
    std::vector<float> memory = tensors_.data;
    memory.resize(kElements + shift);
    request.tensors[0].data = memory.data();
    request.tensors[0].output = memory.data() + shift;
    ASSERT_OK(got, RotateAsItIs(request));
    EXPECT_EQ(got->tensors[0].data, request.tensors[0].output);
    EXPECT_EQ(got->tensors[0].owned, nullptr);
    EXPECT_TRUE(BytesOf(*got) == BytesOf(*want));
  }
}

TEST_P(ContractTest, SlotsAndOtherMemoryGoInAnyCombination) {
  if (!GetParam().has_arena) return;
  RotateRequest request = tensors_.Request();
  request.tensors.resize(1);
  ASSERT_OK(want, by_message_.Rotate(request));
  const client::Slot input = NewSlot();
  const client::Slot output = NewSlot();
  std::vector<float> elsewhere(kElements);
  const std::pair<const void*, void*> places[] = {{input.data(), output.data()},
                                                  {input.data(), elsewhere.data()},
                                                  {tensors_.data.data(), output.data()},
                                                  {tensors_.data.data(), elsewhere.data()},
                                                  {input.data(), nullptr},
                                                  {input.data(), input.data()}};
  for (const auto& [data, result] : places) {
    request.tensors[0].data = data;
    request.tensors[0].output = result;
    ASSERT_OK(got, RotateAsItIs(request));
    EXPECT_TRUE(BytesOf(*got) == BytesOf(*want));
    if (result != nullptr) std::memset(result, 0, kBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, ContractTest,
    ::testing::Values(
        Way{.is_tcp = true}, Way{.kind = Way::Kind::kAsync, .is_tcp = true},
        Way{.kind = Way::Kind::kStream, .is_tcp = true}, Way{}, Way{.transport = Transport::kMemfd},
        Way{.transport = Transport::kMemfd, .kind = Way::Kind::kStream},
        Way{.transport = Transport::kRing},
        Way{.transport = Transport::kRing, .kind = Way::Kind::kAsync},
        Way{.transport = Transport::kMemfd, .has_arena = true},
        Way{.transport = Transport::kRing, .has_arena = true},
        Way{.transport = Transport::kRing, .kind = Way::Kind::kAsync, .has_arena = true},
        Way{.transport = Transport::kRing, .kind = Way::Kind::kStream, .has_arena = true},
        Way{.kind = Way::Kind::kAsync, .has_arena = true}, Way{.transport = Transport::kInProcess},
        Way{.transport = Transport::kInProcess, .kind = Way::Kind::kAsync},
        Way{.transport = Transport::kInProcess, .kind = Way::Kind::kStream}),
    [](const auto& way) { return NameOf(way.param); });

}  // namespace
}  // namespace rope::testing
