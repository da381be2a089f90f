#include "tests/support/fake_cuda_backend.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend/rotate_job.h"
#include "tests/support/fake_cuda_kernel.h"

namespace rope::testing {
namespace {

bool SharesOneRow(const kernels::RotateJob& job) {
  return job.tokens > 0 && job.SharesRow(0, job.tokens);
}

// The rows of the job's tokens, one behind the other, or the row that they share.
std::vector<float> RowsOf(const kernels::RotateJob& job) {
  std::vector<float> rows;
  for (const kernels::RowRef& row : job.rows) {
    const float* const begin = row.page->Cos(row.index);
    rows.insert(rows.end(), begin, begin + 2 * row.page->columns());
    if (SharesOneRow(job)) break;
  }
  return rows;
}

kernels::CudaJob CudaJobOf(const kernels::RotateJob& job, const float* rows) {
  kernels::CudaJob result = kernels::CudaJobOf(job);
  result.rows = rows;
  if (SharesOneRow(job)) result.one_row = rows;
  result.norm_weight = job.norm ? job.norm->weight : nullptr;
  result.token_scales = job.token_scales.empty() ? nullptr : job.token_scales.data();
  return result;
}

class CudaSourceBackend final : public kernels::Backend {
 public:
  explicit CudaSourceBackend(const kernels::CudaShapes& shapes) : shapes_(shapes) {}

  std::string_view name() const override { return "cuda_source"; }
  std::string detail() const override { return "the CUDA kernels' source on the CPU"; }

  absl::Status Rotate(absl::Span<const kernels::RotateJob> jobs) override {
    std::vector<std::vector<float>> rows;
    std::vector<kernels::CudaJob> cuda_jobs;
    for (const kernels::RotateJob& job : jobs) {
      kernels::CheckJob(job);
      rows.push_back(RowsOf(job));
      cuda_jobs.push_back(CudaJobOf(job, rows.back().data()));
    }
    RunCudaPlanOnCpu(kernels::PlanCuda(cuda_jobs, shapes_));
    return absl::OkStatus();
  }

 private:
  const kernels::CudaShapes shapes_;
};

}  // namespace

void RunCudaPlanOnCpu(const kernels::CudaPlan& plan) {
  if (plan.rectangle.has_value()) {
    RunCudaRectangleOnCpu(kernels::CudaRectangleName(plan.rectangle->kernel),
                          plan.rectangle->blocks, plan.rectangle->threads, plan.rectangle->work);
  }
  for (const kernels::CudaLaunch& launch : plan.launches) {
    RunCudaKernelOnCpu(launch.kernel, launch.blocks, launch.threads,
                       plan.jobs.data() + launch.first_job, launch.jobs);
  }
}

std::unique_ptr<kernels::Backend> MakeCudaSourceBackend(const kernels::CudaShapes& shapes) {
  return std::make_unique<CudaSourceBackend>(shapes);
}

}  // namespace rope::testing
