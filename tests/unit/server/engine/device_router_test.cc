#include "server/engine/device_router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "proto/error.h"
#include "server/engine/limits.h"
#include "server/limits.h"
#include "server/memory/buffer_pool.h"
#include "tests/support/announced_memory.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeBackend;
using ::rope::testing::FakeClock;

// A job of `bytes` bytes that is never run.
kernels::RotateJob JobOf(int64_t bytes, char* input, char* output) {
  kernels::RotateJob job;
  job.input = input;
  job.output = output;
  job.tokens = 1;
  job.heads = 1;
  job.head_dim = bytes / 2;
  job.dtype = kernels::DType::kBFloat16;
  return job;
}

class DeviceRouterTest : public ::testing::Test {
 protected:
  // A host and an accelerator, which is used from `bytes_min` on.
  std::unique_ptr<DeviceRouter> Make(int64_t bytes_min) {
    auto host = std::make_unique<FakeBackend>("host");
    auto accelerator = std::make_unique<FakeBackend>("gpu:0");
    host_ = host.get();
    accelerator_ = accelerator.get();
    auto devices =
        std::make_unique<DeviceRouter>(std::move(host), std::move(accelerator), bytes_min);
    devices->set_on_fault([this](std::string_view device, const absl::Status& status) {
      faults_.push_back(std::string(device) + ": " + std::string(status.message()));
    });
    return devices;
  }

  FakeBackend* host_ = nullptr;
  FakeBackend* accelerator_ = nullptr;
  std::vector<std::string> faults_;
  std::array<char, 8> input_ = {};
  std::array<char, 8> output_ = {};
  const kernels::RotateJob job_ = JobOf(8, input_.data(), output_.data());
};

TEST_F(DeviceRouterTest, TheSizeOfTheBatchDecidesWhereItRuns) {
  const auto devices = Make(1000);
  const kernels::RotateJob small = JobOf(998, input_.data(), output_.data());
  EXPECT_EQ(*devices->Rotate({&small, 1}), "host");
  const kernels::RotateJob large = JobOf(1000, input_.data(), output_.data());
  EXPECT_EQ(*devices->Rotate({&large, 1}), "gpu:0");
  const std::array<kernels::RotateJob, 2> together = {small, small};
  EXPECT_EQ(*devices->Rotate(together), "gpu:0");
  EXPECT_EQ(host_->calls, 1);
  EXPECT_EQ(accelerator_->calls, 2);
}

TEST_F(DeviceRouterTest, AFaultIsReportedOnceAndItsWorkGoesToTheHost) {
  const auto devices = Make(0);
  accelerator_->answer = absl::InternalError("gone");
  EXPECT_EQ(*devices->Rotate({&job_, 1}), "host");
  EXPECT_EQ(*devices->Rotate({&job_, 1}), "host");
  EXPECT_EQ(accelerator_->calls, 1);
  EXPECT_EQ(host_->calls, 2);
  EXPECT_THAT(faults_, ElementsAre("gpu:0: gone"));
  EXPECT_THAT(devices->list().front().detail, HasSubstr("failed, not used any more"));
}

TEST_F(DeviceRouterTest, AFaultInPlaceIsNotTriedAgain) {
  const auto devices = Make(0);
  accelerator_->answer = absl::InternalError("gone");
  const kernels::RotateJob job = JobOf(8, input_.data(), input_.data());
  EXPECT_THAT(devices->Rotate({&job, 1}), IsInternal("gone"));
  EXPECT_EQ(host_->calls, 0);
}

// An error of one class, as the cuda backend makes it.
absl::Status ErrorOf(proto::Reason reason) {
  return proto::MakeError({.reason = reason}, "cuda: some call: some error");
}

TEST_F(DeviceRouterTest, ABatchThatFailsGoesToTheHostAndTheNextToTheDevice) {
  for (const proto::Reason reason : {proto::Reason::kInternal, proto::Reason::kBudgetFull}) {
    const auto devices = Make(0);
    accelerator_->answer = ErrorOf(reason);
    EXPECT_EQ(*devices->Rotate({&job_, 1}), "host");
    accelerator_->answer = absl::OkStatus();
    EXPECT_EQ(*devices->Rotate({&job_, 1}), "gpu:0");
    EXPECT_THAT(faults_, IsEmpty());
  }
}

TEST_F(DeviceRouterTest, ABatchThatTheDeviceCannotRunGoesToTheHostInPlaceToo) {
  const auto devices = Make(0);
  const kernels::RotateJob job = JobOf(8, input_.data(), input_.data());
  accelerator_->answer = ErrorOf(proto::Reason::kNotBuilt);
  EXPECT_EQ(*devices->Rotate({&job, 1}), "host");
  EXPECT_EQ(host_->calls, 1);
  accelerator_->answer = absl::OkStatus();
  EXPECT_EQ(*devices->Rotate({&job, 1}), "gpu:0");
  EXPECT_THAT(faults_, IsEmpty());
}

TEST_F(DeviceRouterTest, ALostDeviceIsAFaultForGood) {
  const auto devices = Make(0);
  accelerator_->answer = ErrorOf(proto::Reason::kDeviceFault);
  EXPECT_EQ(*devices->Rotate({&job_, 1}), "host");
  EXPECT_EQ(*devices->Rotate({&job_, 1}), "host");
  EXPECT_EQ(accelerator_->calls, 1);
  EXPECT_EQ(faults_.size(), 1U);
}

TEST_F(DeviceRouterTest, WhatTheHostCannotRunAgainIsADeviceFaultInEveryClass) {
  for (const proto::Reason reason :
       {proto::Reason::kBudgetFull, proto::Reason::kInternal, proto::Reason::kDeviceFault}) {
    const kernels::RotateJob in_place = JobOf(8, input_.data(), input_.data());
    kernels::RotateJob on_device = JobOf(8, input_.data(), output_.data());
    on_device.input_memory = kernels::MemoryKind::kDevice;
    for (const kernels::RotateJob& job : {in_place, on_device}) {
      const auto devices = Make(0);
      accelerator_->answer = ErrorOf(reason);
      const auto result = devices->Rotate({&job, 1});
      EXPECT_THAT(result, IsInternal("some error"));
      EXPECT_EQ(proto::PartsOf(result.status()).reason, proto::Reason::kDeviceFault);
      EXPECT_EQ(host_->calls, 0);
    }
  }
}

TEST_F(DeviceRouterTest, WhatFailedRunsAgainOnlyBesideAnAccelerator) {
  const absl::Status failure = absl::InternalError("gone");
  EXPECT_EQ(*Make(0)->RotateAgain({&job_, 1}, failure), "host");
  DeviceRouter alone(std::make_unique<FakeBackend>("host"));
  EXPECT_THAT(alone.RotateAgain({&job_, 1}, failure), IsInternal("gone"));
}

TEST_F(DeviceRouterTest, AnAcceleratorThatIsNeverFasterIsDestroyedAndListed) {
  auto alive = std::make_shared<int>();
  const std::weak_ptr<int> backend = alive;
  auto accelerator = std::make_unique<FakeBackend>("gpu:0");
  accelerator->on_rotate = [held = std::move(alive)](auto) {};
  const DeviceRouter devices(std::make_unique<FakeBackend>("host"), std::move(accelerator),
                             DeviceRouter::kNever);
  EXPECT_TRUE(backend.expired());
  ASSERT_EQ(devices.list().size(), 2U);
  EXPECT_EQ(devices.list().front().name, "gpu:0");
  EXPECT_THAT(devices.list().front().detail,
              HasSubstr("slower for every size or failed while measured, given back"));
}

TEST_F(DeviceRouterTest, ListSaysWhatTheAcceleratorIsUsedFor) {
  EXPECT_THAT(Make(1 << 20)->list().front().detail, HasSubstr("1048576 bytes and more"));
  EXPECT_EQ(Make(0)->list().front().detail, "rotates nothing");
  EXPECT_EQ(Make(0)->list().back().name, "host");
}

TEST_F(DeviceRouterTest, AnAcceleratorRunsSmallRequestsOneAtATime) {
  EXPECT_EQ(Make(0)->direct_slots(8), 1);
  EXPECT_EQ(Make(1 << 20)->direct_slots(8), 8) << "small ones stay on the host";
  EXPECT_EQ(Make(DeviceRouter::kNever)->direct_slots(8), 8);
  EXPECT_TRUE(Make(0)->gathers_always());
  EXPECT_FALSE(Make(1 << 20)->gathers_always());
}

TEST_F(DeviceRouterTest, RequestsThatTheAcceleratorDoesNotTakeRunWhereTheyArrive) {
  EXPECT_EQ(Make(0)->direct_bytes_max(), limits::kDirectBytesMax);
  EXPECT_EQ(Make(1 << 20)->direct_bytes_max(), (1 << 20) - 1);
  EXPECT_EQ(Make(DeviceRouter::kNever)->direct_bytes_max(), DeviceRouter::kNever - 1);
}

// Backends that take `fixed` plus `per_mebibyte` per MiB, on a fake clock that they advance.
class CalibrateTest : public ::testing::Test {
 protected:
  int64_t CalibrateWith(absl::Duration host_fixed, absl::Duration host_per_mebibyte,
                        absl::Duration fixed, absl::Duration per_mebibyte) {
    SetTime(host_, host_fixed, host_per_mebibyte);
    SetTime(accelerator_, fixed, per_mebibyte);
    return Calibrate(host_, accelerator_, clock_);
  }

  void SetTime(FakeBackend& backend, absl::Duration fixed, absl::Duration per_mebibyte) {
    backend.on_rotate = [this, fixed, per_mebibyte](absl::Span<const kernels::RotateJob> jobs) {
      const double mebibytes =
          static_cast<double>(jobs.front().bytes()) / static_cast<double>(limits::kMiB);
      clock_.Advance(fixed + per_mebibyte * mebibytes);
    };
  }

  FakeClock clock_;
  FakeBackend host_{"host"};
  FakeBackend accelerator_{"gpu:0"};
};

TEST_F(CalibrateTest, TheAcceleratorTakesOverWhereItGetsFaster) {
  // 10 + 100 x against 100 + 10 x microseconds: equal at 1 MiB.
  const int64_t bytes = CalibrateWith(absl::Microseconds(10), absl::Microseconds(100),
                                      absl::Microseconds(100), absl::Microseconds(10));
  EXPECT_GT(bytes, limits::kMiB / 2);
  EXPECT_LE(bytes, 4 * limits::kMiB);
}

TEST_F(CalibrateTest, OneThatIsAlwaysFasterTakesEverything) {
  EXPECT_EQ(CalibrateWith(absl::Microseconds(10), absl::Microseconds(100), absl::ZeroDuration(),
                          absl::Microseconds(10)),
            0);
}

TEST_F(CalibrateTest, OneThatIsNeverFasterTakesNothing) {
  EXPECT_EQ(CalibrateWith(absl::ZeroDuration(), absl::Microseconds(10), absl::Microseconds(1),
                          absl::Microseconds(11)),
            DeviceRouter::kNever);
}

// Such an accelerator is slower with results that it has to copy.
TEST_F(CalibrateTest, LargeResultsAreInAnnouncedMemoryAsInService) {
  const auto memory = std::make_shared<rope::testing::AnnouncedMemory>();
  accelerator_.memory = memory;
  SetTime(host_, absl::Microseconds(10), absl::Microseconds(100));
  accelerator_.on_rotate = [&](absl::Span<const kernels::RotateJob> jobs) {
    clock_.Advance(absl::Microseconds(memory->now.contains(jobs.front().output) ? 1 : 100000));
  };
  EXPECT_GT(Calibrate(host_, accelerator_, clock_), 0) << "small results are copied";
  EXPECT_LE(Calibrate(host_, accelerator_, clock_), 4 * BufferPool::kAnnouncedBytesMin);
  EXPECT_TRUE(memory->now.empty());
}

TEST_F(CalibrateTest, OneThatFailsTakesNothing) {
  accelerator_.answer = absl::InternalError("gone");
  EXPECT_EQ(Calibrate(host_, accelerator_, clock_), DeviceRouter::kNever);
}

TEST(DeviceRouterCreateTest, AutoServesWithAndWithoutAnAccelerator) {
  const SteadyClock clock;
  ASSERT_OK(devices, DeviceRouter::Create("auto", {}, clock));
  EXPECT_EQ((*devices)->host().name(), "cpu");
}

TEST(DeviceRouterCreateTest, AnUnknownDeviceIsRefused) {
  const SteadyClock clock;
  EXPECT_THAT(DeviceRouter::Create("abacus", {}, clock), IsUnimplemented("abacus"));
}

}  // namespace
}  // namespace rope::server
