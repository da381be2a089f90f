#include "server/engine/job_tiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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
    JobTiler::Shared shared;
    shared.end = layout->tokens();
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
