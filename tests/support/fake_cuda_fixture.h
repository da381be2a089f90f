// A fixture over the fake CUDA driver. It starts with a fresh device, and ends by checking that
// everything allocated was released.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDA_FIXTURE_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDA_FIXTURE_H_

#include <gtest/gtest.h>

#include "tests/support/fake_cuda_driver.h"

namespace rope::testing {

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_cuda::Reset(); }
  // Derived classes must destroy their CUDA objects before this runs.
  void TearDown() override {
    const FakeCudaCounts counts = fake_cuda::Counts();
    EXPECT_EQ(counts.device_bytes, 0) << "device memory leaked";
    EXPECT_EQ(counts.pinned_bytes, 0) << "pinned memory leaked";
    EXPECT_EQ(counts.streams, 0) << "streams leaked";
    EXPECT_EQ(counts.modules, 0) << "kernels leaked";
  }
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDA_FIXTURE_H_
