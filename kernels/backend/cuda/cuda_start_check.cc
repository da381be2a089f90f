#include "kernels/backend/cuda/cuda_start_check.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/tables/page_builder.h"

namespace rope::kernels {
namespace {

// Rows that turn a quarter, so that results are exact: (a, b) -> (-b, a).
TablePage QuarterTurns(int64_t columns) {
  std::vector<float> values;
  for (int64_t i = 0; i < kPageRows * 2 * columns; ++i) {
    values.push_back(i / columns % 2 == 0 ? 0.0F : 1.0F);
  }
  TablePage page(kPageRows, columns, std::move(values));
  page.set_cached();
  return page;
}

// One job of a kernel: `tokens` heads of fp32.
class Trial {
 public:
  Trial(const char* kernel, int64_t head_dim, int64_t tokens, float scale)
      : kernel_(kernel), page_(QuarterTurns(head_dim / 2)) {
    for (int64_t i = 0; i < tokens; ++i) rows_.push_back({&page_, i});
    for (int64_t i = 0; i < tokens * head_dim; ++i) input_.push_back(static_cast<float>(i + 1));
    output_.resize(input_.size());
    job_.input = input_.data();
    job_.output = output_.data();
    job_.input_strides = job_.output_strides = {head_dim, head_dim};
    job_.tokens = tokens;
    job_.heads = 1;
    job_.head_dim = head_dim;
    job_.geometry = {Pairing::kHalf, head_dim / 2, 0, head_dim / 2};
    job_.rows = rows_;
    job_.scale = scale;
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  absl::Status Run(Backend& backend, size_t copies) {
    ROPE_RETURN_IF_ERROR(backend.Rotate(std::vector<RotateJob>(copies, job_)));
    const auto head_dim = static_cast<size_t>(job_.head_dim);
    for (size_t i = 0; i < input_.size(); ++i) {
      const bool first = i % head_dim < head_dim / 2;
      const float want =
          job_.scale * (first ? -input_[i + head_dim / 2] : input_[i - head_dim / 2]);
      if (output_[i] == want) continue;
      return MakeError(Reason::kInternal, StrCat("cuda: result ", i, " of ", kernel_), output_[i],
                       want);
    }
    return absl::OkStatus();
  }

 private:
  const char* kernel_;
  const TablePage page_;
  std::vector<RowRef> rows_;
  std::vector<float> input_;
  std::vector<float> output_;
  RotateJob job_;
};

}  // namespace

absl::Status CheckCudaBackend(Backend& backend) {
  Trial trials[] = {{"RotateVector", 8, 1, 1},
                    {"RotateScalar", 6, 1, 1},
                    {"RotateFused", 8, 1, 2},
                    {"RotateVector with rows of the mirror", 8, kPageRows, 1}};
  for (Trial& trial : trials) {
    ROPE_RETURN_IF_ERROR(trial.Run(backend, 1));
    ROPE_RETURN_IF_ERROR(trial.Run(backend, kCudaJobsByValue + 1));
  }
  return absl::OkStatus();
}

}  // namespace rope::kernels
