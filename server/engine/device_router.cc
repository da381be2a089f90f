#include "server/engine/device_router.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "server/engine/limits.h"
#include "server/memory/buffer_pool.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr char kAuto[] = "auto";
constexpr char kCuda[] = "cuda";
constexpr char kHost[] = "cpu";

// The shape that is measured: a prefill in bf16.
constexpr int64_t kHeads = 40;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kTokenBytes = kHeads * kHeadDim * 2;
// Sizes fall by a factor of four, from what a large request has in a batch to about one token.
constexpr int64_t kSizesMax = limits::kSliceBytesMax;
constexpr int64_t kSizesMin = kSizesMax >> 10;
static_assert(kSizesMin <= kTokenBytes);
constexpr int kRounds = 3;

// A rotation of about `bytes` bytes, with its buffers.
class Sample {
 public:
  explicit Sample(int64_t bytes)
      : tokens_(std::max<int64_t>(1, bytes / kTokenBytes)),
        page_(1, kHeadDim / 2, std::vector<float>(kHeadDim, 0.5F)),
        rows_(static_cast<size_t>(tokens_), {&page_, 0}),
        bytes_(tokens_ * kTokenBytes),
        input_(Allocate(bytes_)),
        output_(Allocate(bytes_)) {}

  // Returns the best time of kRounds rotations, after one that warms up. As in service, the backend
  // may write a large result without a copy.
  absl::StatusOr<absl::Duration> Time(kernels::Backend& backend, const Clock& clock) {
    const std::shared_ptr<kernels::HostMemory> memory =
        bytes_ < BufferPool::kAnnouncedBytesMin ? nullptr : backend.host_memory();
    if (memory == nullptr) return BestOf(backend, clock);
    memory->Add(output_.get(), bytes_);
    memory->Wait();
    const absl::StatusOr<absl::Duration> best = BestOf(backend, clock);
    memory->Remove(output_.get(), [] {});
    memory->Wait();
    return best;
  }

 private:
  using Memory = std::unique_ptr<char, void (*)(void*)>;

  // Whole pages, as those of the server's buffers.
  static Memory Allocate(int64_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t pages = (static_cast<size_t>(bytes) + kPage - 1) / kPage;
    auto* const data = static_cast<char*>(std::aligned_alloc(kPage, pages * kPage));
    ROPE_CHECK(data != nullptr);
    std::memset(data, 0, static_cast<size_t>(bytes));
    return {data, &std::free};
  }

  absl::StatusOr<absl::Duration> BestOf(kernels::Backend& backend, const Clock& clock) {
    const kernels::RotateJob job = Job();
    ROPE_RETURN_IF_ERROR(backend.Rotate({&job, 1}));
    absl::Duration best = absl::InfiniteDuration();
    for (int round = 0; round < kRounds; ++round) {
      const absl::Time started = clock.Now();
      ROPE_RETURN_IF_ERROR(backend.Rotate({&job, 1}));
      best = std::min(best, clock.Now() - started);
    }
    return best;
  }

  kernels::RotateJob Job() {
    kernels::RotateJob job;
    job.input = input_.get();
    job.output = output_.get();
    job.input_strides = {kHeads * kHeadDim, kHeadDim};
    job.output_strides = job.input_strides;
    job.tokens = tokens_;
    job.heads = kHeads;
    job.head_dim = kHeadDim;
    job.dtype = kernels::DType::kBFloat16;
    job.geometry = {kernels::Pairing::kHalf, kHeadDim / 2, 0, kHeadDim / 2};
    job.rows = rows_;
    return job;
  }

  const int64_t tokens_;
  const kernels::TablePage page_;
  const std::vector<kernels::RowRef> rows_;
  const int64_t bytes_;
  const Memory input_;
  const Memory output_;
};

absl::StatusOr<bool> AcceleratorIsFaster(int64_t bytes, kernels::Backend& host,
                                         kernels::Backend& accelerator, const Clock& clock) {
  Sample sample(bytes);
  ROPE_ASSIGN_OR_RETURN(const absl::Duration on_host, sample.Time(host, clock));
  ROPE_ASSIGN_OR_RETURN(const absl::Duration on_accelerator, sample.Time(accelerator, clock));
  Log(spdlog::level::info,
      LogLine(absl::StrCat("calibration: ", bytes, " bytes take ", absl::FormatDuration(on_host),
                           " on ", std::string(host.name()), ", ",
                           absl::FormatDuration(on_accelerator), " on ",
                           std::string(accelerator.name()))));
  return on_accelerator < on_host;
}

// Whether no host backend can run the job after the accelerator has failed on it.
bool NeedsTheAccelerator(const kernels::RotateJob& job) {
  return job.input == job.output || job.input_memory == kernels::MemoryKind::kDevice ||
         job.output_memory == kernels::MemoryKind::kDevice;
}

// After any failure the input may be overwritten, so that a retry would rotate other bytes.
absl::Status AsDeviceFault(const absl::Status& status) {
  return proto::MakeError({.reason = proto::Reason::kDeviceFault}, status.message());
}

}  // namespace

int64_t Calibrate(kernels::Backend& host, kernels::Backend& accelerator, const Clock& clock) {
  int64_t bytes_min = DeviceRouter::kNever;
  for (int64_t bytes = kSizesMax; bytes >= kSizesMin; bytes /= 4) {
    const auto faster = AcceleratorIsFaster(bytes, host, accelerator, clock);
    if (!faster.ok()) {
      Log(spdlog::level::warn, LogLine(absl::StrCat("calibration: ", faster.status().ToString())));
      return DeviceRouter::kNever;
    }
    if (!*faster) break;
    bytes_min = bytes == kSizesMin ? 0 : bytes / 2;  // between what is measured and the next
  }
  return bytes_min;
}

DeviceRouter::DeviceRouter(std::unique_ptr<kernels::Backend> host)
    : host_(std::move(host)), accelerator_bytes_min_(kNever) {}

DeviceRouter::DeviceRouter(std::unique_ptr<kernels::Backend> host,
                           std::unique_ptr<kernels::Backend> accelerator,
                           int64_t accelerator_bytes_min)
    : host_(std::move(host)),
      accelerator_(std::move(accelerator)),
      accelerator_bytes_min_(accelerator_bytes_min) {
  if (accelerator_bytes_min_ != kNever) return;
  idle_ = {std::string(accelerator_->name()),
           absl::StrCat(accelerator_->detail(),
                        "; slower for every size or failed while measured, given back")};
  accelerator_.reset();
}

absl::StatusOr<std::unique_ptr<DeviceRouter>> DeviceRouter::Create(
    const std::string& device, const kernels::BackendOptions& options, const Clock& clock) {
  const bool wants_cuda = device == kAuto || device == kCuda;
  ROPE_ASSIGN_OR_RETURN(auto host, kernels::CreateBackend(wants_cuda ? kHost : device, options));
  if (!wants_cuda) return std::make_unique<DeviceRouter>(std::move(host));
  kernels::BackendOptions cuda_options = options;
  cuda_options.owns_device = true;
  auto cuda = kernels::CreateBackend(kCuda, cuda_options);
  if (!cuda.ok()) {
    if (device == kCuda) return cuda.status();
    Log(spdlog::level::info,
        LogLine(absl::StrCat("device: ", std::string(host->name()), " (cuda is not in use: ",
                             absl::StripPrefix(cuda.status().message(), "backend: got cuda, "),
                             ")")));
    return std::make_unique<DeviceRouter>(std::move(host));
  }
  Log(spdlog::level::info,
      LogLine(absl::StrCat("device: ", std::string((*cuda)->name()), ": ", (*cuda)->detail())));
  const int64_t bytes_min = device == kCuda ? 0 : Calibrate(*host, **cuda, clock);
  return std::make_unique<DeviceRouter>(std::move(host), *std::move(cuda), bytes_min);
}

absl::StatusOr<std::string_view> DeviceRouter::Rotate(absl::Span<const kernels::RotateJob> jobs) {
  int64_t bytes = 0;
  for (const kernels::RotateJob& job : jobs) bytes += job.bytes();
  if (TakesAccelerator(bytes)) {
    const absl::Status status = accelerator_->Rotate(jobs);
    if (status.ok()) return accelerator_->name();
    NoteFailure(status);
    if (proto::PartsOf(status).reason != proto::Reason::kNotBuilt) {
      return RotateAgain(jobs, AsDeviceFault(status));
    }
  }
  ROPE_RETURN_IF_ERROR(host_->Rotate(jobs));
  return host_->name();
}

absl::StatusOr<std::string_view> DeviceRouter::RotateAgain(
    absl::Span<const kernels::RotateJob> jobs, const absl::Status& failure) {
  const bool possible =
      accelerator_ != nullptr && std::none_of(jobs.begin(), jobs.end(), &NeedsTheAccelerator);
  ROPE_RETURN_IF_ERROR(possible ? host_->Rotate(jobs) : failure);
  return host_->name();
}

void DeviceRouter::NoteFailure(const absl::Status& status) {
  switch (proto::PartsOf(status).reason) {
    case proto::Reason::kBudgetFull:
    case proto::Reason::kInternal:
    case proto::Reason::kNotBuilt:
      LogLimited(LogKind::kDevice, spdlog::level::warn,
                 LogLine(absl::StrCat(
                     "device ", std::string(accelerator_->name()), ": ", status.ToString(),
                     "; what the batch leaves unchanged goes to ", std::string(host_->name()))));
      return;
    default:
      if (!faulted_.exchange(true) && on_fault_) on_fault_(accelerator_->name(), status);
  }
}

std::shared_ptr<kernels::HostMemory> DeviceRouter::host_memory() const {
  return accelerator_ == nullptr ? nullptr : accelerator_->host_memory();
}

int DeviceRouter::direct_slots(int threads) const {
  return gathers_always() ? 1 : threads;
}

bool DeviceRouter::gathers_always() const {
  return accelerator_bytes_min_ < limits::kDirectBytesMax;
}

int64_t DeviceRouter::direct_bytes_max() const {
  return std::max(limits::kDirectBytesMax, accelerator_bytes_min_ - 1);
}

bool DeviceRouter::TakesAccelerator(int64_t bytes) const {
  return accelerator_ != nullptr && !faulted_.load(std::memory_order_relaxed) &&
         bytes >= accelerator_bytes_min_;
}

std::vector<DeviceRouter::Device> DeviceRouter::list() const {
  std::vector<Device> devices;
  if (accelerator_ != nullptr) {
    std::string detail = accelerator_->detail();
    if (faulted_.load(std::memory_order_relaxed)) {
      absl::StrAppend(&detail, "; failed, not used any more");
    } else if (accelerator_bytes_min_ > 0) {
      absl::StrAppend(&detail, "; takes batches of ", accelerator_bytes_min_, " bytes and more");
    }
    devices.push_back({std::string(accelerator_->name()), detail});
  } else if (!idle_.name.empty()) {
    devices.push_back(idle_);
  }
  devices.push_back({std::string(host_->name()), host_->detail()});
  return devices;
}

}  // namespace rope::server
