#include "kernels/backend/cuda/cuda_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/check.h"
#include "kernels/dtype/dtype.h"
#include "kernels/dtype/pairing.h"

namespace rope::kernels {
namespace {

constexpr int64_t kVectorBytes = 16;

bool IsAligned(const void* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether there is nothing beside the rotation.
bool OnlyPairs(const CudaJob& job) {
  return job.norm == 0 && job.scale == 1 && job.token_scales == nullptr &&
         job.output_dtype == job.dtype && job.output_scale == 1;
}

// What every kernel may rely on, and one form for geometries that mean the same.
CudaJob Normalized(CudaJob job) {
  ROPE_CHECK(job.head_dim <= kCudaHeadDimMax);
  ROPE_CHECK(uint64_t{2} * job.pairs <= job.head_dim);
  if (job.pairs == 0) job.offset = 0;
  if (job.pairs == 0 || job.pairing == static_cast<uint32_t>(Pairing::kInterleaved)) {
    job.partner = job.pairs;
  }
  ROPE_CHECK(job.partner >= job.pairs);
  ROPE_CHECK(uint64_t{job.offset} + job.partner + job.pairs <= job.head_dim);
  if (job.tokens <= 1) job.input_token = job.output_token = 0;
  if (job.heads <= 1) job.input_head = job.output_head = 0;
  if (job.output_dtype == kCudaInputDType) job.output_dtype = job.dtype;
  job.channel_share = 1.0 / job.head_dim;
  job.inverse_output = 1.0 / double{job.output_scale};
  job.copies = OnlyPairs(job) ? 1 : 0;
  return job;
}

int64_t InputBytes(const CudaJob& job) {
  return ElementBytes(static_cast<DType>(job.dtype));
}
int64_t OutputBytes(const CudaJob& job) {
  return ElementBytes(static_cast<DType>(job.output_dtype));
}

bool FitsVector(const CudaJob& job) {
  const int64_t width = kVectorBytes / InputBytes(job);
  const int64_t multiples[] = {job.input_token, job.input_head, job.output_token, job.output_head,
                               job.head_dim,    job.pairs,      job.offset,       job.partner};
  return IsAligned(job.input, kVectorBytes) && IsAligned(job.output, kVectorBytes) &&
         std::all_of(std::begin(multiples), std::end(multiples),
                     [width](int64_t value) { return value % width == 0; });
}

CudaKernel KernelFor(const CudaJob& job) {
  const bool turns = job.arithmetic == static_cast<uint32_t>(PairArithmetic::kTurn);
  const bool aligned =
      IsAligned(job.input, InputBytes(job)) && IsAligned(job.output, OutputBytes(job));
  if (!turns || job.copies == 0 || !aligned) return CudaKernel::kFused;
  return FitsVector(job) ? CudaKernel::kVector : CudaKernel::kScalar;
}

// Items along a head. kVector: one per vector of pairs and one per two vectors to copy. The other
// kernels: one per pair and one per channel to copy. With a norm: 1, since a thread takes the head.
uint32_t Chunks(const CudaJob& job, CudaKernel kernel) {
  if (job.norm != 0) return 1;
  const bool stay = job.copies != 0 && job.input == job.output;
  const uint32_t copied = stay ? 0 : job.head_dim - 2 * job.pairs;
  if (kernel != CudaKernel::kVector) return job.pairs + copied;
  const auto width = static_cast<uint32_t>(kVectorBytes / InputBytes(job));
  return job.pairs / width + (copied / width + 1) / 2;
}

// The shape of one launch.
struct Shape {
  uint32_t threads = kCudaThreads;
  uint32_t heads_per_thread = 2;
};

Shape ShapeFor(double items, const CudaShapes& shapes) {
  Shape shape;
  if (items < shapes.items_few) return {kCudaThreadsFew, 1};
  while (shape.heads_per_thread < kCudaHeadsPerThread &&
         items >= shapes.items_per_head * 2 * shape.heads_per_thread) {
    shape.heads_per_thread *= 2;
  }
  return shape;
}

// Whether q of `job` and k of `other`, say, read the same rows.
bool SharesRows(const CudaJob& job, const CudaJob& other) {
  return job.rows == other.rows && job.tokens == other.tokens && job.pairs == other.pairs;
}

// Fills one launch, from jobs whose chunks are known and not 0.
class LaunchBuilder {
 public:
  LaunchBuilder(CudaKernel kernel, const Shape& shape, CudaPlan& plan)
      : shape_(shape), plan_(plan) {
    launch_.kernel = kernel;
    launch_.first_job = static_cast<uint32_t>(plan.jobs.size());
    launch_.threads = shape.threads;
  }

  // Adds a group of jobs whose blocks take turns in `tiles` tiles.
  void Add(absl::Span<CudaJob> group, int64_t tiles) {
    int64_t blocks = 0;  // of a tile
    for (CudaJob& job : group) {
      const int64_t groups = Quotient(job.heads, shape_.heads_per_thread);
      ROPE_CHECK(job.tokens <= kCudaItemsMax / job.chunks / groups);
      const int64_t items = job.tokens * groups * job.chunks;
      job.head_groups = static_cast<uint32_t>(groups);
      job.items = static_cast<uint32_t>(items);
      job.first_block = static_cast<uint32_t>(blocks_);
      job.tile_first = static_cast<uint32_t>(blocks);
      job.tile_blocks = static_cast<uint32_t>(Quotient(Quotient(items, shape_.threads), tiles));
      blocks += job.tile_blocks;
    }
    for (CudaJob& job : group) job.group_blocks = static_cast<uint32_t>(blocks);
    blocks_ += tiles * blocks;
    plan_.jobs.insert(plan_.jobs.end(), group.begin(), group.end());
  }

  void Finish() {
    ROPE_CHECK(blocks_ <= std::numeric_limits<int32_t>::max());
    launch_.blocks = static_cast<uint32_t>(blocks_);
    launch_.jobs = static_cast<uint32_t>(plan_.jobs.size()) - launch_.first_job;
    if (launch_.jobs > 0) plan_.launches.push_back(launch_);
  }

 private:
  // Rounded up.
  static int64_t Quotient(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

  const Shape shape_;
  CudaPlan& plan_;
  CudaLaunch launch_;
  int64_t blocks_ = 0;
};

// Adds the jobs, those of several tiles with the later ones that share their rows.
void AddGroups(std::vector<CudaJob>& jobs, int64_t tile_tokens, LaunchBuilder& builder) {
  for (auto first = jobs.begin(); first != jobs.end();) {
    const int64_t tiles = first->tokens / tile_tokens;
    auto end = first + 1;
    if (tiles > 1) {
      end = std::stable_partition(end, jobs.end(),
                                  [first](const CudaJob& job) { return SharesRows(*first, job); });
    }
    const bool alone = end - first == 1;
    builder.Add(absl::MakeSpan(&*first, static_cast<size_t>(end - first)), alone ? 1 : tiles);
    first = end;
  }
}

}  // namespace

CudaJob CudaSettings(const RotateJob& job) {
  CudaJob result;
  result.head_dim = static_cast<uint32_t>(job.head_dim);
  result.pairs = static_cast<uint32_t>(job.geometry.pairs);
  result.offset = static_cast<uint32_t>(job.geometry.offset);
  result.partner = static_cast<uint32_t>(job.geometry.partner);
  result.dtype = static_cast<uint32_t>(job.dtype);
  result.pairing = static_cast<uint32_t>(job.geometry.pairing);
  result.conjugate = job.conjugate ? 1 : 0;
  result.arithmetic = static_cast<uint32_t>(job.arithmetic);
  result.norm = job.norm ? 1 : 0;
  result.eps = job.norm ? job.norm->eps : 0;
  result.scale = job.scale;
  result.output_dtype = static_cast<uint32_t>(job.stored());
  result.output_scale = job.output_scale;
  return result;
}

CudaPlan PlanCuda(const std::vector<CudaJob>& jobs, const CudaShapes& shapes) {
  std::vector<CudaJob> groups[3];
  double items[3] = {0, 0, 0};
  for (const CudaJob& given : jobs) {
    CudaJob job = Normalized(given);
    const CudaKernel kernel = KernelFor(job);
    job.chunks = Chunks(job, kernel);
    if (job.tokens == 0 || job.heads == 0 || job.chunks == 0) continue;
    const auto group = static_cast<size_t>(kernel);
    items[group] += static_cast<double>(job.tokens) * static_cast<double>(job.heads) * job.chunks;
    groups[group].push_back(job);
  }
  CudaPlan plan;
  for (const CudaKernel kernel : {CudaKernel::kVector, CudaKernel::kScalar, CudaKernel::kFused}) {
    const auto group = static_cast<size_t>(kernel);
    LaunchBuilder builder(kernel, ShapeFor(items[group], shapes), plan);
    AddGroups(groups[group], shapes.tile_tokens, builder);
    builder.Finish();
  }
  return plan;
}

}  // namespace rope::kernels
