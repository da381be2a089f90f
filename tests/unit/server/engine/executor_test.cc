// How far a batch runs, and what it keeps. Results are compared by RequestPropertyTest (exact
// answers), by MessageFuzzTest (pieces, slices, places) and by engine_simulation_test.cc.
#include "server/engine/executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backends.h"
#include "proto/error.h"
#include "server/clients/limits.h"
#include "server/request/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::FakeBackend;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

v1::RotateRequest Sample(const std::string& layout, const std::vector<int64_t>& shape) {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
  request.mutable_positions()->set_start(100);
  AddFloatTensor(request, v1::ROLE_Q, layout, shape);
  return request;
}

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() { registry_ = ModelRegistry::Create({}).value(); }

  std::unique_ptr<Request> Receive(const v1::RotateRequest& sent) {
    std::unique_ptr<Request> request = ReceivedRequest(sent).MakeRequest();
    auto plan = Validate(request->decoded.message(), request->decoded.split, *registry_);
    EXPECT_THAT(plan, IsOk());
    if (plan.ok()) request->plan = *std::move(plan);
    return request;
  }

  std::vector<Slice> WholeSlices(const std::vector<Request*>& requests) {
    std::vector<Slice> slices;
    for (Request* request : requests) {
      slices.push_back({request, 0, request->plan.tokens, absl::OkStatus()});
    }
    return slices;
  }

  DeviceRouter reference_{kernels::CreateBackend("reference", {}).value()};
  DeviceRouter fakes_{std::make_unique<FakeBackend>()};
  FakeBackend& fake_ = static_cast<FakeBackend&>(fakes_.host());
  std::unique_ptr<ModelRegistry> registry_;
  kernels::TableCache tables_{limits::kTableCacheBytes};
  BufferPool pool_{limits::kPooledBytesMax};
};

// Whatever the slice, what is large is written past the caches.
TEST_F(ExecutorTest, TheWholeRequestDecidesWhetherItsJobsStream) {
  const int64_t tokens_max = kernels::kCachedBytesMax / (8 * 8 * 4);
  for (const auto& [tokens, streams] : {std::pair(tokens_max, false), {tokens_max + 1, true}}) {
    const auto request = Receive(Sample("SHD", {tokens, 8, 8}));
    int64_t as_expected = 0;
    fake_.on_rotate = [&, streams = streams](absl::Span<const kernels::RotateJob> jobs) {
      for (const kernels::RotateJob& job : jobs) as_expected += job.streams == streams ? 1 : 0;
    };
    fake_.jobs_seen = 0;
    for (const int64_t begin : {int64_t{0}, tokens / 2}) {
      Slice slice = {request.get(), begin, begin + 1, absl::OkStatus()};
      Executor(fakes_, tables_, pool_).Run(absl::MakeSpan(&slice, 1));
    }
    EXPECT_EQ(as_expected, 2);
    EXPECT_EQ(fake_.jobs_seen, 2);
  }
}

TEST_F(ExecutorTest, RowsLastAsLongAsTheirSlice) {
  const auto request = Receive(Sample("SD", {3, 8}));
  std::vector<Slice> slices = WholeSlices({request.get()});
  Executor(reference_, tables_, pool_).Run(absl::MakeSpan(slices));
  ASSERT_EQ(slices[0].rows.size(), 1U);
  EXPECT_EQ(slices[0].rows[0].rows.size(), 3U);
  const std::weak_ptr<const kernels::TablePage> page = slices[0].rows[0].pages.at(0);
  EXPECT_EQ(page.use_count(), 2);  // and the cache's
  slices.clear();
  EXPECT_EQ(page.use_count(), 1);
}

// A token at each of `count` positions on pages of their own; a page of 128 channels has 32 KiB.
v1::RotateRequest Scattered(int64_t count, int64_t first) {
  v1::RotateRequest request = Sample("SHD", {count, 1, 128});
  request.mutable_rope()->mutable_config()->set_head_dim(128);
  request.mutable_positions()->clear_start();
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  SetShape(ids, {count});
  for (int64_t i = 0; i < count; ++i) {
    ids.add_numbers(static_cast<double>(first + i * 10 * kernels::kPageRows));
  }
  return request;
}

TEST_F(ExecutorTest, SliceEndsWhereItsBatchHasBuiltEnoughAndLaterOnesDoNotBegin) {
  const auto first = Receive(Scattered(100, 0));
  const auto second = Receive(Scattered(5, 1 << 20));
  Executor executor(reference_, tables_, pool_);
  std::vector<Slice> slices = WholeSlices({first.get(), second.get()});
  executor.Run(absl::MakeSpan(slices));
  EXPECT_THAT(slices[0].status, IsOk());
  EXPECT_EQ(slices[0].end, 64);
  EXPECT_THAT(slices[1].status, IsOk());
  EXPECT_TRUE(slices[1].WasLeftOut());
  EXPECT_THAT(second->run.outputs, ::testing::IsEmpty());
  slices = {{second.get(), 0, 5, absl::OkStatus()}, {first.get(), 64, 100, absl::OkStatus()}};
  executor.Run(absl::MakeSpan(slices));
  EXPECT_TRUE(slices[0].IsLast());
  EXPECT_TRUE(slices[1].IsLast());
}

// Runs the request in slices that take all that is left. Returns their tokens.
std::vector<int64_t> RunToItsEnd(Request& request, Executor& executor) {
  std::vector<int64_t> tokens;
  for (int64_t begin = 0; begin < request.plan.tokens;) {
    Slice slice = {&request, begin, request.plan.tokens, absl::OkStatus()};
    executor.Run(absl::MakeSpan(&slice, 1));
    EXPECT_THAT(slice.status, IsOk());
    EXPECT_GT(slice.end, begin);
    if (slice.end <= begin) break;
    tokens.push_back(slice.end - begin);
    begin = slice.end;
  }
  return tokens;
}

TEST_F(ExecutorTest, RowSetsLengthsAndTwoEmbeddingsShareTheBudgetOfTheirBatch) {
  Executor executor(reference_, tables_, pool_);
  v1::RotateRequest sides = Scattered(70, 0);
  v1::Tensor& k = *sides.add_tensors() = sides.tensors(0);
  k.set_role(v1::ROLE_K);
  sides.mutable_rope()->mutable_config()->mutable_xpos()->set_scale_base(1 << 20);
  EXPECT_THAT(RunToItsEnd(*Receive(sides), executor), ElementsAre(32, 32, 6));
  // 2 MiB hold 256 tokens of 16 rows with 64 columns of cos and sin.
  constexpr int64_t kLengths = 300;
  v1::RotateRequest lengths = Sample("BSD", {kLengths, 1, 128});
  v1::RopeConfig& config = *lengths.mutable_rope()->mutable_config();
  config.set_head_dim(128);
  config.set_rope_type("dynamic");
  config.set_factor(4);
  config.set_max_position_embeddings(8);
  for (int64_t i = 0; i < kLengths; ++i) lengths.mutable_positions()->add_seq_lens(1000 + i);
  EXPECT_THAT(RunToItsEnd(*Receive(lengths), executor), ElementsAre(256, 44));
  v1::RotateRequest moved = Scattered(200, 0);
  moved.set_operation(v1::OPERATION_REPOSITION);
  moved.mutable_reposition()->mutable_from()->set_start(3);
  *moved.mutable_reposition()->mutable_from_rope() = moved.rope();
  moved.mutable_reposition()->mutable_from_rope()->mutable_config()->set_rope_theta(777);
  EXPECT_THAT(RunToItsEnd(*Receive(moved), executor), ElementsAre(128, 72));
}

// A host and an accelerator that do not rotate.
class DeviceRouterTest : public ::testing::Test {
 protected:
  DeviceRouterTest() {
    devices_.set_on_fault([this](std::string_view device, const absl::Status& status) {
      faults_.push_back(std::string(device) + ": " + std::string(status.message()));
    });
  }

  absl::StatusOr<std::string_view> Rotate() {
    const kernels::RotateJob job;
    return devices_.Rotate({&job, 1});
  }
  // What the accelerator answers, as the cuda backend makes it.
  void FailWith(proto::Reason reason) {
    accelerator_->answer = proto::MakeError({.reason = reason}, "cuda: some call: some error");
  }

  FakeBackend* const host_ = new FakeBackend("host");  // owned by devices_
  FakeBackend* const accelerator_ = new FakeBackend("gpu:0");
  DeviceRouter devices_{std::unique_ptr<kernels::Backend>(host_),
                        std::unique_ptr<kernels::Backend>(accelerator_)};
  std::vector<std::string> faults_;
};

TEST_F(DeviceRouterTest, TheAcceleratorRunsEveryBatch) {
  EXPECT_EQ(*Rotate(), "gpu:0");
  EXPECT_EQ(host_->calls, 0);
  ASSERT_EQ(devices_.list().size(), 2U);
  EXPECT_EQ(devices_.list().front().detail, "rotates nothing");
  EXPECT_EQ(devices_.list().back().name, "host");
}

TEST_F(DeviceRouterTest, ABatchThatTheDeviceCannotRunGoesToTheHost) {
  FailWith(proto::Reason::kNotBuilt);
  EXPECT_EQ(*Rotate(), "host");
  accelerator_->answer = absl::OkStatus();
  EXPECT_EQ(*Rotate(), "gpu:0");
  EXPECT_THAT(faults_, IsEmpty());
}

TEST_F(DeviceRouterTest, ABatchThatFailsIsAnErrorAndTheNextGoesToTheDevice) {
  for (const proto::Reason reason : {proto::Reason::kInternal, proto::Reason::kBudgetFull}) {
    FailWith(reason);
    EXPECT_EQ(proto::PartsOf(Rotate().status()).reason, reason);
    accelerator_->answer = absl::OkStatus();
    EXPECT_EQ(*Rotate(), "gpu:0");
  }
  EXPECT_THAT(faults_, IsEmpty());
  EXPECT_EQ(host_->calls, 0);
}

TEST_F(DeviceRouterTest, ALostDeviceIsReportedOnceAndLaterBatchesGoToTheHost) {
  FailWith(proto::Reason::kDeviceFault);
  EXPECT_EQ(proto::PartsOf(Rotate().status()).reason, proto::Reason::kDeviceFault);
  EXPECT_EQ(*Rotate(), "host");
  EXPECT_EQ(*Rotate(), "host");
  EXPECT_EQ(accelerator_->calls, 1);
  EXPECT_THAT(faults_, ElementsAre("gpu:0: cuda: some call: some error"));
  EXPECT_THAT(devices_.list().front().detail, HasSubstr("failed, not used any more"));
}

TEST_F(DeviceRouterTest, OneDirectBatchAtATimeGoesToAnAccelerator) {
  EXPECT_EQ(devices_.direct_slots(8), 1);
  EXPECT_EQ(DeviceRouter(std::make_unique<FakeBackend>()).direct_slots(8), 8);
}

TEST(DeviceRouterCreateTest, AutoIsTheCpuAlone) {
  ASSERT_OK(devices, DeviceRouter::Create("auto", {}));
  ASSERT_EQ((*devices)->list().size(), 1U);
  EXPECT_EQ((*devices)->host().name(), "cpu");
}

TEST(DeviceRouterCreateTest, AnUnknownDeviceIsRefused) {
  EXPECT_THAT(DeviceRouter::Create("abacus", {}), IsUnimplemented("abacus"));
}

}  // namespace
}  // namespace rope::server
