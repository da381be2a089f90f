// Rows about tensors in device memory: q of 32 heads and k of 8, head_dim 128, one launch for both.
//   kernel/...                  the rotation, bit for bit and in turns with the one by lists; up to
//                               64 tokens by graph replay, with tensors that fit the cache, and
//                               more by events, over several times the cache
//   call/...                    the same as a program calls it
//   ragged/...                  64 requests of different lengths: one launch against 64
//   host/...                    the host's time for a launch or a call, and for it and its end
// GB/s counts bytes read and bytes written; share is the copy's time over the rotation's.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/gpu/device.h"
#include "tests/gpu/report.h"
#include "tests/gpu/workload.h"

namespace rope::bench {
namespace {

using kernels::DType;
using kernels::Pairing;

constexpr int64_t kGraphTokensMax = 64;
constexpr int kGraphNodes = 512;
constexpr int64_t kPrefill = 131072;

int64_t Tokens(const Case& wanted) {
  int64_t tokens = 0;
  for (const int64_t request : wanted.requests) tokens += request;
  return tokens;
}

// `workloads`: how many exist at once.
std::string MemoryShort(const Case& wanted, int64_t workloads = 1) {
  const int64_t needed = workloads * Workload::BytesNeeded(wanted);
  if (needed <= FreeDeviceBytes()) return "";
  return absl::StrFormat("needs %.1f GiB of free device memory",
                         static_cast<double>(needed) / static_cast<double>(int64_t{1} << 30));
}

Spread Scaled(const Spread& seconds, double factor) {
  return {seconds.median * factor, seconds.low * factor, seconds.high * factor};
}

// The times of one call of each function, side by side: by graph replay where a call is short.
std::vector<Spread> TimesOf(const std::vector<Enqueue>& functions, const Case& wanted,
                            const Workload& workload) {
  if (Tokens(wanted) <= kGraphTokensMax) {
    std::vector<std::unique_ptr<Graph>> graphs;
    std::vector<Enqueue> replays;
    for (const Enqueue& function : functions) {
      graphs.push_back(std::make_unique<Graph>(function, kGraphNodes));
      replays.push_back([&graph = *graphs.back()](cudaStream_t stream) { graph.Launch(stream); });
    }
    std::vector<Spread> seconds = DeviceSeconds(replays);
    for (Spread& spread : seconds) spread = Scaled(spread, 1.0 / kGraphNodes);
    return seconds;
  }
  constexpr int64_t kBytes = int64_t{2} << 30;  // a measurement moves at least this much
  const int calls = static_cast<int>(
      std::clamp<int64_t>(kBytes / (2 * workload.tensor_bytes()), workload.sets(), 256));
  std::vector<Enqueue> repeated;
  for (const Enqueue& function : functions) {
    repeated.push_back([calls, &function](cudaStream_t stream) {
      for (int i = 0; i < calls; ++i) function(stream);
    });
  }
  std::vector<Spread> seconds = DeviceSeconds(repeated);
  for (Spread& spread : seconds) spread = Scaled(spread, 1.0 / calls);
  return seconds;
}

// One rotation of q and k, beside the kernel over lists, and a call beside the kernel alone.
// `bar_on_time`: the bar is about microseconds, and not about the share.
CudaMeasurement MeasureKernel(const Case& wanted, bool bar_on_time) {
  if (const std::string missing = MemoryShort(wanted, 2); !missing.empty()) {
    return NotMeasured(missing);
  }
  Workload workload(wanted);
  Case others = wanted;
  others.lists = !wanted.calls;
  others.calls = false;
  Workload other(others);
  CudaMeasurement result;
  result.wrong = workload.Verify() + other.Verify();
  // A call has a table of its own, whose rows may differ in the last bit.
  if (others.lists) result.wrong += workload.CompareWith(other);
  const std::vector<Spread> seconds =
      TimesOf({[&](cudaStream_t stream) { workload.Rotate(stream); },
               [&](cudaStream_t stream) { workload.Copy(stream); },
               [&](cudaStream_t stream) { workload.CopyByKernel(stream); },
               [&](cudaStream_t stream) { other.Rotate(stream); }},
              wanted, workload);
  const double bytes = 2 * static_cast<double>(workload.tensor_bytes());
  result.seconds = seconds[0];
  result.gigabytes_per_second = bytes / seconds[0].median * 1e-9;
  result.share = seconds[1].median / seconds[0].median;
  result.measurement = {.value = seconds[0].median * 1e6,
                        .unit = "us",
                        .yardstick = absl::StrFormat(
                            "copy %.2f us, %s; without arithmetic %.2f us, %s; %s %.2f us",
                            seconds[1].median * 1e6, GigabytesPerSecond(bytes, seconds[1].median),
                            seconds[2].median * 1e6, GigabytesPerSecond(bytes, seconds[2].median),
                            others.lists ? "lists" : "the kernel alone", seconds[3].median * 1e6)};
  if (!bar_on_time) result.measurement.ratio = result.share;
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
  CudaMeasurement result;
  result.wrong = grouped.Verify() + single.Verify();
  constexpr int kCalls = 64;
  const Enqueue functions[] = {[&](cudaStream_t stream) { grouped.Rotate(stream); },
                               [&](cudaStream_t stream) { single.Rotate(stream); }};
  std::vector<Spread> seconds;
  if (replay) {
    const Graph one(functions[0], kCalls);
    const Graph many(functions[1], kCalls);
    seconds = DeviceSeconds({[&](cudaStream_t stream) { one.Launch(stream); },
                             [&](cudaStream_t stream) { many.Launch(stream); }});
  } else {
    const auto repeated = [](const Enqueue& enqueue) {
      return [&enqueue](cudaStream_t stream) {
        for (int i = 0; i < kCalls; ++i) enqueue(stream);
      };
    };
    seconds = DeviceSeconds({repeated(functions[0]), repeated(functions[1])});
  }
  result.seconds = Scaled(seconds[0], 1.0 / kCalls);
  result.gigabytes_per_second =
      2 * static_cast<double>(grouped.tensor_bytes()) / result.seconds.median * 1e-9;
  result.measurement = {
      .value = result.seconds.median * 1e6,
      .unit = "us",
      .yardstick =
          absl::StrFormat("%d launches %.2f us (%.1f times as long)", single.launches(),
                          seconds[1].median / kCalls * 1e6, seconds[1].median / seconds[0].median)};
  return result;
}

// A launch or a call as the host sees it; beside it, the same and the wait for its end.
CudaMeasurement MeasureHost(const Case& wanted) {
  Workload workload(wanted);
  CudaMeasurement result;
  result.wrong = workload.Verify();
  constexpr int kCalls = 64;
  const std::vector<Spread> seconds =
      HostSeconds({[&] {
                     for (int i = 0; i < kCalls; ++i) workload.Rotate(nullptr);
                   },
                   [&] {
                     for (int i = 0; i < kCalls; ++i) {
                       workload.Rotate(nullptr);
                       Check(cudaStreamSynchronize(nullptr), "a rotation's end");
                     }
                   }});
  Check(cudaDeviceSynchronize(), "the rotations' end");
  result.seconds = Scaled(seconds[0], 1.0 / kCalls);
  result.measurement = {
      .value = result.seconds.median * 1e6,
      .unit = "us",
      .yardstick = absl::StrFormat("with its end %.2f us", seconds[1].median / kCalls * 1e6)};
  return result;
}

CudaRow KernelRow(const std::string& name, const Case& wanted, const std::string& bar = "") {
  const bool bar_on_time = Tokens(wanted) <= kGraphTokensMax;
  return {(wanted.calls ? "call/" : "kernel/") + name, bar,
          [=] { return MeasureKernel(wanted, bar_on_time); }};
}

void AddMainRows(std::vector<CudaRow>& rows) {
  for (const int64_t tokens : {int64_t{1}, int64_t{64}, int64_t{4096}, kPrefill}) {
    const std::string bar = tokens <= kGraphTokensMax ? "<= 3"
                            : tokens == kPrefill      ? ">= 0.98"
                                                      : "";
    const std::string suffix = absl::StrCat("_", tokens);
    rows.push_back(KernelRow("bf16_half" + suffix, {.requests = {tokens}}, bar));
    rows.push_back(KernelRow("bf16_half" + suffix + "_in_place",
                             {.requests = {tokens}, .in_place = true}, bar));
    rows.push_back(KernelRow("bf16_interleaved" + suffix,
                             {.requests = {tokens}, .pairing = Pairing::kInterleaved}, bar));
  }
}

void AddOtherRows(std::vector<CudaRow>& rows) {
  const std::vector<int64_t> prefill = {kPrefill};
  rows.push_back(
      KernelRow("bf16_half_131072_one_sequence", {.requests = prefill, .positions = kPrefill}));
  rows.push_back(KernelRow("bf16_half_131072_one_sequence_in_place",
                           {.requests = prefill, .in_place = true, .positions = kPrefill}));
  rows.push_back(KernelRow("fp16_half_131072", {.requests = prefill, .dtype = DType::kFloat16}));
  rows.push_back(KernelRow("fp32_half_131072", {.requests = prefill, .dtype = DType::kFloat32}));
  rows.push_back(KernelRow("bf16_half_131072_k_alone", {.requests = prefill, .query_heads = 0}));
  rows.push_back(KernelRow("bf16_half_131072_32_of_64_pairs", {.requests = prefill, .pairs = 32}));
  rows.push_back(
      KernelRow("scalar_bf16_half_4096_60_of_64_pairs", {.requests = {4096}, .pairs = 60}));
  rows.push_back(KernelRow("fused_norm_bf16_half_4096", {.requests = {4096}, .norm = true}));
  // Elements past 2^32 bytes and past 2^32 elements.
  rows.push_back(
      KernelRow("bf16_half_1048576_in_place_beyond_4_GiB",
                {.requests = {int64_t{1} << 20}, .in_place = true, .positions = int64_t{1} << 20}));
}

void AddCallRows(std::vector<CudaRow>& rows) {
  const Case token = {.requests = {1}};
  Case called = token;
  called.calls = true;
  rows.push_back({"host/launch_1_token", "", [=] { return MeasureHost(token); }});
  rows.push_back({"host/call_1_token", "<= 4", [=] { return MeasureHost(called); }});
  rows.push_back(KernelRow("1_token", called));
  const std::pair<const char*, int64_t> places[] = {
      {"131072_positions_on_device", 4096}, {"131072_ramp", kPrefill}, {"131072_by_one_row", 1}};
  for (const auto& [name, positions] : places) {
    const Case many = {
        .requests = {kPrefill}, .in_place = true, .calls = true, .positions = positions};
    rows.push_back(KernelRow(name, many, ">= 0.97"));
  }
  const Case bytes = {
      .requests = {kPrefill}, .dtype = DType::kFloat8E4M3, .in_place = true, .calls = true};
  rows.push_back(KernelRow("131072_fp8", bytes, ">= 0.9"));
}

}  // namespace

std::vector<CudaRow> DeviceRows() {
  std::vector<CudaRow> rows;
  AddMainRows(rows);
  rows.push_back({"ragged/64_requests_launched", "", [] { return MeasureRagged(false); }});
  rows.push_back({"ragged/64_requests_replayed", "", [] { return MeasureRagged(true); }});
  AddOtherRows(rows);
  AddCallRows(rows);
  return rows;
}

}  // namespace rope::bench
