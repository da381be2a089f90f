#include "server/engine/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "server/engine/limits.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/models/limits.h"
#include "server/models/model.h"
#include "server/request/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/local_engine.h"
#include "tests/support/received_request.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::FakeClock;
using ::rope::testing::LocalEngine;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;
using ::rope::testing::SharedMemory;
using ::rope::testing::TestClients;

// The cost of one sample request in addition to its message: the result of 3 tokens of 8 floats,
// and the cost per token.
constexpr int64_t kResultBytes = 3 * 8 * 4 + 3 * limits::kTokenBytes;

v1::RotateRequest Sample() {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("SD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), {3, 8});
  tensor.mutable_array()->set_raw(std::string(3 * 8 * 4, 0));
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Request> MakeRequest(const v1::RotateRequest& sent) {
    std::unique_ptr<Request> request = ReceivedRequest(sent).MakeRequest();
    request->done = [this](std::unique_ptr<Request> finished, const absl::Status& status) {
      ++answers_;
      status_ = status;
      held_ = std::move(finished);
    };
    return request;
  }

  FakeClock clock_;
  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  // The bytes admitted when the sample is received: its skeleton is parsed into objects.
  static int64_t SampleBytes() {
    const std::unique_ptr<Request> request = ReceivedRequest(Sample()).MakeRequest();
    return DecodedBytes(*request) + kResultBytes;
  }
  // A budget for one sample request, or a slightly larger one.
  static int64_t Budget() { return SampleBytes() * 3 / 2; }

  // As a receiving thread that has no other event.
  absl::Status Submit(std::unique_ptr<Request>& request) {
    clients_.Fill(request->arrival);
    absl::Status status = engine_.Submit(request);
    while (batcher_.RunGathered()) continue;
    return status;
  }

  TestClients clients_{{.requests = 10, .request_bytes = Budget(), .region_bytes = 4096}};
  Batcher batcher_{Batcher::Options(), clock_, [this](absl::Span<Slice>) { ++runs_; }};
  PreparedRotations prepared_{{}};
  Engine engine_{*registry_, prepared_, batcher_, clock_, {}};
  int64_t bytes() const { return clients_.accounts.held(Resource::kRequestBytes); }
  int64_t requests() const { return clients_.accounts.held(Resource::kRequests); }
  int answers_ = 0;
  int runs_ = 0;
  absl::Status status_ = absl::UnknownError("not answered");
  std::unique_ptr<Request> held_;
};

TEST_F(EngineTest, LegalRequestRunsAndHoldsItsPermitUntilItIsGone) {
  auto request = MakeRequest(Sample());
  ASSERT_THAT(Submit(request), IsOk());
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(runs_, 1);
  EXPECT_THAT(status_, IsOk());
  EXPECT_EQ(bytes(), SampleBytes());
  held_.reset();
  EXPECT_EQ(bytes(), 0);
}

TEST_F(EngineTest, BadRequestStaysTheCallersAndReservesNothing) {
  v1::RotateRequest bad = Sample();
  bad.clear_positions();
  auto request = MakeRequest(bad);
  EXPECT_THAT(Submit(request), IsInvalid("positions"));
  EXPECT_NE(request, nullptr);
  EXPECT_EQ(answers_, 0);
  EXPECT_EQ(requests(), 0);
}

TEST_F(EngineTest, FullServerRefusesWithARetryDelay) {
  auto first = MakeRequest(Sample());
  ASSERT_THAT(Submit(first), IsOk());
  auto second = MakeRequest(Sample());
  const absl::Status refused = Submit(second);
  EXPECT_THAT(refused, IsExhausted("request: got"));
  EXPECT_GT(proto::PartsOf(refused).retry_delay_ms, 0);
  EXPECT_NE(second, nullptr);
  held_.reset();
  EXPECT_THAT(Submit(second), IsOk());
}

TEST_F(EngineTest, TokensWithoutBytesCount) {
  v1::RotateRequest empty = Sample();
  v1::Tensor& tensor = *empty.mutable_tensors(0);
  tensor.set_layout("SHD");
  SetShape(*tensor.mutable_array(), {1000, 0, 8});
  tensor.mutable_array()->clear_raw();
  auto request = MakeRequest(empty);
  EXPECT_THAT(Submit(request), IsExhausted("request: got 80000 bytes"));
}

TEST_F(EngineTest, ViewOfMoreThanAnybodyHasRoomForIsRefused) {
  v1::RotateRequest view = Sample();
  v1::Tensor& tensor = *view.mutable_tensors(0);
  tensor.set_layout("SHD");
  SetShape(*tensor.mutable_array(), {3, int64_t{1} << 55, 8});
  for (const int64_t stride : {8, 0, 1}) tensor.mutable_array()->add_strides(stride);
  auto request = MakeRequest(view);
  EXPECT_THAT(Submit(request), IsExhausted("request: got"));
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

TEST_F(EngineTest, ReplyThatMayNotFitItsSlotIsRefusedBeforeAnythingRuns) {
  auto request = MakeRequest(Sample());
  request->arrival.reply_bytes_max = 3 * 8 * 4;  // the result without the rest of the reply
  EXPECT_THAT(Submit(request), IsExhausted("want at most 96 in a ring"));
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(runs_, 0);
  request->arrival.reply_bytes_max = 1024;
  EXPECT_THAT(Submit(request), IsOk());
  EXPECT_EQ(runs_, 1);
}

TEST_F(EngineTest, DrainingServerGivesTheRequestBack) {
  batcher_.Drain();
  auto request = MakeRequest(Sample());
  EXPECT_THAT(Submit(request), IsUnavailable("draining"));
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(answers_, 0);
  request.reset();
  EXPECT_EQ(requests(), 0);
}

// Whether the request runs on the thread that submits it.
bool RunsHere(LocalEngine& engine, const v1::RotateRequest& sent, uint64_t session = 0,
              size_t piece_bytes = size_t{1} << 30) {
  std::unique_ptr<Request> request = ReceivedRequest(sent, piece_bytes).MakeRequest();
  request->arrival.session = session;
  std::thread::id thread;
  proto::Notification answered;
  request->done = [&](std::unique_ptr<Request>, const absl::Status& status) {
    EXPECT_THAT(status, IsOk());
    thread = std::this_thread::get_id();
    answered.Notify();
  };
  const absl::Status submitted = engine.SubmitAndRun(request);
  EXPECT_THAT(submitted, IsOk());
  if (!submitted.ok()) return false;
  answered.WaitForNotification();
  return thread == std::this_thread::get_id();
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

TEST(PlansHereTest, FrequenciesOfManyLengthsAreMadeOnTheSideThread) {
  LocalEngine engine;
  EXPECT_TRUE(RunsHere(engine, Decode(1000, "default")));
  EXPECT_TRUE(RunsHere(engine, Decode(100, "dynamic")));
  EXPECT_FALSE(RunsHere(engine, Decode(1000, "dynamic")));
  for (const int64_t more : {0, 1}) {
    v1::RotateRequest same = Decode(limits::kLengthTokensHereMax + more, "dynamic");
    for (int64_t& length : *same.mutable_positions()->mutable_seq_lens()) length = 10;
    EXPECT_EQ(RunsHere(engine, same), more == 0) << "of one length, but so many look-ups";
  }
}

TEST(PlansHereTest, ManyPositionsAreReadOnTheSideThread) {
  LocalEngine engine;
  v1::RotateRequest sent = Sample();
  v1::Tensor& tensor = *sent.mutable_tensors(0);
  tensor.set_layout("SHD");
  tensor.mutable_array()->clear_raw();
  for (const int64_t more : {0, 1}) {
    SetShape(*tensor.mutable_array(), {limits::kPlanHereBytesMax / 8 + more, 0, 8});
    EXPECT_EQ(RunsHere(engine, sent), more == 0);
  }
}

TEST(PlansHereTest, LargeStridedTensorsInSeveralPiecesAreCopiedOnTheSideThread) {
  constexpr int64_t kHeadsHere = limits::kPlanHereBytesMax / (128 * 4);
  LocalEngine engine;
  v1::RotateRequest sent = Decode(1, "default");
  v1::Array& array = *sent.mutable_tensors(0)->mutable_array();
  for (const int64_t stride : {0, 0, 128, 1}) array.add_strides(stride);
  for (const int64_t more : {0, 1}) {
    SetShape(array, {1, 1, kHeadsHere + more, 128});
    array.set_raw(std::string(static_cast<size_t>((kHeadsHere + more) * 128 * 4), 0));
    EXPECT_TRUE(RunsHere(engine, sent));
    EXPECT_EQ(RunsHere(engine, sent, 0, 4096), more == 0);
  }
}

TEST(PlansHereTest, PlanningFromTheBeginningCountsOnce) {
  LocalEngine engine;
  ASSERT_OK(finished, engine.Run(Decode(1000, "dynamic")));
  const Request& request = **finished;
  EXPECT_EQ(request.permit.bytes(),
            DecodedBytes(request) + RunningBytes(request.fixed(), request.call(), request.plan) +
                PlannedBytes(request.plan));
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

TEST(PlansHereTest, SpecsThatTakeLongAreReadOnTheSideThread) {
  LocalEngine engine;
  const v1::RotateRequest known = DecodeOfLayers(100, std::nullopt);
  ASSERT_THAT(engine.registry().Find(known.rope()), IsOk());
  EXPECT_TRUE(RunsHere(engine, known));
  EXPECT_FALSE(RunsHere(engine, DecodeOfLayers(101, std::nullopt))) << "not read before";
  EXPECT_FALSE(RunsHere(engine, DecodeOfLayers(limits::kConfigJsonHereBytesMax, std::nullopt)));
  EXPECT_FALSE(RunsHere(engine, DecodeOfLayers(100, 0)));
}

// A side thread that drains refuses what it is asked to plan, so that nothing is planned elsewhere
// than on the thread that submits.
class WideSpecTest : public ::testing::Test {
 protected:
  WideSpecTest() { engine_.side_thread().Drain(); }

  bool GoesToTheSideThread(const v1::RotateRequest& sent) {
    std::unique_ptr<Request> request = ReceivedRequest(sent).MakeRequest();
    absl::Status answer;
    request->done = [&](std::unique_ptr<Request>, const absl::Status& status) { answer = status; };
    clients_.Fill(request->arrival);
    EXPECT_THAT(engine_.Submit(request), IsOk());
    while (batcher_.RunGathered()) continue;
    if (answer.ok()) return false;
    EXPECT_THAT(answer, IsUnavailable("draining"));
    return true;
  }
  // A token of one head of `channels`; the config has a head_dim if `has_head_dim`.
  static v1::RotateRequest Token(int64_t channels, double theta, bool has_head_dim = true) {
    v1::RotateRequest request;
    v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
    config.set_rope_theta(theta);
    if (has_head_dim) config.set_head_dim(channels);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_positions()->set_start(0);
    AddFloatTensor(request, v1::ROLE_Q, "SD", {1, channels});
    return request;
  }

  FakeClock clock_;
  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  TestClients clients_;
  Batcher batcher_{Batcher::Options(), clock_, [](absl::Span<Slice>) {}};
  PreparedRotations prepared_{{}};
  Engine engine_{*registry_, prepared_, batcher_, clock_, {}};
};

TEST_F(WideSpecTest, IsResolvedOnTheSideThreadUntilItIsCached) {
  EXPECT_FALSE(GoesToTheSideThread(Token(kWidthHereMax, 1000)));
  const v1::RotateRequest wide = Token(kWidthHereMax + 2, 1000);
  EXPECT_TRUE(GoesToTheSideThread(wide));
  EXPECT_TRUE(GoesToTheSideThread(wide)) << "nothing has resolved it";
  ASSERT_THAT(registry_->Find(wide.rope()), IsOk());
  EXPECT_FALSE(GoesToTheSideThread(wide));
}

TEST_F(WideSpecTest, FromRopeCountsToo) {
  v1::RotateRequest move = Token(kWidthHereMax + 2, 1000);
  ASSERT_THAT(registry_->Find(move.rope()), IsOk());
  move.set_operation(v1::OPERATION_REPOSITION);
  move.mutable_reposition()->mutable_from()->set_start(1);
  EXPECT_FALSE(GoesToTheSideThread(move));
  v1::RopeSpec& from = *move.mutable_reposition()->mutable_from_rope();
  from = move.rope();
  from.mutable_config()->set_rope_theta(2000);
  EXPECT_TRUE(GoesToTheSideThread(move));
  ASSERT_THAT(registry_->Find(from), IsOk());
  EXPECT_FALSE(GoesToTheSideThread(move));
}

TEST_F(WideSpecTest, NormWeightsOfWideHeadsAreReadOnTheSideThread) {
  v1::RotateRequest wide = Token(kWidthHereMax + 2, 1000);
  ASSERT_THAT(registry_->Find(wide.rope()), IsOk());
  wide.mutable_tensors(0)->mutable_norm()->set_eps(1e-6);
  EXPECT_FALSE(GoesToTheSideThread(wide));
  v1::Array& weight = *wide.mutable_tensors(0)->mutable_norm()->mutable_weight();
  weight.set_dtype(v1::DTYPE_FP32);
  SetShape(weight, {kWidthHereMax + 2});
  weight.set_raw(std::string(static_cast<size_t>(kWidthHereMax + 2) * 4, 0));
  EXPECT_TRUE(GoesToTheSideThread(wide));
}

TEST_F(WideSpecTest, HeadsOfATensorResolveAConfigWithoutHeadDimEachTime) {
  EXPECT_FALSE(GoesToTheSideThread(Token(kWidthHereMax, 1000, /*has_head_dim=*/false)));
  const v1::RotateRequest wide = Token(kWidthHereMax + 2, 1000, /*has_head_dim=*/false);
  ASSERT_THAT(registry_->Find(wide.rope()), IsOk());
  EXPECT_TRUE(GoesToTheSideThread(wide));
  v1::RotateRequest by_id = wide;
  by_id.mutable_rope()->Clear();
  by_id.mutable_rope()->set_config_id((*registry_->Find(wide.rope()))->config_id());
  EXPECT_TRUE(GoesToTheSideThread(by_id));
}

// Frequencies that are 0 past a length have their columns at every length.
TEST(PlansHereTest, LengthsWithFrequenciesOfZeroAreRotatedTogether) {
  LocalEngine engine;
  v1::RotateRequest sent = Decode(2, "dynamic");
  sent.mutable_rope()->set_precision(v1::PRECISION_HF);
  sent.mutable_rope()->mutable_config()->set_factor(1e30);
  sent.mutable_positions()->set_seq_lens(0, 2);
  sent.mutable_positions()->set_seq_lens(1, limits::kSeqLenMax);
  EXPECT_THAT(engine.Run(sent).status(), IsOk());
}

TEST(PlansHereTest, LengthsWithTooManyFrequenciesAreRefusedByName) {
  LocalEngine engine;
  EXPECT_THAT(engine.Run(Decode(7000, "dynamic")).status(), IsOk());
  EXPECT_THAT(engine.Run(Decode(9000, "dynamic")).status(),
              IsExhausted("positions.seq_lens: got so many different lengths"));
  EXPECT_THAT(engine.Run(Decode(9000, "default")).status(), IsOk());
  v1::RotateRequest same = Decode(9000, "dynamic");
  for (int64_t& length : *same.mutable_positions()->mutable_seq_lens()) length = 10;
  EXPECT_THAT(engine.Run(same).status(), IsOk());
}

TEST(PlansHereTest, RowsThatASliceBuildsAndFrequenciesCount) {
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

TEST(RunningBytesTest, OnlyResultsThatTakeABufferCount) {
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
}

TEST(RunningBytesTest, SliceOfATensorThatIsGatheredCounts) {
  Plan plan;
  TensorPlan& tensor = plan.tensors.emplace_back();
  tensor.layout.pre = int64_t{1} << 20;
  tensor.layout.head_dim = 4;
  tensor.place.region = Region::OfProcess();
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
