// What every way of a call has in common: the same requests have the same answers and the same
// errors as one message over TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/e2e/random_jobs.h"
#include "tests/e2e/two_tensors.h"
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

constexpr size_t kBytes = kElements * sizeof(float);

struct Way {
  enum class Kind { kCall, kAsync };

  Transport transport = Transport::kInline;
  Kind kind = Kind::kCall;
  bool has_arena = false;  // of a Unix socket; tensors lie in it
  bool is_tcp = false;
};

std::string NameOf(const Way& way) {
  const char* const kinds[] = {"call", "async"};
  return std::string(way.is_tcp ? "tcp" : Name(way.transport)) + (way.has_arena ? "_arena_" : "_") +
         kinds[static_cast<int>(way.kind)];
}

using Change = std::function<void(RotateRequest&, const TwoTensors&)>;

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
    {"position_ids",
     [](auto& request, auto&) {
       request.positions = {};
       for (int64_t i = 0; i < kTokens; ++i) request.positions.position_ids.push_back(7 * i % 101);
     }},
    {"starts of a batch",
     [](auto& request, auto&) {
       request.positions = {.starts = {3, 900}};
       for (TensorView& tensor : request.tensors) {
         tensor.layout = "BSHD";
         tensor.shape.insert(tensor.shape.begin(), 2);
         tensor.shape[1] /= 2;
       }
     }},
    {"packed sequences",
     [](auto& request, auto&) {
       request.positions = {.starts = {3, 900, 5}, .cu_seqlens = {0, 40, 41, kTokens}};
       for (TensorView& tensor : request.tensors) tensor.layout = "THD";
     }},
    {"reposition from position_ids",
     [](auto& request, auto&) {
       request.operation = client::Operation::kReposition;
       request.reposition = {{.from = {.position_ids = std::vector<int64_t>(kTokens, 9)}}};
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
    {"output_strides, count",
     [](auto& request, auto&) { request.tensors[0].output_strides = {1}; }},
    {"output_strides < 0",
     [](auto& request, auto&) {
       request.tensors[0].output_strides = {kRow, -1, 1};
     }},
    {"output_strides of D",
     [](auto& request, auto&) {
       request.tensors[0].output_strides = {2 * kRow, 2 * kHeadDim, 2};
     }},
    {"output_strides that overlap",
     [](auto& request, auto&) {
       request.tensors[0].output_strides = {kHeadDim, kHeadDim, 1};
     }},
    {"output_strides without an output",
     [](auto& request, auto&) {
       request.tensors[0].output_strides = {kRow, kHeadDim, 1};
     }},
    {"theta", [](auto& request, auto&) { request.rope.config->rope_theta = -1; }},
    {"model", [](auto& request, auto&) { request.rope = {.model = "no-such-model"}; }},
    {"position < 0", [](auto& request, auto&) { request.positions.start = -1; }},
    {"position", [](auto& request, auto&) { request.positions.start = int64_t{1} << 31; }},
    {"far position", [](auto& request, auto&) { request.positions.start = int64_t{1} << 62; }},
    {"no positions", [](auto& request, auto&) { request.positions = {}; }},
};

// Of a prepared call.
const std::pair<const char*, Change> kMistakesInValues[] = {
    {"no data", [](auto& request, auto&) { request.tensors[0].data = nullptr; }},
    {"no tensors", [](auto& request, auto&) { request.tensors.clear(); }},
    {"position < 0", [](auto& request, auto&) { request.positions.start = -1; }},
    {"position of a token",
     [](auto& request, auto&) {
       request.positions = {.position_ids = std::vector<int64_t>(kTokens, 1)};
       request.positions.position_ids[2] = -5;
     }},
    {"two sources", [](auto& request, auto&) { request.positions.starts = {1}; }},
    {"too few positions",
     [](auto& request, auto&) {
       request.positions = {.position_ids = {1, 2}};
     }},
    {"no positions", [](auto& request, auto&) { request.positions = {}; }},
    {"a label",
     [](auto& request, auto&) {
       request.positions.start = -1;
       request.labels = {{"pod", "a"}};
     }},
    {"the dtype again", [](auto& request, auto&) { request.output_dtype = DType::kFloat16; }},
};

void ExpectEqual(const Status& got, const Status& want) {
  EXPECT_EQ(got.ToString(), want.ToString());
  EXPECT_EQ(got.detail().reason, want.detail().reason);
  EXPECT_EQ(got.detail().field, want.detail().field);
  EXPECT_EQ(got.detail().got, want.detail().got);
  EXPECT_EQ(got.detail().want, want.detail().want);
  EXPECT_EQ(got.detail().retry_delay_ms, want.detail().retry_delay_ms);
  EXPECT_EQ(got.detail().may_have_executed, want.detail().may_have_executed);
}

// The request by the id of its preparation.
RotateRequest PreparedCall(const Client& client, const RotateRequest& request) {
  RotateRequest call = {.prepared = client.Prepare(request).value(),
                        .positions = request.positions};
  if (request.reposition.has_value()) call.reposition = {{.from = request.reposition->from}};
  for (const TensorView& tensor : request.tensors) {
    call.tensors.push_back({.data = tensor.data, .output = tensor.output});
  }
  return call;
}

class ContractTest : public ::testing::TestWithParam<Way> {
 protected:
  Client Connected() const {
    const ConnectOptions options = {.arena_bytes = GetParam().has_arena ? int64_t{8} << 20 : 0,
                                    .transports = {GetParam().transport}};
    if (GetParam().transport == Transport::kInProcess) return embedded::Connect().value();
    return Client::Connect(GetParam().is_tcp ? server_.address() : target_, options).value();
  }
  // Sends the request this way. With an arena its tensors and results are there.
  Result<RotateReply> Rotate(RotateRequest request) {
    if (GetParam().has_arena) {
      for (size_t i = 0; i < request.tensors.size(); ++i) {
        TensorView& tensor = request.tensors[i];
        if (tensor.data == tensors_.data.data()) tensor.data = slots_[0].data();
        const bool is_free = tensor.output == nullptr && tensor.output_strides.empty();
        if (is_free) tensor.output = slots_[i + 1].data();
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
    }
    return Status();
  }
  client::Slot NewSlot() const {
    client::Slot slot = client_.arena().Allocate(kBytes).value();
    std::memcpy(slot.data(), tensors_.data.data(), kBytes);
    return slot;
  }

  const TwoTensors tensors_;
  const std::string target_ = "unix:" + TemporaryFolder() + "/s";
  const TestServer server_{{"--device=cpu", "--enable_shared_memory", "--listen=" + target_}};
  const Client by_message_ =
      Client::Connect(server_.address(), {.transports = {Transport::kInline}}).value();
  const Client client_ = Connected();
  std::vector<client::Slot> NewSlots() const {
    std::vector<client::Slot> slots;
    for (int i = 0; i < 3 && GetParam().has_arena; ++i) slots.push_back(NewSlot());
    return slots;
  }
  const std::vector<client::Slot> slots_ = NewSlots();  // the input, and a result each
};

TEST_P(ContractTest, EveryKindOfRequestHasTheAnswerOfAMessage) {
  EXPECT_EQ(client_.transport().transport, GetParam().transport);
  for (const auto& [name, change] : kKinds) {
    RotateRequest request = tensors_.Request();
    change(request, tensors_);
    ASSERT_OK(want, by_message_.Rotate(request));
    for (const bool is_prepared : {false, true}) {
      SCOPED_TRACE(::testing::Message() << name << is_prepared);
      ASSERT_OK(got, Rotate(is_prepared ? PreparedCall(client_, request) : request));
      EXPECT_TRUE(BytesOf(*got) == BytesOf(*want));
      EXPECT_EQ(got->attention_factor, want->attention_factor);
      EXPECT_EQ(got->attention_factor_applied, want->attention_factor_applied);
      EXPECT_EQ(got->device, want->device);
      EXPECT_EQ(got->warnings, want->warnings);
      EXPECT_NE(got->request_id, "");
      ASSERT_EQ(got->tensors.size(), want->tensors.size());
      for (size_t i = 0; i < want->tensors.size(); ++i) {
        EXPECT_EQ(got->tensors[i].shape, want->tensors[i].shape);
        EXPECT_EQ(got->tensors[i].layout, want->tensors[i].layout);
        EXPECT_EQ(got->tensors[i].dtype, want->tensors[i].dtype);
        EXPECT_EQ(got->tensors[i].role, want->tensors[i].role);
        EXPECT_EQ(got->tensors[i].fp8_scale, want->tensors[i].fp8_scale);
        const bool is_owned = want->tensors[i].bytes > 0 && !GetParam().has_arena;
        EXPECT_TRUE(got->tensors[i].owned != nullptr || !is_owned);
      }
    }
  }
}

TEST_P(ContractTest, RandomRequestsAreRightAndHaveTheBytesOfAMessage) {
  RandomJobs jobs(5);
  RandomJobs same(5);
  for (int i = 0; i < 100; ++i) {
    const auto job = jobs.Next();
    const auto sent = same.Next();
    ASSERT_OK(want, by_message_.Rotate(sent->request()));
    ASSERT_OK(got, RotateAsItIs(job->request()));
    EXPECT_EQ(job->Check(got), "");
    EXPECT_TRUE(BytesOf(*got) == BytesOf(*want));
    EXPECT_EQ(got->warnings, want->warnings);
    EXPECT_EQ(got->attention_factor, want->attention_factor);
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
    ExpectEqual(got, want);
  }
}

TEST_P(ContractTest, ErrorsOfPreparedCallsAreThoseOfAMessage) {
  for (const auto& [name, change] : kMistakesInValues) {
    SCOPED_TRACE(name);
    RotateRequest request = PreparedCall(client_, tensors_.Request());
    RotateRequest sent = PreparedCall(by_message_, tensors_.Request());
    change(request, tensors_);
    change(sent, tensors_);
    const Status want = by_message_.Rotate(sent).status();
    EXPECT_FALSE(want.ok());
    ExpectEqual(Rotate(request).status(), want);
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

// Every second row of a cache whose other rows are values: in place, and from packed memory.
TEST_P(ContractTest, TheOutputMayHaveStrides) {
  RotateRequest request = tensors_.Request();
  request.tensors.resize(1);
  TensorView& tensor = request.tensors[0];
  ASSERT_OK(want, by_message_.Rotate(request));
  const auto* rotated = static_cast<const float*>(want->tensors[0].data);
  std::vector<float> elsewhere(2 * kElements);
  const client::Slot slot =
      GetParam().has_arena ? client_.arena().Allocate(2 * kBytes).value() : client::Slot();
  auto* const cache = GetParam().has_arena ? static_cast<float*>(slot.data()) : elsewhere.data();
  tensor.output = cache;
  tensor.output_strides = {2 * kRow, kHeadDim, 1};
  for (const bool in_place : {false, true}) {
    for (const bool is_prepared : {false, true}) {
      SCOPED_TRACE(::testing::Message() << in_place << is_prepared);
      for (int64_t row = 0; row < 2 * kTokens; ++row) {
        const bool is_key = in_place && row % 2 == 0;
        for (int64_t i = 0; i < kRow; ++i) {
          cache[row * kRow + i] = is_key ? tensors_.data[row / 2 * kRow + i] : -7;
        }
      }
      tensor.data = in_place ? cache : tensors_.data.data();
      tensor.strides = in_place ? tensor.output_strides : std::vector<int64_t>();
      RotateRequest call = request;
      if (is_prepared) {
        ASSERT_OK(prepared, client_.Prepare(request));
        call = {.prepared = *prepared,
                .positions = request.positions,
                .tensors = {{.data = tensor.data, .output = tensor.output}}};
      }
      ASSERT_OK(got, in_place ? RotateAsItIs(call) : Rotate(call));
      EXPECT_EQ(got->tensors[0].data, cache);
      EXPECT_EQ(got->tensors[0].strides, tensor.output_strides);
      for (int64_t row = 0; row < 2 * kTokens; ++row) {
        for (int64_t i = 0; i < kRow; ++i) {
          const float expected = row % 2 == 0 ? rotated[row / 2 * kRow + i] : -7;
          ASSERT_EQ(cache[row * kRow + i], expected) << row << " " << i;
        }
      }
    }
  }
}

// Heads before tokens, and a row between heads that stays as it was.
TEST_P(ContractTest, TheOutputOfAnotherLayoutMayHaveStrides) {
  constexpr int64_t kHead = kTokens * kHeadDim;
  constexpr int64_t kStride = kHead + kHeadDim;
  RotateRequest request = tensors_.Request();
  request.tensors.resize(1);
  request.tensors[0].output_layout = "HSD";
  ASSERT_OK(want, by_message_.Rotate(request));
  const auto* rotated = static_cast<const float*>(want->tensors[0].data);
  std::vector<float> elsewhere(2 * kElements);
  const client::Slot slot =
      GetParam().has_arena ? client_.arena().Allocate(2 * kBytes).value() : client::Slot();
  auto* const memory = GetParam().has_arena ? static_cast<float*>(slot.data()) : elsewhere.data();
  std::fill_n(memory, kHeads * kStride, -7.0F);
  request.tensors[0].output = memory;
  request.tensors[0].output_strides = {kStride, kHeadDim, 1};
  ASSERT_OK(got, Rotate(request));
  EXPECT_EQ(got->tensors[0].layout, "HSD");
  for (int64_t i = 0; i < kHeads * kStride; ++i) {
    const int64_t row = i % kStride;
    ASSERT_EQ(memory[i], row < kHead ? rotated[i / kStride * kHead + row] : -7) << i;
  }
}

// In halves, channel c of neighbours is c / 2, or c / 2 + rotary / 2 if c is odd.
TEST_P(ContractTest, TheOtherChannelOrderHasTheSameNumbers) {
  using client::Pairing;
  RotateRequest request = tensors_.Request();
  request.tensors.resize(1);
  for (const int64_t rotary : {kHeadDim, kHeadDim / 2}) {
    for (const Pairing pairing : {Pairing::kInterleaved, Pairing::kHalf}) {
      const bool is_half = pairing == Pairing::kHalf;
      request.rope.pairing = pairing;
      request.rope.config->rotary_dim = rotary;
      request.channel_order = pairing;
      ASSERT_OK(same, by_message_.Rotate(request));
      request.channel_order = is_half ? Pairing::kInterleaved : Pairing::kHalf;
      ASSERT_OK(other, Rotate(request));
      const auto* from = static_cast<const float*>(same->tensors[0].data);
      const auto* to = static_cast<const float*>(other->tensors[0].data);
      for (int64_t i = 0; i < static_cast<int64_t>(kElements); ++i) {
        const int64_t c = i % kHeadDim;
        const int64_t in_halves = i - c + (c < rotary ? c / 2 + c % 2 * (rotary / 2) : c);
        ASSERT_EQ(is_half ? to[i] : to[in_halves], is_half ? from[in_halves] : from[i]) << i;
      }
    }
  }
}

TEST_P(ContractTest, AResultOutlivesItsClient) {
  const RotateRequest request = tensors_.Request();
  ASSERT_OK(want, by_message_.Rotate(request));
  ASSERT_OK(got, GetParam().kind == Way::Kind::kAsync ? Connected().RotateFuture(request).get()
                                                      : Connected().Rotate(request));
  EXPECT_TRUE(BytesOf(*got) == BytesOf(*want));
}

// Another layout or dtype in the memory of the input is no rotation in place.
TEST_P(ContractTest, AResultOfAnotherKindMayReplaceTheInput) {
  for (const bool is_narrower : {false, true}) {
    RotateRequest request = tensors_.Request();
    request.tensors.resize(1);
    if (is_narrower) request.output_dtype = DType::kBFloat16;
    if (!is_narrower) request.tensors[0].output_layout = "HSD";
    ASSERT_OK(want, by_message_.Rotate(request));
    const client::Slot slot = GetParam().has_arena ? NewSlot() : client::Slot();
    std::vector<float> memory = tensors_.data;
    request.tensors[0].output = GetParam().has_arena ? slot.data() : memory.data();
    request.tensors[0].data = request.tensors[0].output;
    ASSERT_OK(got, RotateAsItIs(request));
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

INSTANTIATE_TEST_SUITE_P(Ways, ContractTest, ::testing::ValuesIn([] {
                           std::vector<Way> ways;
                           for (const Way::Kind kind : {Way::Kind::kCall, Way::Kind::kAsync}) {
                             ways.push_back({.kind = kind, .is_tcp = true});
                             ways.push_back({.transport = Transport::kInProcess, .kind = kind});
                             for (const Transport transport :
                                  {Transport::kInline, Transport::kMemfd, Transport::kRing}) {
                               for (const bool has_arena : {false, true})
                                 ways.push_back({transport, kind, has_arena});
                             }
                           }
                           return ways;
                         }()),
                         [](const auto& way) { return NameOf(way.param); });

}  // namespace
}  // namespace rope::testing
