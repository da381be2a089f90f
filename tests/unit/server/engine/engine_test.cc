// What planning costs, where it runs, and what it refuses. What holds in every history (answers,
// places and bytes that return) is proved by engine_simulation_test.cc.
#include "server/engine/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "tests/support/local_engine.h"
#include "tests/support/received_request.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::LocalEngine;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;
using ::rope::testing::SharedMemory;
using ::rope::testing::TestClients;

v1::RotateRequest Sample(int64_t tokens = 3) {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("SD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), {tokens, 8});
  tensor.mutable_array()->set_raw(std::string(static_cast<size_t>(tokens) * 8 * 4, 0));
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Request> MakeRequest(const v1::RotateRequest& sent) {
    std::unique_ptr<Request> request = ReceivedRequest(sent).MakeRequest();
    request->done = [this](std::unique_ptr<Request> finished, const absl::Status& status) {
      EXPECT_THAT(status, IsOk());
      held_ = std::move(finished);
    };
    return request;
  }

  // As a receiving thread that has no other event.
  absl::Status Submit(std::unique_ptr<Request>& request) {
    clients_.Fill(request->arrival);
    absl::Status status = engine_.Submit(request);
    while (batcher_.RunGathered()) continue;
    return status;
  }
  // Whether the side thread plans the request, which a drained one refuses.
  bool GoesToTheSideThread(const v1::RotateRequest& sent, size_t piece_bytes = size_t{1} << 30) {
    engine_.side_thread().Drain();
    std::unique_ptr<Request> request = ReceivedRequest(sent, piece_bytes).MakeRequest();
    absl::Status answer;
    request->done = [&](std::unique_ptr<Request>, const absl::Status& status) { answer = status; };
    EXPECT_THAT(Submit(request), IsOk());
    if (answer.ok()) return false;
    EXPECT_THAT(answer, IsUnavailable("draining"));
    return true;
  }

  int64_t bytes() const { return clients_.accounts.held(Resource::kRequestBytes); }

  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  TestClients clients_{{.requests = 10, .request_bytes = 64 * limits::kMiB, .region_bytes = 4096}};
  Batcher batcher_{Batcher::Options(), clients_.clock, [this](absl::Span<Slice>) { ++runs_; }};
  PreparedRotations prepared_{{}};
  Engine engine_{*registry_, prepared_, batcher_, clients_.clock, {}};
  int runs_ = 0;
  std::unique_ptr<Request> held_;
};

TEST_F(EngineTest, WhatNobodyHasRoomForIsRefusedBeforeAnythingRuns) {
  v1::RotateRequest empty = Sample();
  v1::Array& array = *empty.mutable_tensors(0)->mutable_array();
  empty.mutable_tensors(0)->set_layout("SHD");
  SetShape(array, {1000, 0, 8});
  array.clear_raw();
  TestClients narrow({.requests = 10, .request_bytes = 4096});
  auto request = MakeRequest(empty);
  narrow.Fill(request->arrival);
  EXPECT_THAT(engine_.Submit(request), IsExhausted("request: got 80000 bytes")) << "tokens count";
  v1::RotateRequest view = Sample();
  view.mutable_tensors(0)->set_layout("SHD");
  v1::Array& viewed = *view.mutable_tensors(0)->mutable_array();
  SetShape(viewed, {3, int64_t{1} << 55, 8});
  for (const int64_t stride : {8, 0, 1}) viewed.add_strides(stride);
  request = MakeRequest(view);
  EXPECT_THAT(Submit(request), IsExhausted("request: got"));
  request = MakeRequest(Sample(126));  // the result fills a slot without the rest of the reply
  request->arrival.transport = Transport::kRing;
  EXPECT_THAT(Submit(request), IsExhausted("want at most 4032 in a ring"));
  EXPECT_EQ(runs_, 0);
  request = MakeRequest(Sample());
  request->arrival.transport = Transport::kRing;
  EXPECT_THAT(Submit(request), IsOk());
  EXPECT_EQ(runs_, 1);
}

TEST_F(EngineTest, MemoryThatIsUsedWhereItIsCostsNothing) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  Regions& regions = clients_.Of(7).regions();
  ASSERT_OK(id, regions.RegisterMemfd(memory.Dup(), 4096));
  v1::RotateRequest sent = Sample();
  v1::Array& array = *sent.mutable_tensors(0)->mutable_array();
  array.clear_raw();
  array.mutable_region()->set_region_id(*id);
  sent.mutable_output()->set_in_place(true);
  auto request = MakeRequest(sent);
  request->arrival.session = 7;
  const int64_t received = DecodedBytes(*request);
  ASSERT_THAT(Submit(request), IsOk());
  EXPECT_EQ(bytes() - received, 3 * limits::kTokenBytes);
  ASSERT_THAT(regions.Unregister(*id), IsOk());
  EXPECT_EQ(clients_.region_bytes(), 4096) << "the request holds it";
  held_.reset();
  EXPECT_EQ(clients_.region_bytes(), 0);
}

// A token of each of `sequences` sequences, whose lengths differ.
v1::RotateRequest Decode(int64_t sequences, const std::string& rope_type) {
  v1::RotateRequest request;
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_head_dim(128);
  config.set_rope_type(rope_type);
  if (rope_type == "dynamic") config.set_factor(2);
  config.set_max_position_embeddings(1);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  for (int64_t i = 0; i < sequences; ++i) request.mutable_positions()->add_seq_lens(10 + i);
  AddFloatTensor(request, v1::ROLE_Q, "BSHD", {sequences, 1, 1, 128});
  return request;
}

// A config.json whose layers have two embeddings.
v1::RotateRequest DecodeOfLayers(int64_t bytes, std::optional<int32_t> first_layer) {
  v1::RotateRequest request = Decode(1, "default");
  request.mutable_rope()->set_config_json(
      absl::StrCat(R"({"model_type": "gemma3_text", "head_dim": 128, "rope_theta": 1e6,
          "rope_local_base_freq": 1e4, "num_hidden_layers": 4, "sliding_window_pattern": 2})",
                   std::string(static_cast<size_t>(bytes), ' ')));
  if (!first_layer.has_value()) {
    request.mutable_rope()->set_layer(0);
    return request;
  }
  request.mutable_rope()->set_first_layer(*first_layer);
  request.mutable_tensors(0)->set_layout("LSHD");
  return request;
}

using PlansHereTest = EngineTest;

TEST_F(PlansHereTest, WhatTakesLongIsPlannedOnTheSideThread) {
  EXPECT_FALSE(GoesToTheSideThread(Decode(1000, "default")));
  EXPECT_FALSE(GoesToTheSideThread(Decode(100, "dynamic")));
  EXPECT_TRUE(GoesToTheSideThread(Decode(1000, "dynamic"))) << "frequencies of many lengths";
  constexpr int64_t kHeadsHere = limits::kPlanHereBytesMax / (128 * 4);
  for (const int64_t more : {0, 1}) {
    v1::RotateRequest same = Decode(limits::kLengthTokensHereMax + more, "dynamic");
    for (int64_t& length : *same.mutable_positions()->mutable_seq_lens()) length = 10;
    EXPECT_EQ(GoesToTheSideThread(same), more == 1) << "of one length, but so many look-ups";
    v1::RotateRequest many = Sample();
    many.mutable_tensors(0)->set_layout("SHD");
    v1::Array& empty = *many.mutable_tensors(0)->mutable_array();
    empty.clear_raw();
    SetShape(empty, {limits::kPlanHereBytesMax / 8 + more, 0, 8});
    EXPECT_EQ(GoesToTheSideThread(many), more == 1) << "positions";
    v1::RotateRequest strided = Decode(1, "default");
    v1::Array& array = *strided.mutable_tensors(0)->mutable_array();
    for (const int64_t stride : {0, 0, 128, 1}) array.add_strides(stride);
    SetShape(array, {1, 1, kHeadsHere + more, 128});
    array.set_raw(std::string(static_cast<size_t>((kHeadsHere + more) * 128 * 4), 0));
    EXPECT_FALSE(GoesToTheSideThread(strided));
    EXPECT_EQ(GoesToTheSideThread(strided, 4096), more == 1) << "a copy of several pieces";
  }
  const v1::RotateRequest known = DecodeOfLayers(100, std::nullopt);
  ASSERT_THAT(registry_->Find(known.rope()), IsOk());
  EXPECT_FALSE(GoesToTheSideThread(known));
  EXPECT_TRUE(GoesToTheSideThread(DecodeOfLayers(101, std::nullopt))) << "not read before";
  EXPECT_TRUE(GoesToTheSideThread(DecodeOfLayers(limits::kConfigJsonHereBytesMax, std::nullopt)));
  EXPECT_TRUE(GoesToTheSideThread(DecodeOfLayers(100, 0)));
}

// A token of one head of `channels`; the config has a head_dim if `has_head_dim`.
v1::RotateRequest Token(int64_t channels, bool has_head_dim = true) {
  v1::RotateRequest request;
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_theta(1000);
  if (has_head_dim) config.set_head_dim(channels);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  AddFloatTensor(request, v1::ROLE_Q, "SD", {1, channels});
  return request;
}

using WideSpecTest = EngineTest;

TEST_F(WideSpecTest, IsResolvedOnTheSideThreadUntilItIsCached) {
  EXPECT_FALSE(GoesToTheSideThread(Token(kWidthHereMax)));
  const v1::RotateRequest wide = Token(kWidthHereMax + 2);
  EXPECT_TRUE(GoesToTheSideThread(wide));
  EXPECT_TRUE(GoesToTheSideThread(wide)) << "nothing has resolved it";
  ASSERT_THAT(registry_->Find(wide.rope()), IsOk());
  EXPECT_FALSE(GoesToTheSideThread(wide));
  v1::RotateRequest move = wide;
  move.set_operation(v1::OPERATION_REPOSITION);
  move.mutable_reposition()->mutable_from()->set_start(1);
  EXPECT_FALSE(GoesToTheSideThread(move));
  v1::RopeSpec& from = *move.mutable_reposition()->mutable_from_rope();
  from = move.rope();
  from.mutable_config()->set_rope_theta(2000);
  EXPECT_TRUE(GoesToTheSideThread(move));
  ASSERT_THAT(registry_->Find(from), IsOk());
  EXPECT_FALSE(GoesToTheSideThread(move));
  v1::RotateRequest normed = wide;
  normed.mutable_tensors(0)->mutable_norm()->set_eps(1e-6);
  EXPECT_FALSE(GoesToTheSideThread(normed));
  v1::Array& weight = *normed.mutable_tensors(0)->mutable_norm()->mutable_weight();
  weight.set_dtype(v1::DTYPE_FP32);
  SetShape(weight, {kWidthHereMax + 2});
  weight.set_raw(std::string(static_cast<size_t>(kWidthHereMax + 2) * 4, 0));
  EXPECT_TRUE(GoesToTheSideThread(normed)) << "weights of wide heads";
  // Heads of a tensor resolve a config without head_dim each time.
  EXPECT_FALSE(GoesToTheSideThread(Token(kWidthHereMax, /*has_head_dim=*/false)));
  v1::RotateRequest without = Token(kWidthHereMax + 2, /*has_head_dim=*/false);
  ASSERT_OK(entry, registry_->Find(without.rope()));
  EXPECT_TRUE(GoesToTheSideThread(without));
  without.mutable_rope()->Clear();
  without.mutable_rope()->set_config_id((*entry)->config_id());
  EXPECT_TRUE(GoesToTheSideThread(without));
}

TEST(PlanOfLengthsTest, LengthsAreRotatedTogetherUpToABound) {
  LocalEngine engine;
  v1::RotateRequest zeros = Decode(2, "dynamic");  // frequencies that are 0 past a length
  zeros.mutable_rope()->set_precision(v1::PRECISION_HF);
  zeros.mutable_rope()->mutable_config()->set_factor(1e30);
  zeros.mutable_positions()->set_seq_lens(0, 2);
  zeros.mutable_positions()->set_seq_lens(1, limits::kSeqLenMax);
  EXPECT_THAT(engine.Run(zeros).status(), IsOk());
  EXPECT_THAT(engine.Run(Decode(7000, "dynamic")).status(), IsOk());
  EXPECT_THAT(engine.Run(Decode(9000, "dynamic")).status(),
              IsExhausted("positions.seq_lens: got so many different lengths"));
  EXPECT_THAT(engine.Run(Decode(9000, "default")).status(), IsOk());
  v1::RotateRequest same = Decode(9000, "dynamic");
  for (int64_t& length : *same.mutable_positions()->mutable_seq_lens()) length = 10;
  EXPECT_THAT(engine.Run(same).status(), IsOk());
}

TEST(PlannedBytesTest, RowsThatASliceBuildsAndFrequenciesCount) {
  LocalEngine engine;
  const auto admitted = [&engine](const v1::RotateRequest& sent) {
    const auto finished = engine.Run(sent);
    EXPECT_THAT(finished.status(), IsOk());
    return finished.ok() ? (*finished)->permit.bytes() : 0;
  };
  v1::RotateRequest sent = Sample();
  const int64_t narrow = admitted(sent);
  EXPECT_LT(narrow, limits::kUncountedBuildBytes) << "a page of a narrow head is not counted";
  sent.mutable_rope()->mutable_config()->set_head_dim(65536);
  v1::Array& array = *sent.mutable_tensors(0)->mutable_array();
  SetShape(array, {1, 65536});
  array.set_dtype(v1::DTYPE_BF16);
  array.set_raw(std::string(size_t{65536} * 2, 0));
  EXPECT_GT(admitted(sent), 16 * limits::kMiB);
  SetShape(array, {1, 8192});
  array.set_raw(std::string(size_t{8192} * 2, 0));
  sent.mutable_rope()->mutable_config()->set_head_dim(8192);
  const int64_t rows = 64 * 8192 * 4;
  EXPECT_GE(admitted(sent), rows + 4096 * 32) << "shared frequencies of a wide head count too";
  const v1::RotateRequest dynamic = Decode(1000, "dynamic");
  EXPECT_GT(admitted(dynamic), admitted(Decode(1000, "default")) + 1000 * 128 * 16);
}

TEST(PlanningBytesTest, PositionsAndRowsOfTheTokensCount) {
  Plan plan;
  Layout& layout = plan.tensors.emplace_back().layout;
  layout.token_axes = {{'B', 10}, {'S', 0}};
  layout.head_dim = 8;
  v1::RotateRequest values;
  const int64_t alone = PlanningBytes(values, plan);
  EXPECT_EQ(alone, 10 * 8);
  const auto more = [&] { return PlanningBytes(values, plan) - alone; };
  for (v1::Positions* given :
       {values.mutable_positions(), values.mutable_reposition()->mutable_from()}) {
    const int64_t before = more();
    for (const int64_t length : {3, 10}) given->mutable_position_ids()->add_shape(length);
    EXPECT_EQ(more() - before, 30 * 8) << "on three axes";
    given->mutable_cu_seqlens()->add_shape(1001);
    EXPECT_EQ(more() - before, (30 + 2 * 1001) * 8) << "sequences without tokens too";
  }
  values.mutable_positions()->mutable_cu_seqlens()->add_shape(int64_t{1} << 62);
  EXPECT_GT(PlanningBytes(values, plan), limits::kPlanHereBytesMax) << "a claim that is no size";
  values.Clear();
  values.mutable_rows()->mutable_cos();
  EXPECT_EQ(more(), 2 * 10 * 4 * 4);
  values.mutable_rows()->mutable_angles();
  EXPECT_EQ(more(), 16 * 10 * 4 * 4);
}

TEST(RunningBytesTest, ResultsThatTakeABufferAndSlicesThatAreGatheredCount) {
  Plan plan;
  TensorPlan& tensor = plan.tensors.emplace_back();
  tensor.layout.pre = 4;
  tensor.layout.head_dim = 4;
  EXPECT_EQ(RunningBytes({}, {}, plan), 64);
  char received = 0;
  tensor.overwritten = {&received};
  EXPECT_EQ(RunningBytes({}, {}, plan), 0);
  tensor.overwritten.clear();
  tensor.place.region = Region::OfProcess();
  EXPECT_EQ(RunningBytes({}, {}, plan), 0);
  tensor.layout.pre = int64_t{1} << 20;
  tensor.strides = LayoutStrides{.token_axes = {4}, .head = 4, .channel = 1, .extent = 4};
  EXPECT_EQ(RunningBytes({}, {}, plan), 0);
  tensor.strides->channel = 2;
  EXPECT_EQ(RunningBytes({}, {}, plan), limits::kSliceBytesMax);
  tensor.layout.pre = 10;
  EXPECT_EQ(RunningBytes({}, {}, plan), 10 * 16);
}

TEST(PlannedBytesTest, RowsOfOneTokenCountIfTheyAreMoreThanTwoPages) {
  Plan plan;
  plan.tokens = 1000;
  auto frequencies = std::make_shared<kernels::Frequencies>();
  frequencies->inv_freq.assign(64, 1);
  plan.row_sets.push_back({{}, {{0, plan.tokens, frequencies, nullptr}}});
  EXPECT_EQ(PlannedBytes(plan), 0);
  plan.mrope = std::make_shared<const kernels::Mrope>();
  constexpr int64_t kPage = 64 * 2 * 64 * 4;
  EXPECT_EQ(PlannedBytes(plan), 3 * kPage);
  plan.row_sets.push_back(plan.row_sets.front());
  EXPECT_EQ(PlannedBytes(plan), 2 * 3 * kPage);
  frequencies->eager = kernels::DType::kBFloat16;
  EXPECT_EQ(PlannedBytes(plan), 4 * 2 * 3 * kPage) << "they take longer than their bytes say";
  plan.rotates = false;
  EXPECT_EQ(PlannedBytes(plan), 0);
}

}  // namespace
}  // namespace rope::server
