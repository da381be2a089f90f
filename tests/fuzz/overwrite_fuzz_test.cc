// Rotations whose results overwrite the received bytes, compared with the same rotations into
// separate memory. Requests have any layout, dtype and operation, arrive in fragments of random
// sizes, and run in slices of a few tokens. The answers must be identical byte for byte.
//
// ROPE_FUZZ_ROUNDS=N sets the number of requests, ROPE_FUZZ_SEED=N the seed.
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backends.h"
#include "tests/conformance/request_generator.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/wire_answer.h"

namespace rope::testing {
namespace {

constexpr uint64_t kRounds = 5000;
constexpr uint64_t kSeed = 20260103;

using BackendAndSliceBytes = std::pair<const char*, int64_t>;

// An engine whose results of at least `overwrite_bytes_min` bytes overwrite the received bytes.
std::unique_ptr<LocalEngine> MakeEngine(const BackendAndSliceBytes& of,
                                        int64_t overwrite_bytes_min) {
  auto state = std::make_shared<LocalEngine::State>();
  state->overwrite_bytes_min = overwrite_bytes_min;
  server::Batcher::Options options;
  options.direct_bytes_max = of.second;
  options.slice_bytes_max = of.second;
  return std::make_unique<LocalEngine>(kernels::CreateBackend(of.first, {}).value(), options,
                                       std::move(state));
}

class OverwriteFuzzTest : public ::testing::TestWithParam<BackendAndSliceBytes> {
 protected:
  // Adds fused operations, and options that prevent overwriting.
  void Decorate(v1::RotateRequest& request) {
    if (writer_.OneIn(8)) request.mutable_output()->set_dtype(v1::DTYPE_BF16);
    for (v1::Tensor& tensor : *request.mutable_tensors()) {
      if (writer_.OneIn(4)) tensor.set_scale(0.5);
      if (writer_.OneIn(8)) tensor.mutable_norm()->set_eps(1e-6);
    }
  }

  void Compare(const v1::RotateRequest& request) {
    const std::string bytes = request.SerializeAsString();
    const std::vector<std::string_view> fragments = writer_.Cut(bytes);
    const WireAnswer want = Answer(*keeping_, fragments);
    const WireAnswer got = Answer(*overwriting_, fragments);
    EXPECT_EQ(got.status, want.status) << request.ShortDebugString();
    EXPECT_TRUE(got.bytes == want.bytes) << request.ShortDebugString();
    EXPECT_EQ(want.overwritten, 0);
    overwritten_ += got.overwritten;
    if (got.status.ok()) kept_ += request.tensors_size() - got.overwritten;
  }

  const std::unique_ptr<LocalEngine> keeping_ =
      MakeEngine(GetParam(), std::numeric_limits<int64_t>::max());
  const std::unique_ptr<LocalEngine> overwriting_ = MakeEngine(GetParam(), 1);
  WireWriter writer_{FuzzSeed(kSeed)};
  int64_t overwritten_ = 0;
  int64_t kept_ = 0;
};

TEST_P(OverwriteFuzzTest, ResultsAreTheSameWhereverTheyGo) {
  RequestGenerator generator(static_cast<uint32_t>(writer_.Below(1000000)));
  std::vector<Choices> choices;
  EveryChoice().ForEach([&](const Choices& each) { choices.push_back(each); });
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    v1::RotateRequest request = generator.Make(choices[writer_.Below(choices.size())]);
    if (writer_.OneIn(2)) Decorate(request);
    Compare(request);
  }
  std::printf("measured: %lld results took the place of what came, %lld did not\n",
              static_cast<long long>(overwritten_), static_cast<long long>(kept_));
  EXPECT_GT(overwritten_, static_cast<int64_t>(rounds / 4));
  EXPECT_GT(kept_, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, OverwriteFuzzTest,
                         ::testing::Values(std::pair("reference", int64_t{1} << 20),
                                           std::pair("cpu", int64_t{1} << 20),
                                           std::pair("cpu", int64_t{256})),
                         [](const auto& tested) {
                           return std::string(tested.param.first) +
                                  (tested.param.second < 1024 ? "InSlices" : "");
                         });

}  // namespace
}  // namespace rope::testing
