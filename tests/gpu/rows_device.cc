// Rows about tensors in device memory: q of 32 heads and k of 8, head_dim 128, one launch for both.
//   copy/TOKENS                 bandwidth of a device-to-device copy of the same bytes
//   kernel/...                  the rotation; up to 64 tokens by graph replay, with tensors that
//                               fit the cache, and more by events, over several times the cache
//   ragged/...                  64 requests of different lengths: one launch against 64
// GB/s counts bytes read and bytes written; share is the copy's time over the rotation's.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/device.h"
#include "tests/gpu/rows.h"
#include "tests/gpu/workload.h"

namespace rope::bench {
namespace {

using kernels::DType;
using kernels::Pairing;

constexpr int kRounds = 15;
constexpr int64_t kGraphTokensMax = 64;
constexpr int64_t kPrefill = 131072;

CudaMeasurement NotMeasured(int64_t bytes) {
  CudaMeasurement result;
  result.measurement.measured = false;
  result.measurement.unit = "us";
  result.measurement.yardstick =
      absl::StrFormat("not measured: needs %.1f GiB of free device memory",
                      static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
  return result;
}

int64_t Tokens(const Case& wanted) {
  int64_t tokens = 0;
  for (const int64_t request : wanted.requests) tokens += request;
  return tokens;
}

// Seconds of one rotation and of one copy, side by side.
std::pair<double, double> RotateAndCopySeconds(const Case& wanted, Workload& workload) {
  const Enqueue rotate = [&](cudaStream_t stream) { workload.Rotate(stream); };
  const Enqueue copy = [&](cudaStream_t stream) { workload.Copy(stream); };
  if (Tokens(wanted) <= kGraphTokensMax) {
    constexpr int kNodes = 512;
    const Graph rotations(rotate, kNodes);
    const Graph copies(copy, kNodes);
    const auto seconds = DeviceSeconds({[&](cudaStream_t stream) { rotations.Launch(stream); },
                                        [&](cudaStream_t stream) { copies.Launch(stream); }},
                                       kRounds);
    return {seconds[0] / kNodes, seconds[1] / kNodes};
  }
  constexpr int64_t kBytes = int64_t{8} << 30;  // a measurement moves at least this much
  const int calls = static_cast<int>(
      std::clamp<int64_t>(kBytes / (2 * workload.tensor_bytes()), workload.sets(), 256));
  const auto repeated = [calls](const Enqueue& enqueue) {
    return [calls, &enqueue](cudaStream_t stream) {
      for (int i = 0; i < calls; ++i) enqueue(stream);
    };
  };
  const auto seconds = DeviceSeconds({repeated(rotate), repeated(copy)}, kRounds);
  return {seconds[0] / calls, seconds[1] / calls};
}

// One rotation of q and k; `bar_on_time`: the bar is about microseconds, and not about the share.
CudaMeasurement MeasureKernel(const Case& wanted, bool bar_on_time) {
  const int64_t needed = Workload::BytesNeeded(wanted);
  if (needed > FreeDeviceBytes()) return NotMeasured(needed);
  Workload workload(wanted);
  workload.Verify();
  const auto [rotate, copy] = RotateAndCopySeconds(wanted, workload);
  const double bytes = 2 * static_cast<double>(workload.tensor_bytes());
  CudaMeasurement result;
  result.microseconds = rotate * 1e6;
  result.gigabytes_per_second = bytes / rotate * 1e-9;
  result.share = copy / rotate;
  result.measurement = {.value = result.microseconds,
                        .unit = "us",
                        .yardstick = absl::StrFormat("copy %.2f us, %s", copy * 1e6,
                                                     GigabytesPerSecond(bytes, copy))};
  if (!bar_on_time) result.measurement.ratio = result.share;
  return result;
}

CudaMeasurement MeasureCopy(int64_t tokens) {
  const Case wanted = {.requests = {tokens}};
  const int64_t needed = Workload::BytesNeeded(wanted);
  if (needed > FreeDeviceBytes()) return NotMeasured(needed);
  Workload workload(wanted);
  const double copy = RotateAndCopySeconds(wanted, workload).second;
  const double bytes = 2 * static_cast<double>(workload.tensor_bytes());
  CudaMeasurement result;
  result.microseconds = copy * 1e6;
  result.gigabytes_per_second = bytes / copy * 1e-9;
  result.measurement = {
      .value = result.gigabytes_per_second,
      .unit = "GB/s",
      .yardstick = absl::StrFormat("%.1f MB in %d sets", bytes * 0.5e-6, workload.sets())};
  return result;
}

// 1 to 512 tokens, most of them few, as decode steps and chunks of prompts share a batch.
std::vector<int64_t> RaggedRequests() {
  std::vector<int64_t> requests;
  for (int64_t i = 0; i < 64; ++i) requests.push_back(i % 4 == 3 ? 1 + i * 37 % 512 : 1 + i % 5);
  return requests;
}

CudaMeasurement MeasureRagged(bool replay) {
  Case wanted = {.requests = RaggedRequests()};
  Workload grouped(wanted);
  wanted.launch_each = true;
  Workload single(wanted);
  grouped.Verify();
  single.Verify();
  const int calls = 64;
  const Enqueue functions[] = {[&](cudaStream_t stream) { grouped.Rotate(stream); },
                               [&](cudaStream_t stream) { single.Rotate(stream); }};
  std::vector<double> seconds;
  if (replay) {
    const Graph one(functions[0], calls);
    const Graph many(functions[1], calls);
    seconds = DeviceSeconds({[&](cudaStream_t stream) { one.Launch(stream); },
                             [&](cudaStream_t stream) { many.Launch(stream); }},
                            kRounds);
  } else {
    const auto repeated = [](const Enqueue& enqueue) {
      return [&enqueue](cudaStream_t stream) {
        for (int i = 0; i < calls; ++i) enqueue(stream);
      };
    };
    seconds = DeviceSeconds({repeated(functions[0]), repeated(functions[1])}, kRounds);
  }
  CudaMeasurement result;
  result.microseconds = seconds[0] / calls * 1e6;
  result.gigabytes_per_second =
      2 * static_cast<double>(grouped.tensor_bytes()) * calls / seconds[0] * 1e-9;
  result.measurement = {
      .value = result.microseconds,
      .unit = "us",
      .yardstick = absl::StrFormat("%d launches %.2f us (%.1f times as long)", single.launches(),
                                   seconds[1] / calls * 1e6, seconds[1] / seconds[0])};
  return result;
}

std::string NameOf(const Case& wanted) {
  std::string name = absl::StrCat("kernel/", std::string(Name(wanted.dtype)), "_",
                                  std::string(Name(wanted.pairing)), "_", Tokens(wanted),
                                  wanted.in_place ? "_in_place" : "");
  if (wanted.shape == Shape::kHeadParallel) name += "_head_parallel";
  if (wanted.shape == Shape::kTokenLoop) name += "_token_loop";
  if (wanted.positions == kPrefill) name += "_one_sequence";
  return name;
}

CudaRow KernelRow(const Case& wanted, const std::string& bar = "") {
  const bool bar_on_time = Tokens(wanted) <= kGraphTokensMax;
  return {NameOf(wanted), bar, [=] { return MeasureKernel(wanted, bar_on_time); }};
}

}  // namespace

std::vector<CudaRow> DeviceRows() {
  std::vector<CudaRow> rows;
  for (const int64_t tokens : {int64_t{4096}, kPrefill}) {
    rows.push_back({absl::StrCat("copy/", tokens), "", [=] { return MeasureCopy(tokens); }});
  }
  for (const int64_t tokens : {int64_t{1}, int64_t{64}, int64_t{4096}, kPrefill}) {
    const std::string bar = tokens <= kGraphTokensMax ? "<= 3"
                            : tokens == kPrefill      ? ">= 0.98"
                                                      : "";
    for (const bool in_place : {false, true}) {
      rows.push_back(KernelRow({.requests = {tokens}, .in_place = in_place}, bar));
    }
    rows.push_back(KernelRow({.requests = {tokens}, .pairing = Pairing::kInterleaved}, bar));
    for (const Shape shape : {Shape::kHeadParallel, Shape::kTokenLoop}) {
      rows.push_back(KernelRow({.requests = {tokens}, .shape = shape}));
    }
  }
  rows.push_back(KernelRow({.requests = {kPrefill}, .positions = kPrefill}));
  rows.push_back(KernelRow({.requests = {kPrefill}, .dtype = DType::kFloat16}));
  rows.push_back(KernelRow({.requests = {kPrefill}, .dtype = DType::kFloat32}));
  rows.push_back({"ragged/64_requests_launched", "", [] { return MeasureRagged(false); }});
  rows.push_back({"ragged/64_requests_replayed", "", [] { return MeasureRagged(true); }});
  return rows;
}

}  // namespace rope::bench
