#include "server/engine/job_tiler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "server/engine/limits.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::CutIntoPieces;
using ::rope::testing::ViewsOf;

constexpr int64_t kElementBytes = 2;

struct CutCase {
  const char* letters;
  std::vector<int64_t> shape;
  size_t piece = 0;  // bytes in each buffer
  kernels::DType output_dtype = kernels::DType::kBFloat16;
};

// A tensor whose bytes count up, received in pieces, and the jobs that rotate some of its tokens.
// Elements are converted by truncating bytes or appending zeros.
class CutTensor {
 public:
  explicit CutTensor(const CutCase& c) {
    const auto layout = ParseLayout(c.letters, c.shape, kElementBytes, "t");
    EXPECT_THAT(layout, IsOk());
    plan_.dtype = kernels::DType::kBFloat16;
    plan_.output_dtype = c.output_dtype;
    output_element_bytes_ = kernels::ElementBytes(c.output_dtype);
    plan_.layout = *layout;
    plan_.heads = {{0, layout->heads, true}};
    const int64_t bytes = plan_.elements() * kElementBytes;
    for (int64_t i = 0; i < bytes; ++i) bytes_.push_back(static_cast<char>(i % 251));
    pieces_ = CutIntoPieces(bytes_, c.piece);
    const std::vector<std::string_view> views = ViewsOf(pieces_);
    plan_.input.fragments.assign(views.begin(), views.end());
    plan_.input.bytes = bytes;
    rows_.resize(static_cast<size_t>(layout->tokens()));
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].index = static_cast<int64_t>(i);
    output_.resize(static_cast<size_t>(plan_.output_bytes()));
    touched_.resize(output_.size(), 0);
  }

  void Cut(int64_t begin, int64_t end) {
    JobTiler::Shared shared;
    shared.begin = begin;
    shared.end = end;
    shared.rows[0] = absl::MakeConstSpan(rows_).subspan(static_cast<size_t>(begin),
                                                        static_cast<size_t>(end - begin));
    cutter_.Cut(plan_, output_.data(), shared, nullptr, jobs_);
    for (; done_ < jobs_.size(); ++done_) Apply(jobs_[done_], begin, end);
  }

  // Expects that every byte was copied once, from its own place.
  void ExpectAllCopiedOnce() const {
    std::string want(output_.size(), '\0');
    Convert(bytes_.data(), plan_.elements(), want.data());
    EXPECT_EQ(output_, want);
    for (const int count : touched_) ASSERT_EQ(count, 1);
  }

  // The number of jobs whose input is not inside one of the pieces.
  int64_t Gathered() const {
    int64_t count = 0;
    for (const kernels::RotateJob& job : jobs_) {
      const auto* input = static_cast<const char*>(job.input);
      bool inside = false;
      for (const std::string& piece : pieces_) {
        inside = inside || (input >= piece.data() && input < piece.data() + piece.size());
      }
      if (!inside) ++count;
    }
    return count;
  }

  const TensorPlan& plan() const { return plan_; }
  const Jobs& jobs() const { return jobs_; }

 private:
  void Convert(const char* from, int64_t elements, char* to) const {
    const int64_t bytes = std::min(kElementBytes, output_element_bytes_);
    for (int64_t i = 0; i < elements; ++i) {
      std::memcpy(to + i * output_element_bytes_, from + i * kElementBytes,
                  static_cast<size_t>(bytes));
    }
  }

  // Copies as a rotation by angle 0 would, and checks that each row belongs to its token.
  void Apply(const kernels::RotateJob& job, int64_t begin, int64_t end) {
    const Layout& layout = plan_.layout;
    const auto row_bytes = static_cast<size_t>(layout.head_dim * output_element_bytes_);
    ASSERT_EQ(static_cast<int64_t>(job.rows.size()), job.tokens);
    ASSERT_EQ(job.stored(), plan_.output_dtype);
    for (int64_t token = 0; token < job.tokens; ++token) {
      for (int64_t head = 0; head < job.heads; ++head) {
        const int64_t in = token * job.input_strides.token + head * job.input_strides.head;
        const int64_t out = token * job.output_strides.token + head * job.output_strides.head;
        char* target = static_cast<char*>(job.output) + out * output_element_bytes_;
        Convert(static_cast<const char*>(job.input) + in * kElementBytes, layout.head_dim, target);
        const int64_t offset = target - output_.data();
        for (size_t i = 0; i < row_bytes; ++i) ++touched_[static_cast<size_t>(offset) + i];
        const int64_t row = offset / static_cast<int64_t>(row_bytes);
        const int64_t pre = row / layout.post / layout.heads;
        const int64_t expected = pre * layout.post + row % layout.post;
        ASSERT_EQ(job.rows[static_cast<size_t>(token)].index, expected);
        ASSERT_GE(expected, begin);
        ASSERT_LT(expected, end);
      }
    }
  }

  TensorPlan plan_;
  int64_t output_element_bytes_ = 0;
  std::string bytes_;
  std::vector<std::string> pieces_;
  std::vector<kernels::RowRef> rows_;
  std::string output_;
  std::vector<int> touched_;
  JobTiler cutter_;
  Jobs jobs_;
  size_t done_ = 0;
};

class JobTilerTest : public ::testing::TestWithParam<CutCase> {};

TEST_P(JobTilerTest, EveryPieceSizeCoversEveryRowOnce) {
  CutCase c = GetParam();
  const int64_t row_bytes = c.shape.back() * kElementBytes;
  // Up to pieces that begin in the middle of one token and contain all of the next.
  for (c.piece = 1; c.piece <= static_cast<size_t>(8 * row_bytes + 1); ++c.piece) {
    SCOPED_TRACE(c.piece);
    CutTensor tensor(c);
    tensor.Cut(0, tensor.plan().layout.tokens());
    tensor.ExpectAllCopiedOnce();
  }
}

TEST_P(JobTilerTest, SlicesTogetherCoverEveryRowOnce) {
  CutCase c = GetParam();
  for (const size_t piece : {5U, 13U, 1000U}) {
    c.piece = piece;
    for (int64_t slice = 1; slice <= 5; ++slice) {
      SCOPED_TRACE(slice);
      CutTensor tensor(c);
      const int64_t tokens = tensor.plan().layout.tokens();
      for (int64_t begin = 0; begin < tokens; begin += slice) {
        tensor.Cut(begin, std::min(begin + slice, tokens));
      }
      tensor.ExpectAllCopiedOnce();
    }
  }
}

TEST_P(JobTilerTest, GathersOnlyRowsThatStraddle) {
  CutCase c = GetParam();
  const auto row_bytes = static_cast<size_t>(c.shape.back() * kElementBytes);
  c.piece = row_bytes;  // pieces of whole rows
  CutTensor whole(c);
  whole.Cut(0, whole.plan().layout.tokens());
  EXPECT_EQ(whole.Gathered(), 0);
  c.piece = row_bytes + 1;
  CutTensor odd(c);
  odd.Cut(0, odd.plan().layout.tokens());
  int64_t straddling = 0;
  const auto total = static_cast<size_t>(odd.plan().elements() * kElementBytes);
  for (size_t row = 0; row < total / row_bytes; ++row) {
    const bool one_piece = row * row_bytes / c.piece == ((row + 1) * row_bytes - 1) / c.piece;
    if (!one_piece) ++straddling;
  }
  EXPECT_GT(straddling, 0);
  EXPECT_EQ(odd.Gathered(), straddling);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, JobTilerTest,
    ::testing::Values(CutCase{"BSHD", {2, 3, 4, 4}}, CutCase{"SBHD", {3, 2, 4, 4}},
                      CutCase{"BHSD", {2, 4, 3, 4}}, CutCase{"THD", {5, 3, 4}},
                      CutCase{"HTD", {3, 5, 4}}, CutCase{"SD", {7, 4}},
                      CutCase{"LBSHD", {2, 2, 2, 3, 4}}, CutCase{"LBHSD", {2, 2, 3, 2, 4}},
                      CutCase{"BHSD", {3, 4, 1, 4}}, CutCase{"THD", {5, 1, 4}},
                      CutCase{"BSHD", {2, 3, 4, 4}, 0, kernels::DType::kFloat32},
                      CutCase{"BHSD", {2, 4, 3, 4}, 0, kernels::DType::kFloat8E4M3}),
    [](const auto& test) { return test.param.letters + std::to_string(test.index); });

TEST(JobTilerShapeTest, OneBufferGivesOneJobForTokenMajorTensors) {
  CutTensor tensor({"BSHD", {2, 3, 4, 4}, 1000});
  tensor.Cut(0, 6);
  ASSERT_EQ(tensor.jobs().size(), 1U);
  EXPECT_EQ(tensor.jobs()[0].tokens, 6);
  EXPECT_EQ(tensor.jobs()[0].heads, 4);
  EXPECT_EQ(tensor.jobs()[0].head_dim, 4);
  EXPECT_EQ(tensor.jobs()[0].dtype, kernels::DType::kBFloat16);
}

TEST(JobTilerFusedOpsTest, JobsCarryWhatTheirTensorAsksFor) {
  ASSERT_OK(layout, ParseLayout("SHD", {4, 1, 2}, 4, "t"));
  const std::string bytes(32, 'x');
  TensorPlan plan;
  plan.layout = *layout;
  plan.heads = {{0, 1, true}};
  plan.output_dtype = kernels::DType::kFloat8E5M2;
  plan.output_scale = 4;
  plan.scale = 3;
  plan.norm_eps = 0.5F;
  plan.norm_weight = std::make_shared<const std::vector<float>>(std::vector<float>{1, 2});
  plan.token_scaled = true;
  plan.input.fragments = {std::string_view(bytes).substr(0, 12),
                          std::string_view(bytes).substr(12)};  // a job for each of tokens 0 and 1
  plan.input.bytes = 32;
  const std::vector<kernels::RowRef> rows(3);
  const std::vector<float> scales = {10, 11, 12};
  std::string output(8, '\0');
  JobTiler::Shared shared;
  shared.begin = 1;
  shared.end = 4;
  shared.rows[0] = rows;
  shared.token_scales = scales;
  JobTiler cutter;
  Jobs jobs;
  cutter.Cut(plan, output.data(), shared, nullptr, jobs);
  ASSERT_EQ(jobs.size(), 2U);
  for (const kernels::RotateJob& job : jobs) {
    EXPECT_EQ(job.stored(), kernels::DType::kFloat8E5M2);
    EXPECT_EQ(job.output_scale, 4);
    EXPECT_EQ(job.scale, 3);
    ASSERT_TRUE(job.norm.has_value());
    EXPECT_EQ(job.norm->eps, 0.5F);
    EXPECT_EQ(job.norm->weight, plan.norm_weight->data());
  }
  EXPECT_THAT(jobs[0].token_scales, ::testing::ElementsAre(10));
  EXPECT_THAT(jobs[1].token_scales, ::testing::ElementsAre(11, 12));
  plan.token_scaled = false;
  plan.norm_weight = nullptr;
  cutter.Cut(plan, output.data(), shared, nullptr, jobs);
  EXPECT_TRUE(jobs.back().token_scales.empty());
  EXPECT_EQ(jobs.back().norm->weight, nullptr);
}

TEST(JobTilerShapeTest, HeadsThatPassShareTheirRows) {
  ASSERT_OK(layout, ParseLayout("SHD", {4, 2, 2}, 4, "t"));
  const std::string bytes(64, 'x');
  TensorPlan plan;
  plan.layout = *layout;
  plan.heads = {{0, 1, true}, {1, 2, false}};
  plan.input.fragments = {std::string_view(bytes)};
  plan.input.bytes = 64;
  const std::vector<kernels::RowRef> rows(4);
  std::string output(64, '\0');
  JobTiler cutter;
  Jobs jobs;
  // The rows of the head that passes.
  const auto cut = [&](int64_t begin, size_t tokens) {
    JobTiler::Shared shared;
    shared.begin = begin;
    shared.end = begin + static_cast<int64_t>(tokens);
    shared.rows[0] = absl::MakeConstSpan(rows).subspan(static_cast<size_t>(begin), tokens);
    cutter.Cut(plan, output.data(), shared, nullptr, jobs);
    return jobs.back().rows;
  };
  const absl::Span<const kernels::RowRef> shorter = cut(0, 3);
  EXPECT_EQ(cut(0, 3).data(), shorter.data()) << "another tensor of the slice";
  EXPECT_EQ(cut(3, 1).data(), shorter.data()) << "a slice with fewer tokens";
  const absl::Span<const kernels::RowRef> longer = cut(0, 4);
  EXPECT_EQ(cut(0, 3).data(), longer.data());
  ASSERT_EQ(shorter.size(), 3U);
  ASSERT_EQ(longer.size(), 4U);
  for (const auto& list : {shorter, longer}) {
    for (const kernels::RowRef& row : list) EXPECT_EQ(row.page, PassingRow().page);
  }
}

TEST(JobTilerShapeTest, EmptyTensorsGiveNoJobs) {
  CutTensor no_heads({"THD", {3, 0, 4}, 1000});
  no_heads.Cut(0, 3);
  EXPECT_TRUE(no_heads.jobs().empty());
  CutTensor no_tokens({"HTD", {3, 0, 4}, 1000});
  no_tokens.Cut(0, 0);
  EXPECT_TRUE(no_tokens.jobs().empty());
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

}  // namespace
}  // namespace rope::server
