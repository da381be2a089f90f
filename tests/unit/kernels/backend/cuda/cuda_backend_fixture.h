// The cuda backend over the fake runtime, and rotations for it.
#ifndef ROPE_TESTS_UNIT_KERNELS_BACKEND_CUDA_CUDA_BACKEND_FIXTURE_H_
#define ROPE_TESTS_UNIT_KERNELS_BACKEND_CUDA_CUDA_BACKEND_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/backend/cuda/cuda_backend.h"
#include "tests/conformance/rotation.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {

class CudaBackendFixture : public rope::testing::FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    Create(2);
  }
  void TearDown() override {
    backend_.reset();
    EXPECT_EQ(rope::testing::fake_cuda::Counts().threads_without_device, 0);
    FakeCudaTest::TearDown();
  }
  void Create(int threads) {
    auto backend = MakeCudaBackend({.threads = threads});
    ASSERT_THAT(backend, rope::testing::IsOk());
    backend_ = *std::move(backend);
  }

  absl::Status Rotate(const rope::testing::Rotation& rotation) {
    const RotateJob job = rotation.job();
    return backend_->Rotate({&job, 1});
  }

  std::unique_ptr<Backend> backend_;
};

// Heads of 128 channels, in bf16.
inline rope::testing::RotationSpec Large(int64_t tokens = 2000) {
  return {.tokens = tokens,
          .heads = 20,
          .head_dim = 128,
          .dtype = DType::kBFloat16,
          .geometry = rope::testing::WholeHead(Pairing::kHalf, 128)};
}

}  // namespace rope::kernels

#endif  // ROPE_TESTS_UNIT_KERNELS_BACKEND_CUDA_CUDA_BACKEND_FIXTURE_H_
