// Every golden file over every backend, instruction set and dtype, from its config.json text to
// rotated numbers. Prints the largest measured error and the largest error / tolerance of each
// combination.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/config/config_json.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/derived_rows.h"
#include "kernels/tables/table_cache.h"
#include "tests/conformance/implementations.h"
#include "tests/conformance/rotation.h"
#include "tests/support/golden_reader.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using kernels::DType;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

struct Worst {
  double error = 0;
  double ratio = 0;  // error / tolerance; 0/0 = 0, x/0 and NaN are infinite
  std::string where = "nothing";

  void Add(double got, double want, double tolerance, const std::string& name) {
    const double off = std::fabs(got - want);
    double value = off == 0 ? 0 : off / tolerance;
    if (std::isnan(value)) value = HUGE_VAL;
    error = std::max(error, off);
    if (value <= ratio) return;
    ratio = value;
    where = name;
  }
};

// A resolved golden file with the rows of its tokens.
struct Prepared {
  GoldenCase golden;
  kernels::PairGeometry geometry;
  kernels::TokenRows rows;
};

void Prepare(const std::string& path, kernels::TableCache& tables, Prepared& result) {
  auto golden = ReadGoldenFile(path);
  ASSERT_THAT(golden, IsOk()) << path;
  result.golden = *std::move(golden);
  const GoldenCase& g = result.golden;
  const auto model = kernels::ModelConfig::Parse(g.config);
  ASSERT_THAT(model, IsOk()) << path;
  kernels::LayerChoice choice;
  choice.layer_type = g.layer_type;
  const auto layer = model->Layer(choice);
  ASSERT_THAT(layer, IsOk()) << path;
  const auto resolved = kernels::Resolve(layer->config, g.head_dim);
  ASSERT_THAT(resolved, IsOk()) << path;
  const auto frequencies = (*resolved)->ForSeqLen(g.seq_len, kernels::Multiplier::kAttentionFactor);
  result.geometry.pairing =
      g.pairing == "half" ? kernels::Pairing::kHalf : kernels::Pairing::kInterleaved;
  result.geometry.pairs = static_cast<int64_t>(frequencies->inv_freq.size());
  result.geometry.partner = (*resolved)->rotary_dim() / 2;
  if (g.positions.size() == 3) {
    const std::vector<absl::Span<const int64_t>> axes(g.positions.begin(), g.positions.end());
    int64_t budget = std::numeric_limits<int64_t>::max();
    ASSERT_THAT(kernels::AppendMropeRows(tables, *frequencies, *(*resolved)->config().mrope, axes,
                                         budget, result.rows),
                IsOk());
  } else {
    ASSERT_THAT(tables.AppendRows(*frequencies, g.positions[0], result.rows), IsOk());
  }
}

// Rotates one tensor [T][heads][D] in `dtype` and compares the result with the exact answer.
void CheckTensor(kernels::Backend& backend, const Prepared& prepared, DType dtype,
                 const std::vector<float>& input, const std::vector<double>& exact, Worst& worst) {
  const GoldenCase& g = prepared.golden;
  const auto size = static_cast<size_t>(kernels::ElementBytes(dtype));
  const int64_t heads = static_cast<int64_t>(input.size()) / (g.num_tokens * g.head_dim);
  std::vector<uint8_t> in(input.size() * size);
  std::vector<uint8_t> out(in.size());
  for (size_t i = 0; i < input.size(); ++i) WriteElement(input[i], dtype, &in[i * size]);
  kernels::RotateJob job;
  job.input = in.data();
  job.output = out.data();
  job.input_strides = job.output_strides = {heads * g.head_dim, g.head_dim};
  job.tokens = g.num_tokens;
  job.heads = heads;
  job.head_dim = g.head_dim;
  job.dtype = dtype;
  job.geometry = prepared.geometry;
  job.rows = prepared.rows.rows;
  ASSERT_THAT(backend.Rotate({&job, 1}), IsOk());
  const int64_t half = g.rotary_dim / 2;
  const bool interleaved = job.geometry.pairing == kernels::Pairing::kInterleaved;
  for (size_t i = 0; i < input.size(); ++i) {
    const auto channel = static_cast<int64_t>(i) % g.head_dim;
    double tolerance = 0;
    if (channel < g.rotary_dim) {
      const bool first = interleaved ? channel % 2 == 0 : channel < half;
      const size_t distance = interleaved ? 1 : static_cast<size_t>(half);
      const double a = input[first ? i : i - distance];
      const double b = input[first ? i + distance : i];
      tolerance = Tolerance(exact[i], a, b, g.attention_factor, dtype);
    }
    worst.Add(ReadElement(&out[i * size], dtype), exact[i], tolerance,
              g.name + " channel " + std::to_string(channel));
  }
}

class GoldenTest : public ::testing::TestWithParam<Implementation> {};

TEST_P(GoldenTest, EveryFileIsWithinToleranceInEveryDType) {
  const std::vector<std::string> files = GoldenFiles();
  ASSERT_GE(files.size(), 28u);
  const auto backend = GetParam().make({.threads = 1});
  kernels::TableCache tables(int64_t{1} << 24);
  Worst worst[3];
  for (const std::string& file : files) {
    Prepared prepared;
    ASSERT_NO_FATAL_FAILURE(Prepare(file, tables, prepared));
    const GoldenCase& g = prepared.golden;
    for (size_t i = 0; i < 3; ++i) {
      CheckTensor(*backend, prepared, kDTypes[i], g.q, g.q_out_f64, worst[i]);
      CheckTensor(*backend, prepared, kDTypes[i], g.k, g.k_out_f64, worst[i]);
    }
  }
  std::printf(
      "measured: %s over %zu golden files: largest error fp32 %.2g, fp16 %.2g, bf16 %.2g; "
      "of its tolerance %.4f, %.4f, %.4f\n",
      GetParam().name.c_str(), files.size(), worst[0].error, worst[1].error, worst[2].error,
      worst[0].ratio, worst[1].ratio, worst[2].ratio);
  for (const Worst& dtype : worst) {
    EXPECT_LE(dtype.ratio, 1) << dtype.where;
    EXPECT_GT(dtype.ratio, 0) << "nothing was compared";
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, ::testing::ValuesIn(Implementations()),
                         ImplementationName);

}  // namespace
}  // namespace rope::testing
