#include "tests/gpu/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_device.h"
#include "kernels/dtype/element.h"
#include "tests/gpu/yardsticks.h"
#include "tests/support/plain_frequencies.h"

namespace rope::bench {
namespace {

using kernels::CudaJob;

// No multiple of a head, so that no two heads, tokens or chunks of a tensor are equal.
constexpr int64_t kPatternElements = (int64_t{4} << 20) - 8;

int64_t HeadBytes(const Case& wanted) {
  return kHeadDim * kernels::ElementBytes(wanted.dtype);
}
int64_t TokenBytes(const Case& wanted) {
  return (wanted.query_heads + kKeyHeads) * HeadBytes(wanted);
}
int64_t RowBytes(const Case& wanted) {
  return 2 * wanted.pairs * static_cast<int64_t>(sizeof(float));
}

int64_t TensorBytes(const Case& wanted) {
  const auto& requests = wanted.requests;
  return TokenBytes(wanted) * std::accumulate(requests.begin(), requests.end(), int64_t{0});
}

int64_t LongestRequest(const Case& wanted) {
  return *std::max_element(wanted.requests.begin(), wanted.requests.end());
}

// Enough sets to exceed the cache several times. Only a few for a batch so small that its tensors
// would be in the cache in production too.
int SetCount(const Case& wanted) {
  constexpr int64_t kSmallBytes = int64_t{4} << 20;
  const int64_t set_bytes = TensorBytes(wanted) * (wanted.in_place ? 1 : 2);
  if (set_bytes < kSmallBytes) return 8;
  return static_cast<int>(std::max<int64_t>(2, 4 * Device().l2CacheSize / set_bytes + 1));
}

// [positions][2 * pairs]: cosines, then sines. A row alone is that of a position that turns.
std::vector<float> MakeTable(int64_t positions, int64_t pairs) {
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    frequencies.push_back(std::pow(1e4, -static_cast<double>(pair) / static_cast<double>(pairs)));
  }
  std::vector<float> values(static_cast<size_t>(positions * 2 * pairs));
  for (int64_t position = 0; position < positions; ++position) {
    float* const row = values.data() + position * 2 * pairs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(positions == 1 ? 1000 : position) *
                           frequencies[static_cast<size_t>(pair)];
      row[pair] = static_cast<float>(std::cos(angle));
      row[pairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
  return values;
}

std::vector<uint8_t> MakePattern(kernels::DType dtype) {
  const int64_t element_bytes = kernels::ElementBytes(dtype);
  std::vector<uint8_t> pattern(static_cast<size_t>(kPatternElements * element_bytes));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> number(-1, 1);
  for (int64_t i = 0; i < kPatternElements; ++i) {
    kernels::WriteElement(static_cast<double>(number(random)), dtype,
                          pattern.data() + i * element_bytes);
  }
  return pattern;
}

CudaJob MakeJob(const Case& wanted, int64_t tokens, int64_t heads) {
  CudaJob job;
  job.input_token = job.output_token = heads * kHeadDim;
  job.input_head = job.output_head = kHeadDim;
  job.tokens = static_cast<uint32_t>(tokens);
  job.heads = static_cast<uint32_t>(heads);
  job.head_dim = static_cast<uint32_t>(kHeadDim);
  job.pairs = job.partner = static_cast<uint32_t>(wanted.pairs);
  job.dtype = job.output_dtype = static_cast<uint32_t>(wanted.dtype);
  job.pairing = static_cast<uint32_t>(wanted.pairing);
  job.norm = wanted.norm ? 1 : 0;
  job.eps = 1e-6F;
  return job;
}

const kernels::CudaDevice& Kernels() {
  static const auto device = kernels::CudaDevice::Open();
  return device.value();
}

// Lives as long as the process: CUDA may end before static objects do.
kernels::DeviceExecutor& Executor() {
  static auto& executor = *new kernels::DeviceExecutor(int64_t{256} << 20);
  return executor;
}

const kernels::Frequencies& TheFrequencies() {
  static const kernels::Frequencies frequencies = testing::PlainFrequencies(kHeadDim / 2);
  return frequencies;
}

}  // namespace

void FillRandomly(void* memory, int64_t bytes, kernels::DType dtype) {
  static std::map<kernels::DType, std::vector<uint8_t>> patterns;
  std::vector<uint8_t>& pattern = patterns[dtype];
  if (pattern.empty()) pattern = MakePattern(dtype);
  auto* const begin = static_cast<uint8_t*>(memory);
  const auto whole = static_cast<int64_t>(pattern.size());
  int64_t done = std::min(whole, bytes);
  Check(cudaMemcpy(begin, pattern.data(), static_cast<size_t>(done), cudaMemcpyDefault),
        "random numbers");
  for (; done < bytes; done += whole) {
    Check(cudaMemcpy(begin + done, begin, static_cast<size_t>(std::min(whole, bytes - done)),
                     cudaMemcpyDefault),
          "random numbers");
  }
}

Workload::Workload(const Case& wanted)
    : case_(wanted),
      tensor_bytes_(TensorBytes(wanted)),
      table_(MakeTable(wanted.positions, wanted.pairs)),
      device_table_(wanted.positions * RowBytes(wanted)),
      device_positions_(LongestRequest(wanted) * static_cast<int64_t>(sizeof(int32_t))) {
  device_table_.Upload(table_.data(), device_table_.bytes());
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < LongestRequest(wanted); ++i) {
    positions.push_back(static_cast<int32_t>(i % case_.positions));
  }
  device_positions_.Upload(positions.data(), device_positions_.bytes());
  for (int i = SetCount(case_); i > 0; --i) sets_.push_back(MakeSet());
}

int64_t Workload::BytesNeeded(const Case& wanted) {
  const int64_t tensors = TensorBytes(wanted) * (wanted.in_place ? 1 : 2) * SetCount(wanted);
  const int64_t verified = wanted.in_place ? TensorBytes(wanted) : 0;
  return tensors + verified + wanted.positions * RowBytes(wanted) + (int64_t{256} << 20);
}

std::vector<Workload::Part> Workload::Parts() const {
  std::vector<Part> parts;
  int64_t offset = 0;
  for (const int64_t tokens : case_.requests) {
    for (const int64_t heads : {case_.query_heads, kKeyHeads}) {
      parts.push_back({offset, tokens, heads});
      offset += tokens * heads * HeadBytes(case_);
    }
  }
  return parts;
}

bool Workload::HasRectangles() const {
  const bool alone = case_.launch_each || case_.requests.size() == 1;
  return !case_.lists && alone && case_.pairs % 8 == 0;
}

Workload::Set Workload::MakeSet() const {
  Set set = {DeviceBuffer(tensor_bytes_),
             DeviceBuffer(case_.in_place ? 1 : tensor_bytes_),
             std::vector<std::vector<CudaJob>>(1),
             {},
             {},
             {}};
  FillRandomly(set.input.data(), tensor_bytes_, case_.dtype);
  uint8_t* const output = case_.in_place ? set.input.data() : set.output.data();
  const std::vector<Part> parts = Parts();
  for (size_t request = 0; request < case_.requests.size(); ++request) {
    if (case_.launch_each && request > 0) set.batches.emplace_back();
    const int64_t tokens = HasRectangles() ? case_.requests[request] : case_.positions;
    for (int64_t token = 0; token < case_.requests[request]; token += tokens) {
      for (const Part& part : {parts[2 * request], parts[2 * request + 1]}) {
        if (part.heads == 0) continue;
        CudaJob job = MakeJob(case_, std::min(tokens, part.tokens - token), part.heads);
        const int64_t offset = part.offset + token * part.heads * HeadBytes(case_);
        job.input = set.input.data() + offset;
        job.output = output + offset;
        job.rows = reinterpret_cast<const float*>(device_table_.data()) +
                   token % case_.positions * 2 * case_.pairs;
        set.batches.back().push_back(job);
      }
    }
  }
  PlanSet(set);
  return set;
}

kernels::DeviceJob Workload::MakeCall(const CudaJob& job, size_t tensor) const {
  const kernels::Strides strides = {.token = job.input_token, .head = job.input_head};
  kernels::DeviceRows rows;
  if (case_.positions == 1) {
    rows.one_row = table_.data();
  } else {
    rows.frequencies = &TheFrequencies();
    if (case_.positions < job.tokens) rows.positions = device_positions_.data();
  }
  return {.job = {.input = job.input,
                  .output = job.output,
                  .input_strides = strides,
                  .output_strides = strides,
                  .tokens = job.tokens,
                  .heads = job.heads,
                  .head_dim = job.head_dim,
                  .dtype = case_.dtype,
                  .geometry = {.pairing = case_.pairing, .pairs = job.pairs, .partner = job.pairs},
                  .rows = {}},
          .rows = rows,
          .tensor = tensor};
}

void Workload::PlanSet(Set& set) const {
  for (const std::vector<CudaJob>& jobs : set.batches) {
    set.plans.push_back(kernels::PlanCuda(jobs, {.rectangles = !case_.lists}));
    if (set.plans.back().rectangle.has_value()) {
      kernels::CudaRectangle& work = set.plans.back().rectangle->work;
      work.positions = device_positions_.data();
      work.row_count = case_.positions;
    }
    for (const CudaJob& job : jobs) {
      if (case_.calls) set.calls.push_back(MakeCall(job, set.calls.size()));
    }
    const std::vector<CudaJob>& planned = set.plans.back().jobs;
    const auto bytes = static_cast<int64_t>(planned.size() * sizeof(CudaJob));
    set.device_jobs.emplace_back(std::max<int64_t>(bytes, 1));
    set.device_jobs.back().Upload(planned.data(), bytes);
  }
}

void Workload::Rotate(cudaStream_t stream) {
  const Set& set = sets_[static_cast<size_t>(next_++ % sets())];
  if (case_.calls) {
    const auto called = Executor().Enqueue(set.calls, case_.positions, {.stream = stream});
    if (called.ok()) return;
    std::fprintf(stderr, "a call: %s\n", called.status().ToString().c_str());
    std::exit(1);
  }
  for (size_t i = 0; i < set.plans.size(); ++i) {
    const auto* jobs = reinterpret_cast<const CudaJob*>(set.device_jobs[i].data());
    // The runtime's errors have the driver's numbers.
    Check(static_cast<cudaError_t>(Kernels().Launch(set.plans[i], jobs, stream)), "a rotation");
  }
}

std::pair<const uint8_t*, uint8_t*> Workload::NextCopy() {
  const Set& from = sets_[static_cast<size_t>(next_++ % sets())];
  const Set& to = case_.in_place ? sets_[static_cast<size_t>(next_ % sets())] : from;
  return {from.input.data(), case_.in_place ? to.input.data() : to.output.data()};
}

void Workload::Copy(cudaStream_t stream) {
  const auto [from, to] = NextCopy();
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(tensor_bytes_), cudaMemcpyDeviceToDevice,
                        stream),
        "a copy");
}

void Workload::CopyByKernel(cudaStream_t stream) {
  const auto [from, to] = NextCopy();
  Check(LaunchCopy(from, to, tensor_bytes_, stream), "a copy by a kernel");
}

std::string Workload::Verify() {
  if (case_.norm || kernels::ElementBytes(case_.dtype) == 1) return "";
  next_ = 0;
  const Set& set = sets_[0];
  const DeviceBuffer original(case_.in_place ? set.input.bytes() : 1);
  const auto bytes = static_cast<size_t>(set.input.bytes());
  if (case_.in_place) {
    Check(cudaMemcpy(original.data(), set.input.data(), bytes, cudaMemcpyDeviceToDevice),
          "a copy of the input");
  } else {
    constexpr int kPoison = 0xff;  // not a number in any dtype
    Check(cudaMemset(set.output.data(), kPoison, bytes), "poison");
  }
  Check(cudaDeviceSynchronize(), "the fillings' end");
  Rotate(nullptr);
  Check(cudaDeviceSynchronize(), "a rotation's end");
  for (const Part& part : Parts()) {
    RotatedRectangle rectangle;
    rectangle.before = (case_.in_place ? original : set.input).data() + part.offset;
    rectangle.after = (case_.in_place ? set.input : set.output).data() + part.offset;
    rectangle.tokens = part.tokens;
    rectangle.heads = part.heads;
    rectangle.head_dim = kHeadDim;
    rectangle.pairs = case_.pairs;
    rectangle.table = reinterpret_cast<const float*>(device_table_.data());
    rectangle.positions = case_.positions;
    rectangle.dtype = static_cast<uint32_t>(case_.dtype);
    rectangle.half = case_.pairing == kernels::Pairing::kHalf;
    WrongElements wrong;
    Check(CountWrong(rectangle, &wrong), "a comparison");
    if (wrong.count == 0) continue;
    return absl::StrFormat(
        "%d of %d elements are wrong, the first is number %d of a tensor of %d "
        "tokens x %d heads",
        wrong.count, part.tokens * part.heads * kHeadDim, wrong.first, part.tokens, part.heads);
  }
  return "";
}

std::string Workload::CompareWith(const Workload& other) const {
  if (case_.norm) return "";  // their sums have another order
  const auto result_of = [](const Workload& workload) {
    const Set& set = workload.sets_[0];
    return (workload.case_.in_place ? set.input : set.output).data();
  };
  RotatedRectangle whole;  // without pairs: every channel has the same bits
  whole.before = result_of(other);
  whole.after = result_of(*this);
  whole.tokens = tensor_bytes_ / HeadBytes(case_);
  whole.heads = 1;
  whole.head_dim = kHeadDim;
  whole.dtype = static_cast<uint32_t>(case_.dtype);
  WrongElements wrong;
  Check(CountWrong(whole, &wrong), "a comparison");
  if (wrong.count == 0) return "";
  return absl::StrFormat("%d elements are not those of the lists", wrong.count);
}

}  // namespace rope::bench
