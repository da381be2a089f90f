// The kernels for rectangles, run on the CPU: bit for bit what the kernels over lists give, and
// positions and fp8, which those lack. The contract suite and the golden files run over the
// same source (tests/conformance/implementations.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/dtype/element.h"
#include "tests/support/fake_cuda_backend.h"

namespace rope::kernels {
namespace {

using rope::testing::AlwaysLists;
using rope::testing::RunCudaPlanOnCpu;

struct Spec {
  DType dtype = DType::kBFloat16;
  Pairing pairing = Pairing::kHalf;
  std::vector<uint32_t> heads = {4, 2};  // of each tensor
  uint32_t tokens = 19;
  uint32_t head_dim = 64;
  uint32_t pairs = 32;
  uint32_t offset = 0;
  uint32_t partner = 32;
  CudaOps ops = CudaOps::kTurn;
  bool weighted = false;  // the norm, of the first tensor alone
  bool in_place = false;
  bool conjugate = false;
  bool one_row = false;

  std::string Describe() const {
    return absl::StrCat(std::string(Name(dtype)), " pairing ", static_cast<int>(pairing),
                        " tokens ", tokens, " tensors ", heads.size(), " head_dim ", head_dim,
                        " pairs ", pairs, "+", offset, "+", partner, " ops ", static_cast<int>(ops),
                        " in place ", in_place);
  }
};

// The tensors of a spec one behind the other, with as many padding channels behind each token.
class Tensors {
 public:
  explicit Tensors(const Spec& spec) : spec_(spec) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> number(-4, 4);
    const auto numbers = [&](size_t count) {
      std::vector<float> result(count);
      for (float& value : result) value = number(random);
      return result;
    };
    rows_ = numbers(size_t{spec.tokens} * 2 * spec.pairs);
    weights_ = numbers(spec.head_dim);
    scales_ = numbers(spec.tokens);
    size_t elements = 0;
    for (const uint32_t heads : spec.heads) elements += Elements(heads);
    input_.resize(elements * Bytes());
    for (size_t i = 0; i < elements; ++i) {
      WriteElement(number(random), spec.dtype, input_.data() + i * Bytes());
    }
    output_.assign(input_.size(), 0x5a);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  std::vector<CudaJob> jobs() {
    std::vector<CudaJob> jobs;
    uint8_t* input = input_.data();
    uint8_t* output = spec_.in_place ? input : output_.data();
    for (const uint32_t heads : spec_.heads) {
      jobs.push_back(Job(heads, jobs.empty()));
      jobs.back().input = input;
      jobs.back().output = output;
      input += Elements(heads) * Bytes();
      output += Elements(heads) * Bytes();
    }
    return jobs;
  }

  // What the rotation gives, padding included.
  const std::vector<uint8_t>& Run(const CudaPlan& plan) {
    RunCudaPlanOnCpu(plan);
    return spec_.in_place ? input_ : output_;
  }

  // The bytes of a token of the only tensor.
  std::vector<uint8_t> Token(const std::vector<uint8_t>& tensor, size_t token) const {
    const size_t bytes = tensor.size() / spec_.tokens;
    const auto begin = tensor.begin() + static_cast<std::ptrdiff_t>(token * bytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
  }

  const std::vector<uint8_t>& input() const { return input_; }
  const float* rows() const { return rows_.data(); }

 private:
  size_t Bytes() const { return static_cast<size_t>(ElementBytes(spec_.dtype)); }
  size_t Elements(uint32_t heads) const {
    return spec_.tokens * 2 * size_t{heads} * spec_.head_dim;
  }

  CudaJob Job(uint32_t heads, bool first) const {
    CudaJob job;
    job.rows = rows_.data();
    job.one_row = spec_.one_row ? rows_.data() : nullptr;
    job.input_token = job.output_token = int64_t{2} * heads * spec_.head_dim;
    job.input_head = job.output_head = spec_.head_dim;
    job.tokens = spec_.tokens;
    job.heads = heads;
    job.head_dim = spec_.head_dim;
    job.pairs = spec_.pairs;
    job.offset = spec_.offset;
    job.partner = spec_.partner;
    job.dtype = job.output_dtype = static_cast<uint32_t>(spec_.dtype);
    job.pairing = static_cast<uint32_t>(spec_.pairing);
    job.conjugate = spec_.conjugate ? 1 : 0;
    if (spec_.ops == CudaOps::kStepwise) {
      job.arithmetic = static_cast<uint32_t>(PairArithmetic::kTurnStepwise);
    }
    if (spec_.ops == CudaOps::kFused) {
      job.scale = 0.7F;
      job.token_scales = first ? scales_.data() : nullptr;
      job.norm = first ? 1 : 0;
      job.eps = 1e-6F;
      job.norm_weight = spec_.weighted ? weights_.data() : nullptr;
    }
    return job;
  }

  const Spec spec_;
  std::vector<float> rows_;
  std::vector<float> weights_;
  std::vector<float> scales_;
  std::vector<uint8_t> input_;
  std::vector<uint8_t> output_;
};

void ExpectWhatListsGive(const Spec& spec) {
  Tensors tensors(spec);
  Tensors listed(spec);
  const CudaPlan plan = PlanCuda(tensors.jobs());
  ASSERT_TRUE(plan.rectangle.has_value()) << spec.Describe();
  EXPECT_EQ(tensors.Run(plan), listed.Run(PlanCuda(listed.jobs(), AlwaysLists())))
      << spec.Describe();
}

// Calls expect(spec) for every dtype, operation, pairing, in place and out of place.
template <typename Expect>
void ForEachKernel(Spec spec, const Expect& expect) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const CudaOps ops : {CudaOps::kTurn, CudaOps::kStepwise, CudaOps::kFused}) {
      for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
        for (const bool in_place : {false, true}) {
          spec.dtype = dtype;
          spec.ops = ops;
          spec.pairing = pairing;
          spec.in_place = in_place;
          spec.weighted = in_place;
          spec.conjugate = in_place;
          expect(spec);
        }
      }
    }
  }
}

TEST(CudaRectangleTest, EveryKernelGivesTheBitsOfTheLists) {
  ForEachKernel({}, ExpectWhatListsGive);
  ForEachKernel({.heads = {1}, .tokens = 1, .head_dim = 128, .pairs = 64, .partner = 64},
                ExpectWhatListsGive);
  ForEachKernel({.heads = {3, 1, 5, 2}, .tokens = 7, .head_dim = 256, .pairs = 128, .partner = 128},
                ExpectWhatListsGive);
}

// Of each half of the window 16 pairs turn. Channels before, between and behind them pass, or are
// normed and scaled: threads of a head are a power of two.
TEST(CudaRectangleTest, WindowsThatLeaveChannelsOut) {
  ForEachKernel({.head_dim = 128, .pairs = 16, .offset = 16, .partner = 48}, ExpectWhatListsGive);
  ForEachKernel({.head_dim = 64, .pairs = 16, .partner = 16}, ExpectWhatListsGive);
}

// The number of vectors that pass is odd.
TEST(CudaRectangleTest, LastThreadOfAHeadMayCopyOneVector) {
  for (const bool in_place : {false, true}) {
    ExpectWhatListsGive({.head_dim = 40, .pairs = 16, .partner = 16, .in_place = in_place});
    ExpectWhatListsGive({.pairing = Pairing::kInterleaved,
                         .head_dim = 56,
                         .pairs = 16,
                         .offset = 8,
                         .in_place = in_place});
  }
}

TEST(CudaRectangleTest, RowThatAllTokensShareTravelsWithTheLaunch) {
  ForEachKernel({.one_row = true}, ExpectWhatListsGive);
  Tensors tensors({.one_row = true});
  EXPECT_EQ(PlanCuda(tensors.jobs()).rectangle->work.rows, nullptr);
  const Spec wide = {.head_dim = 256, .pairs = 128, .partner = 128, .one_row = true};
  ExpectWhatListsGive(wide);
  Tensors others(wide);
  EXPECT_EQ(PlanCuda(others.jobs()).rectangle->work.rows, others.rows()) << "too long to travel";
}

// NaN has several codes.
void ExpectCode(DType dtype, uint8_t got, uint8_t want) {
  const bool nan = std::isnan(ReadElement(&want, dtype));
  EXPECT_TRUE(nan ? std::isnan(ReadElement(&got, dtype)) : got == want)
      << Name(dtype) << " got " << int{got} << " want " << int{want};
}

// A code is widened, turned and rounded once; what saturates and NaN are as element.h says.
TEST(CudaRectangleTest, Float8IsTurnedInFloat32AndRoundedOnce) {
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      const Spec spec = {
          .dtype = dtype, .pairing = pairing, .heads = {1}, .tokens = 64, .head_dim = 64};
      Tensors tensors(spec);
      auto& input = const_cast<std::vector<uint8_t>&>(tensors.input());
      for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<uint8_t>(i * 37 + i / 251);
      const std::vector<uint8_t>& output = tensors.Run(PlanCuda(tensors.jobs()));
      for (size_t pair = 0; pair < 64 * 32; ++pair) {
        const size_t token = pair / 32;
        const size_t i = pair % 32;
        const size_t head = token * 128;
        const size_t first = head + (pairing == Pairing::kHalf ? i : 2 * i);
        const size_t second = first + (pairing == Pairing::kHalf ? 32 : 1);
        const auto a = static_cast<float>(ReadElement(&input[first], dtype));
        const auto b = static_cast<float>(ReadElement(&input[second], dtype));
        const float c = tensors.rows()[token * 64 + i];
        const float s = tensors.rows()[token * 64 + 32 + i];
        uint8_t want[2];
        WriteElement(std::fma(-b, s, a * c), dtype, &want[0]);
        WriteElement(std::fma(a, s, b * c), dtype, &want[1]);
        ExpectCode(dtype, output[first], want[0]);
        ExpectCode(dtype, output[second], want[1]);
      }
    }
  }
}

// --- what a list cannot say: which row ---

class CudaRectangleNumbersTest : public ::testing::Test {
 protected:
  // Turns with `change` applied to the parameter, and compares each token with that of a rotation
  // in which it has row rows[token].
  template <typename Change>
  void ExpectRows(const std::vector<size_t>& rows, const Change& change) {
    Tensors tensors(kSpec);
    CudaPlan plan = PlanCuda(tensors.jobs());
    plan.rectangle->work.row_count = kSpec.tokens;
    change(plan.rectangle->work);
    const std::vector<uint8_t> got = tensors.Run(plan);
    for (size_t token = 0; token < rows.size(); ++token) {
      Tensors alone(kSpec);
      CudaPlan shared = PlanCuda(alone.jobs());
      shared.rectangle->work.first_row = static_cast<int64_t>(rows[token]);
      shared.rectangle->work.row_step = 0;
      EXPECT_EQ(tensors.Token(got, token), alone.Token(alone.Run(shared), token)) << token;
    }
  }

  const Spec kSpec = {.heads = {2}, .tokens = 6};
};

TEST_F(CudaRectangleNumbersTest, PositionsAreARamp) {
  ExpectRows({1, 2, 3, 4, 5, 5}, [](CudaRectangle& work) { work.first_row = 1; });
  ExpectRows({5, 4, 3, 2, 1, 0}, [](CudaRectangle& work) {
    work.first_row = 5;
    work.row_step = -1;
  });
}

TEST_F(CudaRectangleNumbersTest, PositionsLieOnTheDeviceAndAreClampedAndCounted) {
  const int32_t narrow[] = {3, 0, 5, 6, -1, 1};
  const int64_t wide[] = {3, 0, 5, int64_t{1} << 40, -1, 1};
  for (const bool is_wide : {false, true}) {
    uint32_t outside = 0;
    ExpectRows({3, 0, 5, 5, 5, 1}, [&](CudaRectangle& work) {
      work.positions = is_wide ? static_cast<const void*>(wide) : narrow;
      work.wide_positions = is_wide ? 1 : 0;
      work.positions_outside = &outside;
    });
    EXPECT_EQ(outside, 2U) << "once for a token, whatever its heads";
  }
}

}  // namespace
}  // namespace rope::kernels
