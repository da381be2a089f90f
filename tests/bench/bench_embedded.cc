// Rows about rotations through the engine in this process, as users call it, by a prepared call.
// Each also prints what the kernel takes alone:
//   embedded/rotate_bf16_*      new outputs and in place, against the fastest copy
//   embedded/rotate_fp8_in_place elements of e4m3 a second against those of bf16
//   embedded/rotate_*           every dtype and pairing, against the kernel
//   embedded/channel_order_*    results in another order, against the kernel and its pass
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backend/worker_pool.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/bench/library_client.h"
#include "tests/bench/measure.h"
#include "tests/bench/workload.h"

namespace rope::bench {
namespace {

using kernels::DType;
using kernels::Pairing;

// One rotation, by the kernel alone and by the engine.
struct Rotation {
  int64_t tokens = 4096;
  DType dtype = DType::kBFloat16;
  Pairing pairing = Pairing::kHalf;
  bool in_place = false;
  bool reorders = false;  // Output.channel_order: interleaved pairs leave as halves
  int threads = Threads();
};

client::DType NameOf(DType dtype) {
  return dtype == DType::kFloat32      ? client::DType::kFloat32
         : dtype == DType::kFloat16    ? client::DType::kFloat16
         : dtype == DType::kFloat8E4M3 ? client::DType::kFloat8E4M3
                                       : client::DType::kBFloat16;
}

class Twins {
 public:
  explicit Twins(const Rotation& rotation)
      : reorders_(rotation.reorders),
        workload_(rotation.tokens, rotation.dtype, rotation.pairing),
        pool_(rotation.threads),
        backend_(kernels::CreateBackend("cpu", {.threads = rotation.threads}).value()),
        job_(workload_.job(rotation.in_place)),
        client_(embedded::Connect({.threads = rotation.threads}).value()) {
    client::RotateRequest request = LibraryRequest(rotation.tokens, job_.input, job_.output);
    request.tensors[0].dtype = NameOf(rotation.dtype);
    if (rotation.pairing == Pairing::kInterleaved) {
      request.rope.pairing = client::Pairing::kInterleaved;
    }
    if (reorders_) request.channel_order = client::Pairing::kHalf;
    call_ = Prepared(client_, request);
  }

  // Medians of the engine, the kernel, memcpy and a streaming copy, in turns of `repeats`.
  std::vector<double> Seconds(int repeats) {
    const auto repeated = [repeats](std::function<void()> function) {
      return [repeats, function = std::move(function)] {
        for (int i = 0; i < repeats; ++i) function();
      };
    };
    std::vector<double> seconds = MedianSeconds(
        {repeated([this] { RunEngine(); }), repeated([this] { RunKernel(); }),
         repeated(PlainCopy(pool_, workload_)), repeated(StreamingCopy(pool_, workload_))},
        41);
    for (double& each : seconds) each /= repeats;
    return seconds;
  }
  void RunEngine() { ROPE_CHECK(client_.Rotate(call_).ok()); }
  double bytes() const { return static_cast<double>(workload_.bytes()); }
  std::string detail() const { return backend_->detail(); }

 private:
  void RunKernel() {
    ROPE_CHECK(backend_->Rotate({&job_, 1}).ok());
    if (reorders_) kernels::ReorderPairs(job_, Pairing::kHalf);
  }

  const bool reorders_;
  const Workload workload_;
  kernels::WorkerPool pool_;
  const std::unique_ptr<kernels::Backend> backend_;
  const kernels::RotateJob job_;
  const client::Client client_;
  client::RotateRequest call_;
};

enum class Yardstick { kKernel, kFastestCopy, kMemcpy };

Measurement Measure(const Rotation& rotation, Yardstick yardstick) {
  Twins twins(rotation);
  const std::vector<double> seconds = twins.Seconds(rotation.tokens > 64 ? 1 : 50);
  const double against = yardstick == Yardstick::kKernel   ? seconds[1]
                         : yardstick == Yardstick::kMemcpy ? seconds[2]
                                                           : std::min(seconds[2], seconds[3]);
  return {.value = twins.bytes() / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = absl::StrFormat(
              "kernel %s, %.1f us less; memcpy %s, streaming copy %s; %s",
              GigabytesPerSecond(twins.bytes(), seconds[1]), (seconds[0] - seconds[1]) * 1e6,
              GigabytesPerSecond(twins.bytes(), seconds[2]),
              GigabytesPerSecond(twins.bytes(), seconds[3]), twins.detail()),
          .ratio = against / seconds[0]};
}

Measurement MeasureFloat8InPlace() {
  Twins wide({.in_place = true});
  Twins narrow({.dtype = DType::kFloat8E4M3, .in_place = true});
  const std::vector<double> seconds =
      MedianSeconds({[&] { wide.RunEngine(); }, [&] { narrow.RunEngine(); }}, 41);
  return {
      .value = narrow.bytes() / seconds[1] * 1e-9,
      .unit = "GB/s",
      .yardstick = absl::StrFormat("bf16 in place %s, of two bytes an element; %s",
                                   GigabytesPerSecond(wide.bytes(), seconds[0]), narrow.detail()),
      .ratio = seconds[0] / seconds[1]};
}

// Whether the CPU's kernel is for an instruction set whose name contains `name`.
bool HasInstructions(const std::string& name) {
  const auto backend = kernels::CreateBackend("cpu", {.threads = 1});
  ROPE_CHECK(backend.ok());
  return (*backend)->detail().find(name) != std::string::npos;
}

}  // namespace

std::vector<Row> EmbeddedRows() {
  const auto row = [](const std::string& name, const std::string& bar, const Rotation& rotation,
                      Yardstick yardstick) {
    return Row{"embedded/" + name, bar, [=] { return Measure(rotation, yardstick); }};
  };
  const Rotation reordered = {.pairing = Pairing::kInterleaved, .reorders = true};
  Rotation reordered_64 = reordered;
  reordered_64.tokens = 64;
  std::vector<Row> rows = {
      row("rotate_bf16_new_output", ">= 0.9", {}, Yardstick::kFastestCopy),
      row("rotate_bf16_in_place", ">= 1.2", {.in_place = true}, Yardstick::kFastestCopy),
      row("rotate_bf16_in_cache", HasInstructions("BF16") ? ">= 0.7" : ">= 0.45",
          {.tokens = 64, .threads = 1}, Yardstick::kMemcpy),
      {"embedded/rotate_fp8_in_place", HasInstructions("AVX3") ? ">= 0.6" : ">= 0.3",
       &MeasureFloat8InPlace},
      row("channel_order_4096", ">= 0.9", reordered, Yardstick::kKernel),
      row("channel_order_64", "", reordered_64, Yardstick::kKernel),
  };
  for (const int64_t tokens : {int64_t{64}, int64_t{4096}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
        const Rotation rotation = {.tokens = tokens, .dtype = dtype, .pairing = pairing};
        const bool has_bar = tokens * kHeads * kHeadDim * ElementBytes(dtype) >= 1 << 20;
        rows.push_back(row(absl::StrFormat("rotate_%s_%s%s", Name(dtype), Name(pairing),
                                           tokens == 64 ? "_64" : ""),
                           has_bar ? ">= 0.9" : "", rotation, Yardstick::kKernel));
      }
    }
  }
  return rows;
}

}  // namespace rope::bench
