// Requests without common properties share a batch. Tests the batcher and the executor together,
// over a backend that blocks until the test releases it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/backends.h"
#include "proto/mutex.h"
#include "server/clients/limits.h"
#include "server/engine/batcher.h"
#include "server/engine/executor.h"
#include "server/request/validate.h"
#include "tests/support/fake_clock.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;
using ::rope::testing::RawBytes;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

// Rotates as the reference backend does. Blocks in the first call until released. Records all
// calls.
class HeldBackend final : public kernels::Backend {
 public:
  std::string_view name() const override { return "held"; }
  std::string detail() const override { return "waits for the test"; }
  absl::Status Rotate(absl::Span<const kernels::RotateJob> jobs) override {
    {
      proto::MutexLock lock(&mutex_);
      calls_.emplace_back(jobs.begin(), jobs.end());
    }
    if (!started.HasBeenNotified()) started.Notify();
    let_go.WaitForNotification();
    return reference_->Rotate(jobs);
  }
  std::vector<std::vector<kernels::RotateJob>> calls() {
    proto::MutexLock lock(&mutex_);
    return calls_;
  }

  proto::Notification started;
  proto::Notification let_go;

 private:
  std::unique_ptr<kernels::Backend> reference_ = kernels::CreateBackend("reference", {}).value();
  proto::Mutex mutex_;
  std::vector<std::vector<kernels::RotateJob>> calls_ ABSL_GUARDED_BY(mutex_);
};

struct Case {
  std::string config_json;
  std::string layout;
  std::vector<int64_t> shape;
  int64_t position = 0;
  v1::Pairing pairing = v1::PAIRING_HALF;
};

// Requests with different scaling, theta, head_dim, layout, heads, length, position and pairing.
std::vector<Case> DifferentCases() {
  return {
      {R"({"head_dim": 8, "rope_theta": 10000})", "SHD", {3, 2, 8}, 0},
      {R"({"head_dim": 16, "rope_theta": 500000})", "SHD", {1, 5, 16}, 1000000},
      {R"({"head_dim": 8, "rope_scaling": {"rope_type": "linear", "factor": 4.0}})",
       "BHSD",
       {2, 3, 7, 8},
       12},
      {R"({"head_dim": 8, "rope_theta": 10000})", "SD", {40, 8}, 77, v1::PAIRING_INTERLEAVED},
      {R"({"head_dim": 32, "partial_rotary_factor": 0.5})", "SHD", {2, 1, 32}, 5},
  };
}

v1::RotateRequest MessageOf(const Case& example) {
  v1::RotateRequest request;
  request.mutable_rope()->set_config_json(example.config_json);
  request.mutable_rope()->set_pairing(example.pairing);
  request.mutable_positions()->set_start(example.position);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout(example.layout);
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), example.shape);
  int64_t count = 1;
  for (const int64_t length : example.shape) count *= length;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 13) - 6.0F);
  tensor.mutable_array()->set_raw(RawBytes(values));
  return request;
}

class BatcherExecutorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Request> Receive(const std::string& id, const Case& example) {
    std::unique_ptr<Request> request = ReceivedRequest(MessageOf(example), 100).MakeRequest();
    request->arrival.id = id;
    auto plan = Validate(request->decoded.message(), request->decoded.split, *registry_);
    EXPECT_THAT(plan, IsOk());
    if (plan.ok()) request->plan = *std::move(plan);
    request->done = [this](std::unique_ptr<Request> finished, const absl::Status& status) {
      EXPECT_THAT(status, IsOk()) << finished->arrival.id;
      proto::MutexLock lock(&mutex_);
      outputs_[finished->arrival.id] = std::string(
          finished->run.outputs[0].data(), static_cast<size_t>(finished->run.outputs[0].size()));
    };
    return request;
  }

  std::string OutputOf(const std::string& id) {
    proto::MutexLock lock(&mutex_);
    return outputs_[id];
  }

  // The same request alone.
  std::string Alone(const Case& example) {
    DeviceRouter reference(kernels::CreateBackend("reference", {}).value());
    const auto request = Receive("alone", example);
    Slice slice = {request.get(), 0, request->plan.tokens, absl::OkStatus()};
    Executor(reference, tables_, pool_).Run(absl::MakeSpan(&slice, 1));
    EXPECT_THAT(slice.status, IsOk());
    return {request->run.outputs[0].data(), static_cast<size_t>(request->run.outputs[0].size())};
  }

  FakeClock clock_;
  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  kernels::TableCache tables_{limits::kTableCacheBytes};
  BufferPool pool_{limits::kPooledBytesMax};
  proto::Mutex mutex_;
  std::map<std::string, std::string> outputs_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(BatcherExecutorTest, RequestsOfDifferentConfigsLengthsAndPositionsShareOneCall) {
  const std::vector<Case> cases = DifferentCases();
  auto owned_backend = std::make_unique<HeldBackend>();
  HeldBackend& backend = *owned_backend;
  DeviceRouter devices(std::move(owned_backend));
  Executor executor(devices, tables_, pool_);
  std::vector<int64_t> requests_of_batches;
  Batcher batcher(
      {.direct_slots = 0}, clock_, [&](absl::Span<Slice> slices) { executor.Run(slices); },
      [&](const BatchReport& report) {
        EXPECT_EQ(report.device, "held");
        requests_of_batches.push_back(report.requests);
      });
  auto blocker = Receive("blocker", cases[0]);
  ASSERT_THAT(batcher.Enqueue(blocker), IsOk());
  backend.started.WaitForNotification();
  for (size_t i = 0; i < cases.size(); ++i) {
    auto request = Receive(absl::StrCat(i), cases[i]);
    request->arrival.session = i;
    ASSERT_THAT(batcher.Enqueue(request), IsOk());
  }
  backend.let_go.Notify();
  batcher.Drain();

  EXPECT_THAT(requests_of_batches, ElementsAre(1, 5));
  const auto calls = backend.calls();
  ASSERT_THAT(calls, SizeIs(2));
  std::set<int64_t> head_dims;
  std::set<int64_t> pairs;
  std::set<kernels::Pairing> pairings;
  for (const kernels::RotateJob& job : calls[1]) {
    head_dims.insert(job.head_dim);
    pairs.insert(job.geometry.pairs);
    pairings.insert(job.geometry.pairing);
  }
  EXPECT_THAT(head_dims, ElementsAre(8, 16, 32));
  EXPECT_THAT(pairs, ElementsAre(4, 8));
  EXPECT_THAT(pairings, SizeIs(2));
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(OutputOf(absl::StrCat(i)), Alone(cases[i])) << cases[i].config_json;
  }
}

}  // namespace
}  // namespace rope::server
