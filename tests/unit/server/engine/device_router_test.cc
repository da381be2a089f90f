#include "server/engine/device_router.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/error.h"
#include "tests/support/fake_backend.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeBackend;

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
