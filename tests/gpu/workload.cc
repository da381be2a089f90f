#include "tests/gpu/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/backend/cuda/cuda_launch.h"
#include "tests/conformance/rotation.h"

namespace rope::bench {
namespace {

using kernels::CudaJob;
using kernels::CudaPlan;

constexpr int64_t kPairs = kHeadDim / 2;
constexpr int64_t kRowBytes = kHeadDim * static_cast<int64_t>(sizeof(float));
constexpr int64_t kPatternElements = int64_t{4} << 20;

int64_t TokenBytes(const Case& wanted) {
  return (kQueryHeads + kKeyHeads) * kHeadDim * kernels::ElementBytes(wanted.dtype);
}

int64_t TensorBytes(const Case& wanted) {
  const auto& requests = wanted.requests;
  return TokenBytes(wanted) * std::accumulate(requests.begin(), requests.end(), int64_t{0});
}

// Enough sets to exceed the cache several times. Only a few for a batch so small that its tensors
// would be in the cache in production too.
int SetCount(const Case& wanted) {
  constexpr int64_t kSmallBytes = int64_t{4} << 20;
  const int64_t set_bytes = TensorBytes(wanted) * (wanted.in_place ? 1 : 2);
  if (set_bytes < kSmallBytes) return 8;
  return static_cast<int>(std::max<int64_t>(2, 4 * Device().l2CacheSize / set_bytes + 1));
}

kernels::TablePage MakeTable(int64_t positions) {
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < kPairs; ++pair) {
    frequencies.push_back(std::pow(1e4, -static_cast<double>(pair) / static_cast<double>(kPairs)));
  }
  std::vector<float> values(static_cast<size_t>(positions * kHeadDim));
  for (int64_t position = 0; position < positions; ++position) {
    float* const row = values.data() + position * kHeadDim;
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(pair)];
      row[pair] = static_cast<float>(std::cos(angle));
      row[kPairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
  return kernels::TablePage(positions, kPairs, std::move(values));
}

// Random numbers between -1 and 1.
DeviceBuffer MakePattern(kernels::DType dtype) {
  const int64_t element_bytes = kernels::ElementBytes(dtype);
  std::vector<uint8_t> pattern(static_cast<size_t>(kPatternElements * element_bytes));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> number(-1, 1);
  for (int64_t i = 0; i < kPatternElements; ++i) {
    testing::WriteElement(static_cast<double>(number(random)), dtype,
                          pattern.data() + i * element_bytes);
  }
  DeviceBuffer buffer(static_cast<int64_t>(pattern.size()));
  buffer.Upload(pattern.data(), buffer.bytes());
  return buffer;
}

void Fill(const DeviceBuffer& buffer, const DeviceBuffer& pattern) {
  for (int64_t done = 0; done < buffer.bytes(); done += pattern.bytes()) {
    const int64_t part = std::min(pattern.bytes(), buffer.bytes() - done);
    Check(cudaMemcpy(buffer.data() + done, pattern.data(), static_cast<size_t>(part),
                     cudaMemcpyDeviceToDevice),
          "random numbers");
  }
}

CudaJob MakeJob(const Case& wanted, const DeviceBuffer& rows, int64_t tokens, int64_t heads) {
  CudaJob job;
  job.rows = reinterpret_cast<const float* const*>(rows.data());
  job.input_token = job.output_token = heads * kHeadDim;
  job.input_head = job.output_head = kHeadDim;
  job.tokens = tokens;
  job.heads = heads;
  job.head_dim = static_cast<uint32_t>(kHeadDim);
  job.pairs = job.partner = static_cast<uint32_t>(kPairs);
  job.dtype = static_cast<uint32_t>(wanted.dtype);
  job.pairing = static_cast<uint32_t>(wanted.pairing);
  return job;
}

// Forces `shape` on a plan, whatever the planner chose for its size. The block size is unchanged.
void Reshape(CudaPlan& plan, Shape shape) {
  if (shape == Shape::kPlanned) return;
  const bool loop = shape == Shape::kTokenLoop;
  const uint32_t heads_per_thread = loop ? kernels::kCudaHeadsPerThread : 1;
  const uint32_t steps = loop ? kernels::kCudaSteps : 1;
  for (kernels::CudaLaunch& launch : plan.launches) {
    launch.blocks = 0;
    for (uint32_t i = launch.first_job; i < launch.first_job + launch.jobs; ++i) {
      CudaJob& job = plan.jobs[i];
      job.head_groups =
          (static_cast<uint32_t>(job.heads) + heads_per_thread - 1) / heads_per_thread;
      job.items = static_cast<uint32_t>(job.tokens) * job.head_groups * job.chunks;
      job.steps = steps;
      job.first_block = launch.blocks;
      launch.blocks += (job.items + launch.threads * steps - 1) / (launch.threads * steps);
    }
  }
}

[[noreturn]] void FailVerification(int64_t token, int64_t head, int64_t channel, double got,
                                   double want) {
  std::fprintf(stderr,
               "rope_bench_cuda: token %lld, head %lld, channel %lld: got %.9g, want %.9g\n",
               static_cast<long long>(token), static_cast<long long>(head),
               static_cast<long long>(channel), got, want);
  std::exit(1);
}

}  // namespace

Workload::Workload(const Case& wanted)
    : case_(wanted),
      tensor_bytes_(TensorBytes(wanted)),
      table_(MakeTable(wanted.positions)),
      device_table_(wanted.positions * kRowBytes),
      device_rows_(*std::max_element(wanted.requests.begin(), wanted.requests.end()) *
                   static_cast<int64_t>(sizeof(float*))) {
  device_table_.Upload(table_.Cos(0), device_table_.bytes());
  std::vector<const uint8_t*> rows;
  for (size_t i = 0; i < static_cast<size_t>(device_rows_.bytes()) / sizeof(float*); ++i) {
    rows.push_back(device_table_.data() + static_cast<int64_t>(i) % case_.positions * kRowBytes);
  }
  device_rows_.Upload(rows.data(), device_rows_.bytes());
  const DeviceBuffer pattern = MakePattern(case_.dtype);
  for (int i = SetCount(case_); i > 0; --i) sets_.push_back(MakeSet(pattern));
}

int64_t Workload::BytesNeeded(const Case& wanted) {
  const int64_t tensors = TensorBytes(wanted) * (wanted.in_place ? 1 : 2) * SetCount(wanted);
  return tensors + wanted.positions * kRowBytes + (int64_t{256} << 20);
}

Workload::Set Workload::MakeSet(const DeviceBuffer& pattern) const {
  Set set = {DeviceBuffer(tensor_bytes_), DeviceBuffer(case_.in_place ? 1 : tensor_bytes_), {}, {}};
  Fill(set.input, pattern);
  const uint8_t* input = set.input.data();
  uint8_t* output = case_.in_place ? set.input.data() : set.output.data();
  std::vector<std::vector<CudaJob>> batches(1);
  for (const int64_t tokens : case_.requests) {
    if (case_.launch_each && !batches.back().empty()) batches.emplace_back();
    for (const int64_t heads : {kQueryHeads, kKeyHeads}) {
      CudaJob job = MakeJob(case_, device_rows_, tokens, heads);
      job.input = input;
      job.output = output;
      batches.back().push_back(job);
      const int64_t bytes = tokens * heads * kHeadDim * kernels::ElementBytes(case_.dtype);
      input += bytes;
      output += bytes;
    }
  }
  for (const std::vector<CudaJob>& jobs : batches) {
    set.plans.push_back(kernels::PlanCuda(jobs));
    Reshape(set.plans.back(), case_.shape);
    const std::vector<CudaJob>& planned = set.plans.back().jobs;
    set.device_jobs.emplace_back(static_cast<int64_t>(planned.size() * sizeof(CudaJob)));
    set.device_jobs.back().Upload(planned.data(), set.device_jobs.back().bytes());
  }
  return set;
}

void Workload::Rotate(cudaStream_t stream) {
  const Set& set = sets_[static_cast<size_t>(next_++ % sets())];
  for (size_t i = 0; i < set.plans.size(); ++i) {
    const auto* jobs = reinterpret_cast<const CudaJob*>(set.device_jobs[i].data());
    Check(kernels::LaunchCuda(set.plans[i], jobs, stream), "a rotation");
  }
}

void Workload::Copy(cudaStream_t stream) {
  const Set& from = sets_[static_cast<size_t>(next_++ % sets())];
  const Set& to = case_.in_place ? sets_[static_cast<size_t>(next_ % sets())] : from;
  Check(cudaMemcpyAsync(case_.in_place ? to.input.data() : to.output.data(), from.input.data(),
                        static_cast<size_t>(tensor_bytes_), cudaMemcpyDeviceToDevice, stream),
        "a copy");
}

void Workload::Verify() {
  next_ = 0;
  const Set& set = sets_[0];
  std::vector<Sample> samples;
  const int64_t tokens = case_.requests[0];
  for (const int64_t token : {int64_t{0}, tokens / 2, tokens - 1}) {
    samples.push_back(MakeSample(0, kQueryHeads, token));
    samples.push_back(MakeSample(tokens * kQueryHeads, kKeyHeads, token));
  }
  for (Sample& sample : samples) {
    set.input.Download(sample.before.data(), sample.offset, sample.bytes());
  }
  if (!case_.in_place) {
    constexpr int kPoison = 0xff;  // not a number in any dtype
    Check(cudaMemset(set.output.data(), kPoison, static_cast<size_t>(tensor_bytes_)), "poison");
  }
  Rotate(nullptr);
  Check(cudaDeviceSynchronize(), "a rotation's end");
  for (Sample& sample : samples) {
    const DeviceBuffer& result = case_.in_place ? set.input : set.output;
    result.Download(sample.after.data(), sample.offset, sample.bytes());
    VerifySample(sample);
  }
}

Workload::Sample Workload::MakeSample(int64_t first_vector, int64_t heads, int64_t token) const {
  const int64_t head_bytes = kHeadDim * kernels::ElementBytes(case_.dtype);
  const std::vector<uint8_t> memory(static_cast<size_t>(heads * head_bytes));
  return {token, heads, (first_vector + token * heads) * head_bytes, memory, memory};
}

void Workload::VerifySample(const Sample& sample) const {
  const int64_t element_bytes = kernels::ElementBytes(case_.dtype);
  const bool half = case_.pairing == kernels::Pairing::kHalf;
  const float* const cos = table_.Cos(sample.token % case_.positions);
  const float* const sin = table_.Sin(sample.token % case_.positions);
  for (int64_t head = 0; head < sample.heads; ++head) {
    const auto read = [&](const std::vector<uint8_t>& tensor, int64_t channel) {
      return testing::ReadElement(tensor.data() + (head * kHeadDim + channel) * element_bytes,
                                  case_.dtype);
    };
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      const int64_t first = half ? pair : 2 * pair;
      const int64_t second = half ? pair + kPairs : 2 * pair + 1;
      const double a = read(sample.before, first);
      const double b = read(sample.before, second);
      const double c = static_cast<double>(cos[pair]);
      const double s = static_cast<double>(sin[pair]);
      for (const auto& [channel, want] :
           {std::pair(first, a * c - b * s), std::pair(second, b * c + a * s)}) {
        const double got = read(sample.after, channel);
        const double allowed = testing::Tolerance(want, a, b, 1, case_.dtype);
        if (!(std::abs(got - want) <= allowed)) {
          FailVerification(sample.token, head, channel, got, want);
        }
      }
    }
  }
}

}  // namespace rope::bench
