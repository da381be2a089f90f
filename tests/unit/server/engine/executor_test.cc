// From a slice to jobs of a device; what a receiving thread leaves to another.
#include "server/engine/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backends.h"
#include "proto/error.h"
#include "proto/mutex.h"
#include "server/clients/limits.h"
#include "server/engine/job_tiler.h"
#include "server/engine/side_thread.h"
#include "server/error.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::CutIntoPieces;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;
using ::rope::testing::ViewsOf;

constexpr int64_t kElementBytes = 2;

struct CutCase {
  const char* letters;
  std::vector<int64_t> shape;
};

// A tensor that was received in pieces, and the jobs that rotate its tokens.
class CutTensor {
 public:
  CutTensor(const CutCase& c, size_t piece_bytes) {
    const auto layout = ParseLayout(c.letters, c.shape, kElementBytes, "t");
    EXPECT_THAT(layout, IsOk());
    plan_.dtype = plan_.output_dtype = kernels::DType::kBFloat16;
    plan_.layout = *layout;
    plan_.heads = {{0, layout->heads, true}};
    plan_.input.bytes = plan_.elements() * kElementBytes;
    pieces_ = CutIntoPieces(std::string(static_cast<size_t>(plan_.input.bytes), 'x'), piece_bytes);
    const std::vector<std::string_view> views = ViewsOf(pieces_);
    plan_.input.fragments.assign(views.begin(), views.end());
    rows_.resize(static_cast<size_t>(layout->tokens()));
    output_.resize(static_cast<size_t>(plan_.output_bytes()));
    const Plan plan;
    JobTiler::Shared shared = {.plan = plan, .end = layout->tokens()};
    shared.rows[0] = rows_;
    cutter_.Cut(plan_, output_.data(), shared, nullptr, jobs_);
  }

  // The number of jobs whose input is not inside one of the pieces.
  int64_t Gathered() const {
    return std::ranges::count_if(jobs_, [this](const kernels::RotateJob& job) {
      const auto* input = static_cast<const char*>(job.input);
      return std::ranges::none_of(pieces_, [input](const std::string& piece) {
        return input >= piece.data() && input < piece.data() + piece.size();
      });
    });
  }

  const TensorPlan& plan() const { return plan_; }
  const Jobs& jobs() const { return jobs_; }

 private:
  TensorPlan plan_;
  std::vector<std::string> pieces_;
  std::vector<kernels::RowRef> rows_;
  std::string output_;
  JobTiler cutter_;
  Jobs jobs_;
};

// That every row is rotated once is compared by MessageFuzzTest and RequestPropertyTest.
class JobTilerTest : public ::testing::TestWithParam<CutCase> {};

TEST_P(JobTilerTest, GathersOnlyRowsThatStraddle) {
  const auto row_bytes = static_cast<size_t>(GetParam().shape.back() * kElementBytes);
  EXPECT_EQ(CutTensor(GetParam(), row_bytes).Gathered(), 0) << "pieces of whole rows";
  const size_t piece = row_bytes + 1;
  const CutTensor odd(GetParam(), piece);
  int64_t straddling = 0;
  const auto total = static_cast<size_t>(odd.plan().elements() * kElementBytes);
  for (size_t row = 0; row < total / row_bytes; ++row) {
    const bool one_piece = row * row_bytes / piece == ((row + 1) * row_bytes - 1) / piece;
    if (!one_piece) ++straddling;
  }
  EXPECT_GT(straddling, 0);
  EXPECT_EQ(odd.Gathered(), straddling);
}

INSTANTIATE_TEST_SUITE_P(Layouts, JobTilerTest,
                         ::testing::Values(CutCase{"BSHD", {2, 3, 4, 4}},
                                           CutCase{"BHSD", {2, 4, 3, 4}}, CutCase{"SD", {7, 4}},
                                           CutCase{"LBHSD", {2, 2, 3, 2, 4}}),
                         [](const auto& test) { return std::string(test.param.letters); });

TEST(JobTilerShapeTest, OneBufferGivesOneJobForTokenMajorTensors) {
  const CutTensor tensor({"BSHD", {2, 3, 4, 4}}, 1000);
  ASSERT_EQ(tensor.jobs().size(), 1U);
  EXPECT_EQ(tensor.jobs()[0].tokens, 6);
  EXPECT_EQ(tensor.jobs()[0].heads, 4);
}

// A packed plan of bf16 with these lengths of B, H and S.
Plan Packed(int64_t b, int64_t h, int64_t s, bool heads_inside, int64_t head_dim = 2) {
  Plan plan;
  TensorPlan& tensor = plan.tensors.emplace_back();
  tensor.dtype = tensor.output_dtype = kernels::DType::kBFloat16;
  tensor.layout.token_axes = {{'B', b}, {'S', s}};
  tensor.layout.pre = heads_inside ? b * s : b;
  tensor.layout.post = heads_inside ? 1 : s;
  tensor.layout.heads = h;
  tensor.layout.head_dim = head_dim;
  tensor.heads = {{0, h, true, false}};
  plan.tokens = b * s;
  plan.bytes_per_token = tensor.token_bytes();
  return plan;
}

TEST(BoundJobsTest, TokensInsideHeadsBecomeAJobForEachHead) {
  Plan plan = Packed(1000, 1024, 2, /*heads_inside=*/false);
  ASSERT_THAT(BoundJobs(plan), IsOk());
  EXPECT_DOUBLE_EQ(plan.jobs.per_token, 512);
  EXPECT_EQ(plan.jobs.fixed, 2 * 1024);
  plan = Packed(1000, 1024, 2, /*heads_inside=*/true);
  ASSERT_THAT(BoundJobs(plan), IsOk());
  EXPECT_LT(plan.jobs.per_token, 1e-6);
}

TEST(BoundJobsTest, StridedOutputsBecomeAJobForEachRun) {
  Plan plan = Packed(1000, 8, 4, /*heads_inside=*/true);
  plan.tensors[0].output_strides = LayoutStrides();
  ASSERT_THAT(BoundJobs(plan), IsOk());
  EXPECT_DOUBLE_EQ(plan.jobs.per_token, 0.25);
}

TEST(BoundJobsTest, ManyNumbersInTheReplyAreRefused) {
  Plan plan = Packed(limits::kReplyNumbersMax / 256, 2, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsOk());
  plan.tensors[0].numbers = true;
  EXPECT_THAT(BoundJobs(plan), IsExhausted("tensors: got 524288 numbers in the reply"));
  plan.tensors[0].place.region = Region::OfProcess();
  EXPECT_THAT(BoundJobs(plan), IsOk());
}

TEST(BoundJobsTest, TokenOfMoreJobsThanASliceIsRefused) {
  Plan plan = Packed(1, limits::kJobsMax + 1, 2, /*heads_inside=*/false);
  EXPECT_THAT(BoundJobs(plan), IsExhausted("tensors: got 65537 separate heads and head_ranges"));
  plan = Packed(1, limits::kJobsMax, 2, /*heads_inside=*/false);
  EXPECT_THAT(BoundJobs(plan), IsOk());
}

TEST(BoundJobsTest, LargeTokenIsRefusedAndASmallerOneIfItIsGathered) {
  constexpr int64_t kHeads = limits::kTokenBytesMax / 512;
  Plan plan = Packed(1, kHeads + 1, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsExhausted("bytes for each token"));
  plan = Packed(1, kHeads, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsOk());
  plan.tensors[0].strides = LayoutStrides{.token_axes = {0, 0}, .channel = 2, .extent = 512};
  EXPECT_THAT(BoundJobs(plan), IsExhausted("tensors[0].array.strides: got a channel"));
  plan = Packed(0, kHeads * 1000, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsOk()) << "no tokens";
}

// A backend that does not rotate: it counts jobs and returns the status that a test sets.
class FakeBackend final : public kernels::Backend {
 public:
  explicit FakeBackend(std::string name = "fake") : name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  std::string detail() const override { return "rotates nothing"; }
  absl::Status Rotate(absl::Span<const kernels::RotateJob> jobs) override {
    ++calls;
    jobs_seen += static_cast<int64_t>(jobs.size());
    if (on_rotate) on_rotate(jobs);
    return answer;
  }

  absl::Status answer;
  std::function<void(absl::Span<const kernels::RotateJob>)> on_rotate;  // may be empty
  int64_t calls = 0;
  int64_t jobs_seen = 0;

 private:
  const std::string name_;
};

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

// How far a batch runs, and what it keeps. Results are compared by RequestPropertyTest (exact
// answers), by MessageFuzzTest (pieces, slices, places) and by engine_simulation_test.cc.

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
    const ReceivedRequest received(sent);
    std::unique_ptr<Request> request = received.MakeRequest();
    auto plan = received.Validate(*registry_);
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

// Which works the side thread takes. What holds in every history (answers, turns, cancellation,
// drain) is proved by engine_simulation_test.cc.

class SideThreadTest : public ::testing::Test {
 protected:
  // A work of one step, which waits until the test lets it go on.
  class Held final : public SideThread::Work {
   public:
    Held(SideThreadTest& test, std::string name) : test_(test), name_(std::move(name)) {}

    absl::StatusOr<bool> Step() override {
      test_.let_go_.WaitForNotification();
      return true;
    }
    void End(const absl::Status& status) override {
      proto::MutexLock lock(&test_.mutex_);
      test_.answers_.emplace_back(name_, status);
    }

   private:
    SideThreadTest& test_;
    const std::string name_;
  };
  using Answers = std::vector<std::pair<std::string, absl::Status>>;

  void StartRequest(const std::string& name) {
    thread_.StartRequest(1, std::make_unique<Held>(*this, name));
  }
  void StartCall(const std::string& owner, const std::string& name) {
    thread_.StartCall(2, clients_.accounts.Of(owner), std::make_unique<Held>(*this, name), nullptr);
  }
  Answers TakeAnswers() {
    proto::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }
  // The only answer is that of `name`, which was refused with `text`.
  void ExpectRefused(const std::string& name, const std::string& text) {
    const Answers answers = TakeAnswers();
    ASSERT_THAT(answers, ElementsAre(Pair(name, IsExhausted(text))));
    EXPECT_GT(proto::PartsOf(answers[0].second).retry_delay_ms, 0);
  }

  testing::TestClients clients_;
  proto::Notification let_go_;
  proto::Mutex mutex_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
  SideThread thread_{clients_.clock};
};

TEST_F(SideThreadTest, CallsAreBoundedByOwnersAndRequestsAreNot) {
  constexpr int64_t kHalf = limits::kControlCallsMax / 2;
  for (int64_t i = 0; i < kHalf; ++i) {
    StartRequest("request");
    StartCall("uid:1", "call");
  }
  StartCall("uid:1", "too many");
  ExpectRefused("too many",
                "queue: got call that takes long, number 129 of uid:1, want at most 128");
  for (int64_t i = 0; i < kHalf; ++i) StartCall("uid:2", "call");
  StartCall("uid:3", "too many");
  ExpectRefused("too many",
                "queue: got call that takes long, number 257 of all clients, want at most 256");
  StartRequest("request");
  let_go_.Notify();
  thread_.Drain();
  const Answers answers = TakeAnswers();
  EXPECT_THAT(answers, SizeIs(3 * kHalf + 1));
  EXPECT_THAT(answers, Each(Pair(::testing::_, IsOk())));
}

}  // namespace
}  // namespace rope::server
