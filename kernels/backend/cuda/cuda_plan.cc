#include "kernels/backend/cuda/cuda_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/backend/rotate_job.h"
#include "kernels/check.h"

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

// Of an access to the job's tensors.
int64_t VectorBytes(const CudaJob& job) {
  return IsFloat8(static_cast<DType>(job.dtype)) ? kVectorBytes / 2 : kVectorBytes;
}

bool FitsVector(const CudaJob& job) {
  const int64_t width = VectorBytes(job) / InputBytes(job);
  const int64_t multiples[] = {job.input_token, job.input_head, job.output_token, job.output_head,
                               job.head_dim,    job.pairs,      job.offset,       job.partner};
  return IsAligned(job.input, VectorBytes(job)) && IsAligned(job.output, VectorBytes(job)) &&
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

// Rounded up.
int64_t Quotient(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit;
}

// Adds the launch of `jobs`, whose chunks are known and not 0.
void AddLaunch(CudaKernel kernel, const std::vector<CudaJob>& jobs, const Shape& shape,
               CudaPlan& plan) {
  if (jobs.empty()) return;
  CudaLaunch& launch = plan.launches.emplace_back();
  launch.kernel = kernel;
  launch.first_job = static_cast<uint32_t>(plan.jobs.size());
  launch.jobs = static_cast<uint32_t>(jobs.size());
  launch.threads = shape.threads;
  int64_t blocks = 0;
  for (CudaJob job : jobs) {
    const int64_t groups = Quotient(job.heads, shape.heads_per_thread);
    ROPE_CHECK(job.tokens <= kCudaItemsMax / job.chunks / groups);
    const int64_t items = job.tokens * groups * job.chunks;
    job.head_groups = static_cast<uint32_t>(groups);
    job.items = static_cast<uint32_t>(items);
    job.first_block = static_cast<uint32_t>(blocks);
    blocks += Quotient(items, shape.threads);
    plan.jobs.push_back(job);
  }
  ROPE_CHECK(blocks <= std::numeric_limits<int32_t>::max());
  launch.blocks = static_cast<uint32_t>(blocks);
}

// --- rectangles ---

CudaOps OpsOf(const CudaJob& job) {
  if (job.arithmetic == static_cast<uint32_t>(PairArithmetic::kTurnStepwise)) {
    return CudaOps::kStepwise;
  }
  return job.copies != 0 ? CudaOps::kTurn : CudaOps::kFused;
}

// Threads of a head: one for each vector of pairs, and one for each two vectors outside the pairs.
int64_t RectangleChunks(const CudaJob& job) {
  const int64_t width = VectorBytes(job) / InputBytes(job);
  const bool stay = job.copies != 0 && job.input == job.output;
  const int64_t copied = stay ? 0 : job.head_dim - 2 * int64_t{job.pairs};
  return job.pairs / width + Quotient(copied / width, 2);
}

// Whether the job alone is a rectangle.
bool FitsRectangle(const CudaJob& job) {
  const CudaOps ops = OpsOf(job);
  const int64_t chunks = RectangleChunks(job);
  const bool converts = job.output_dtype != job.dtype || job.output_scale != 1;
  if (job.arithmetic == static_cast<uint32_t>(PairArithmetic::kAdd) || converts) return false;
  if (ops == CudaOps::kStepwise && job.copies == 0) return false;
  if (ops != CudaOps::kTurn && IsFloat8(static_cast<DType>(job.dtype))) return false;
  // A head with a norm is a part of a warp.
  if (job.norm != 0 && (chunks > 32 || (chunks & (chunks - 1)) != 0)) return false;
  return chunks > 0 && chunks <= kCudaThreads && FitsVector(job) &&
         IsAligned(job.rows, kVectorBytes) && IsAligned(job.norm_weight, kVectorBytes);
}

// Whether both can be tensors of one rectangle.
bool ShareRectangle(const CudaJob& job, const CudaJob& other) {
  const auto shared = [](const CudaJob& from) {
    return std::array<int64_t, 9>{from.tokens,  from.head_dim,  from.pairs,
                                  from.offset,  from.partner,   from.dtype,
                                  from.pairing, from.conjugate, RectangleChunks(from)};
  };
  return shared(job) == shared(other) && job.rows == other.rows && OpsOf(job) == OpsOf(other);
}

// The threads of a block: as many heads as no tensor leaves unused, then tokens.
CudaGrid ThreadsOf(const std::vector<CudaJob>& jobs, const CudaShapes& shapes) {
  double items = 0;
  for (const CudaJob& job : jobs) {
    items += static_cast<double>(RectangleChunks(job)) * job.tokens * job.heads;
  }
  CudaGrid threads;
  threads.x = static_cast<uint32_t>(RectangleChunks(jobs.front()));
  const uint32_t most = items < shapes.items_few ? kCudaThreadsFew : kCudaThreads;
  const auto fits = [&](uint32_t heads) {
    return heads * threads.x <= most &&
           std::all_of(jobs.begin(), jobs.end(),
                       [heads](const CudaJob& job) { return job.heads % heads == 0; });
  };
  while (fits(2 * threads.y)) threads.y *= 2;
  const uint32_t tokens = std::min(most / (threads.x * threads.y), jobs.front().tokens);
  threads.z = std::clamp<uint32_t>(tokens, 1, 64);  // CUDA's limit
  return threads;
}

// A row that all tokens share travels with the launch.
void SetRows(const CudaJob& job, CudaRectangle& work) {
  work.rows = job.rows;
  work.row_step = job.one_row != nullptr ? 0 : 1;
  work.row_count = job.one_row != nullptr ? 1 : job.tokens;
  if (job.one_row == nullptr || job.pairs > kCudaRowPairs) return;
  work.rows = nullptr;
  std::memcpy(work.row, job.one_row, 2 * job.pairs * sizeof(float));
}

// Unset if the jobs are no rectangle.
std::optional<CudaRectangleLaunch> RectangleOf(const std::vector<CudaJob>& jobs,
                                               const CudaShapes& shapes) {
  if (!shapes.rectangles || jobs.empty() || jobs.size() > kCudaTensors) return std::nullopt;
  const CudaJob& first = jobs.front();
  for (const CudaJob& job : jobs) {
    if (!FitsRectangle(job) || !ShareRectangle(first, job)) return std::nullopt;
  }
  constexpr int64_t kBlocksMax = 65535;  // CUDA's limit of y and z
  CudaRectangleLaunch launch;
  launch.kernel = CudaRectangleKernel(OpsOf(first), static_cast<DType>(first.dtype),
                                      static_cast<Pairing>(first.pairing));
  launch.threads = ThreadsOf(jobs, shapes);
  const int64_t tokens = Quotient(first.tokens, launch.threads.z);
  launch.blocks.x = 0;
  launch.blocks.y = static_cast<uint32_t>(std::min(tokens, kBlocksMax));
  launch.blocks.z = static_cast<uint32_t>(Quotient(tokens, launch.blocks.y));
  CudaRectangle& work = launch.work;
  for (CudaJob& job : work.jobs) job.first_block = kCudaNoBlock;
  for (size_t i = 0; i < jobs.size(); ++i) {
    work.jobs[i] = jobs[i];
    work.jobs[i].first_block = launch.blocks.x;
    launch.blocks.x += static_cast<uint32_t>(Quotient(jobs[i].heads, launch.threads.y));
  }
  SetRows(first, work);
  return launch;
}

}  // namespace

CudaJob CudaJobOf(const RotateJob& job) {
  CudaJob result;
  result.input = job.input;
  result.output = job.output;
  result.input_token = job.input_strides.token;
  result.input_head = job.input_strides.head;
  result.output_token = job.output_strides.token;
  result.output_head = job.output_strides.head;
  result.tokens = static_cast<uint32_t>(job.tokens);
  result.heads = static_cast<uint32_t>(job.heads);
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

uint32_t CudaRectangleKernel(CudaOps ops, DType dtype, Pairing pairing) {
  return (static_cast<uint32_t>(ops) * 5 + static_cast<uint32_t>(dtype)) * 2 +
         (pairing == Pairing::kHalf ? 0 : 1);
}

std::string CudaRectangleName(uint32_t kernel) {
  constexpr const char* kOps[] = {"Turn", "Stepwise", "Fused"};
  constexpr const char* kDTypes[] = {"Float32", "Float16", "BFloat16", "Float8E4M3", "Float8E5M2"};
  const uint32_t ops = kernel / 10;
  const uint32_t dtype = kernel / 2 % 5;
  if (ops != 0 && IsFloat8(static_cast<DType>(dtype))) return "";
  return std::string("Rectangle") + kOps[ops] + kDTypes[dtype] +
         (kernel % 2 == 0 ? "Half" : "Interleaved");
}

std::optional<CudaRectangleLaunch> PlanCudaRectangle(std::vector<CudaJob> jobs) {
  for (CudaJob& job : jobs) job = Normalized(job);
  return RectangleOf(jobs, {});
}

CudaPlan PlanCuda(const std::vector<CudaJob>& jobs, const CudaShapes& shapes) {
  std::vector<CudaJob> all;
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
    all.push_back(job);
  }
  CudaPlan plan;
  plan.rectangle = RectangleOf(all, shapes);
  if (plan.rectangle.has_value()) return plan;
  for (const CudaKernel kernel : {CudaKernel::kVector, CudaKernel::kScalar, CudaKernel::kFused}) {
    const auto group = static_cast<size_t>(kernel);
    AddLaunch(kernel, groups[group], ShapeFor(items[group], shapes), plan);
  }
  return plan;
}

}  // namespace rope::kernels
