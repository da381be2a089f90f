#include "server/engine/executor.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backends.h"
#include "kernels/status_macros.h"
#include "kernels/tables/derived_rows.h"
#include "server/engine/job_tiler.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {

DeviceRouter::DeviceRouter(std::unique_ptr<kernels::Backend> host,
                           std::unique_ptr<kernels::Backend> accelerator)
    : host_(std::move(host)), accelerator_(std::move(accelerator)) {}

absl::StatusOr<std::unique_ptr<DeviceRouter>> DeviceRouter::Create(
    const std::string& device, const kernels::BackendOptions& options) {
  const bool is_cuda = device == "cuda";
  ROPE_ASSIGN_OR_RETURN(
      auto host, kernels::CreateBackend(is_cuda || device == "auto" ? "cpu" : device, options));
  std::unique_ptr<kernels::Backend> accelerator;
  if (is_cuda) {
    ROPE_ASSIGN_OR_RETURN(accelerator, kernels::CreateBackend(device, options));
  }
  return std::make_unique<DeviceRouter>(std::move(host), std::move(accelerator));
}

absl::StatusOr<std::string_view> DeviceRouter::Rotate(absl::Span<const kernels::RotateJob> jobs) {
  if (accelerator_ != nullptr && !faulted_.load(std::memory_order_relaxed)) {
    const absl::Status status = accelerator_->Rotate(jobs);
    if (status.ok()) return accelerator_->name();
    const proto::Reason reason = proto::PartsOf(status).reason;
    if (reason == proto::Reason::kDeviceFault && !faulted_.exchange(true) && on_fault_) {
      on_fault_(accelerator_->name(), status);
    }
    if (reason != proto::Reason::kNotBuilt) return status;
  }
  ROPE_RETURN_IF_ERROR(host_->Rotate(jobs));
  return host_->name();
}

std::vector<DeviceRouter::Device> DeviceRouter::list() const {
  std::vector<Device> devices;
  if (accelerator_ != nullptr) {
    std::string detail = accelerator_->detail();
    if (faulted_.load(std::memory_order_relaxed)) {
      absl::StrAppend(&detail, "; failed, not used any more");
    }
    devices.push_back({std::string(accelerator_->name()), detail});
  }
  devices.push_back({std::string(host_->name()), host_->detail()});
  return devices;
}

namespace {

// Bytes of table rows that a batch may build, but always those of one token: 64 separate pages of a
// head of 128 channels, which take 4 to 8 ms. No permit counts them: few batches run at a time.
constexpr int64_t kBatchBuildBytesMax = 2 * limits::kMiB;

// A longer list of jobs is allocated at once: copied as it grows, it takes new pages each time.
constexpr int64_t kJobsUsual = 16;

template <typename T>
absl::Span<const T> Between(const std::vector<T>& values, int64_t begin, int64_t end) {
  return absl::MakeConstSpan(values).subspan(static_cast<size_t>(begin),
                                             static_cast<size_t>(end - begin));
}

kernels::RowPlacement PlacementOf(const kernels::Frequencies& frequencies,
                                  const std::array<std::vector<int64_t>, 3>& positions,
                                  const kernels::Mrope* mrope, int64_t begin, int64_t end) {
  kernels::RowPlacement placement;
  placement.inv_freq = frequencies.inv_freq;
  placement.mrope = mrope;
  for (size_t axis = 0; axis < (mrope != nullptr ? 3 : 1); ++axis) {
    placement.positions[axis] = Between(positions[axis], begin, end);
  }
  return placement;
}

// The rows of the tokens [begin, end) of one run. `build_budget` and the result are those of
// TableCache::AppendRows.
absl::StatusOr<int64_t> AppendRunRows(const Plan& plan, const TokenRun& run, int64_t begin,
                                      int64_t end, int64_t& build_budget,
                                      kernels::TableCache& tables, kernels::TokenRows& rows) {
  if (run.from != nullptr) {
    const int64_t row_bytes = kernels::BuildBytes(*run.frequencies, 2 * kernels::kExactRowRows);
    const int64_t count = std::clamp<int64_t>(build_budget / row_bytes, 1, end - begin);
    build_budget -= count * row_bytes;
    end = begin + count;
    kernels::AppendDifferenceRows(
        PlacementOf(*run.frequencies, plan.positions, plan.mrope.get(), begin, end),
        PlacementOf(*run.from, plan.from_positions, plan.from_mrope.get(), begin, end),
        plan.attention_factor_applied ? plan.attention_factor : 1, rows);
    return count;
  }
  if (plan.mrope == nullptr) {
    return tables.AppendRows(*run.frequencies, Between(plan.positions[0], begin, end), build_budget,
                             rows);
  }
  const auto axes =
      PlacementOf(*run.frequencies, plan.positions, plan.mrope.get(), begin, end).positions;
  return kernels::AppendMropeRows(tables, *run.frequencies, *plan.mrope, axes, build_budget, rows);
}

// The rows of the tokens [begin, end) of one row set, or of the first of them. Returns how many.
absl::StatusOr<int64_t> AppendRows(const Plan& plan, size_t set, int64_t begin, int64_t end,
                                   int64_t& build_budget, kernels::TableCache& tables,
                                   kernels::TokenRows& rows) {
  rows.rows.reserve(static_cast<size_t>(end - begin));
  if (plan.rows != nullptr) {
    rows.pages.push_back(plan.rows);
    for (const int64_t row : Between(plan.positions[0], begin, end)) {
      rows.rows.push_back({plan.rows.get(), row});
    }
    return end - begin;
  }
  const auto& runs = plan.row_sets[set].runs;
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](int64_t token, const TokenRun& r) { return token < r.end; });
  int64_t token = begin;
  for (; token < end && (token == begin || build_budget > 0); ++run) {
    const int64_t stop = std::min(end, run->end);
    ROPE_ASSIGN_OR_RETURN(const int64_t served,
                          AppendRunRows(plan, *run, token, stop, build_budget, tables, rows));
    token += served;
    if (token < stop) break;
  }
  return token - begin;
}

// Looks up the rows of a slice, and ends the slice where the budget ends. Each row set has an equal
// part of it, and what others have left. Fills `spans` with the slice's rows of each set.
absl::Status AppendSliceRows(Slice& slice, int64_t& build_budget, kernels::TableCache& tables,
                             std::array<absl::Span<const kernels::RowRef>, kRowSetsMax>& spans) {
  const Plan& plan = slice.request->plan;
  const size_t sets = std::max<size_t>(plan.row_sets.size(), 1);
  for (size_t set = 0; set < sets; ++set) {
    int64_t part = build_budget / static_cast<int64_t>(sets - set);
    build_budget -= part;
    const absl::StatusOr<int64_t> served =
        AppendRows(plan, set, slice.begin, slice.end, part, tables, slice.rows.emplace_back());
    build_budget += part;
    ROPE_RETURN_IF_ERROR(served.status());
    slice.end = slice.begin + *served;
  }
  for (size_t set = 0; set < sets; ++set) {  // later sets may have ended earlier
    spans[set] = Between(slice.rows[set].rows, 0, slice.end - slice.begin);
  }
  return absl::OkStatus();
}

// Start of the tensor's output. Null: the output overwrites the received bytes.
char* OutputOf(const Request& request, size_t tensor) {
  const TensorPlan& plan = request.plan.tensors[tensor];
  if (!plan.IsInReply()) return plan.place.mapped();
  return plan.TakesBuffer() ? request.run.outputs[tensor].data() : nullptr;
}

// Maps the pages of the part of the outputs that the request's tokens before `end` take. With heads
// outside of the tokens these are other pages than the slice writes, but the same number of pages.
void PopulateOutputs(Request& request, int64_t end) {
  const int64_t tokens = request.plan.tokens;
  for (PooledBuffer& output : request.run.outputs) {
    output.Populate(end == tokens ? output.size() : output.size() / tokens * end);
  }
}

// The jobs of a slice.
struct SliceJobs {
  Slice* slice;
  size_t first;
  size_t count;
};

// Rotates all jobs. If the device fails, so do all slices.
void RotateSlices(DeviceRouter& devices, const Jobs& jobs, const std::vector<SliceJobs>& parts) {
  const absl::StatusOr<std::string_view> device = devices.Rotate(jobs);
  for (const SliceJobs& part : parts) {
    part.slice->status.Update(device.status());
    if (!device.ok()) continue;
    Request& request = *part.slice->request;
    request.run.device = *device;
    if (!request.plan.channel_order.has_value()) continue;
    const auto own = absl::MakeConstSpan(jobs).subspan(part.first, part.count);
    for (const kernels::RotateJob& job : own) {
      kernels::ReorderPairs(job, *request.plan.channel_order);
    }
  }
}

}  // namespace

absl::Status Executor::AllocateOutputs(Request& request) const {
  const auto is_float8 = [](const TensorPlan& t) { return kernels::IsFloat8(t.output_dtype); };
  if (std::ranges::any_of(request.plan.tensors, is_float8)) {
    request.run.saturated = std::make_unique<std::atomic<int64_t>[]>(request.plan.tensors.size());
  }
  for (const TensorPlan& tensor : request.plan.tensors) {
    const int64_t bytes = tensor.TakesBuffer() ? tensor.output_bytes() : 0;
    request.run.outputs.push_back(pool_.Allocate(bytes));
    if (request.run.outputs.back().size() == bytes) continue;
    request.run.outputs.clear();
    return OutOfMemory();
  }
  return absl::OkStatus();
}

// The executor has no mutex. A request has at most one slice in the batches that run at any time,
// so that the calls on several threads never share a request.
void Executor::Run(absl::Span<Slice> slices) {
  const absl::Status status = WithoutExceptions([&] {
    RunAll(slices);
    return absl::OkStatus();
  });
  for (Slice& slice : slices) slice.status.Update(status);
}

// One pass over the slices collects the jobs of the whole batch; then one Rotate runs them all.
//
//   1. Each slice allocates its request's outputs (first slice only), looks up its rows, and adds
//      its jobs. The batch has a budget for rows to build: the slice that uses it up ends there,
//      and later ones end where they begin. An error is kept in the slice's status and leaves the
//      slice without jobs.
//   2. RotateSlices runs the jobs and changes the channel order of results. PutBack then copies
//      rows that were gathered for a rotation in place.
//
// Jobs point into `slice.rows` and into `cutter`, so both live until Rotate has returned.
void Executor::RunAll(absl::Span<Slice> slices) {
  Jobs jobs;
  std::vector<SliceJobs> parts;
  JobTiler cutter;
  int64_t build_budget = kBatchBuildBytesMax;
  for (Slice& slice : slices) {
    Request& request = *slice.request;
    const Plan& plan = request.plan;
    if (build_budget <= 0) slice.end = slice.begin;
    if (slice.begin == 0 && !slice.WasLeftOut()) {
      request.run.device = devices_.host().name();
      slice.status.Update(AllocateOutputs(request));
    }
    if (!slice.status.ok()) continue;
    if (plan.bytes_per_token == 0 || slice.begin == slice.end) continue;
    JobTiler::Shared shared = {.plan = plan, .begin = slice.begin};
    if (plan.rotates && plan.table == nullptr) {
      slice.status.Update(AppendSliceRows(slice, build_budget, tables_, shared.rows));
      if (!slice.status.ok()) continue;
    }
    shared.end = slice.end;
    PopulateOutputs(request, slice.end);
    const size_t first_job = jobs.size();
    if (const int64_t most = plan.jobs.Of(slice.end - slice.begin); most > kJobsUsual) {
      jobs.reserve(first_job + static_cast<size_t>(most));
    }
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      cutter.Cut(plan.tensors[i], OutputOf(request, i), shared, request.run.SaturatedOf(i), jobs);
    }
    parts.push_back({&slice, first_job, jobs.size() - first_job});
    request.run.began = true;
  }
  if (jobs.empty()) return;
  RotateSlices(devices_, jobs, parts);
  cutter.PutBack();
}

namespace {

using kernels::DeviceJob;

// The rows of a move, one for each row set.
using MoveRows = std::array<kernels::TokenRows, kRowSetsMax>;

// A tensor's input or output.
struct TensorSide {
  LayoutStrides strides;
  int64_t token = 0;  // between the tokens of a job
};

// Cuts a plan into jobs. A job takes the tokens along S or T, and along every other axis on which
// the tokens of each tensor go on at the same distance and with the next positions.
class JobCutter {
 public:
  JobCutter(const Plan& plan, const MoveRows& rows)
      : plan_(plan), rows_(rows), axes_(plan.tensors.front().layout.token_axes) {
    for (const TensorPlan& tensor : plan.tensors) {
      for (const auto* given : {&tensor.strides, &tensor.output_strides}) {
        sides_.push_back({given->has_value() ? **given : PackedStrides(tensor.layout)});
      }
    }
    for (const bool sequences : {true, false}) {  // first S or T
      for (size_t i = axes_.size(); i-- > 0;) {
        const bool is_sequence = axes_[i].letter == 'S' || axes_[i].letter == 'T';
        if (is_sequence == sequences && !Take(i)) left_.push_back(i);
      }
    }
  }

  absl::StatusOr<std::vector<DeviceJob>> Cut() const {
    int64_t runs = 1;
    for (const size_t axis : left_) runs *= axes_[axis].length;
    int64_t spans = 0;
    for (const TensorPlan& tensor : plan_.tensors) spans += std::ssize(tensor.heads);
    if (runs > kDeviceJobsMax / spans) {
      return MakeError(Reason::kLimitExceeded, "tensors",
                       absl::StrCat(runs, " runs of tokens at one distance"),
                       absl::StrCat("at most ", kDeviceJobsMax, " with all head_ranges"));
    }
    std::vector<DeviceJob> jobs;
    jobs.reserve(static_cast<size_t>(runs * spans));
    for (int64_t run = 0; run < runs; ++run) AddRun(run, jobs);
    return jobs;
  }

 private:
  // Takes an axis into the jobs. False: it cannot.
  bool Take(size_t axis) {
    const int64_t length = axes_[axis].length;
    if (length == 1) return true;
    const char letter = axes_[axis].letter;
    const bool is_sequence = letter == 'S' || letter == 'T';
    const DevicePositions& device = *plan_.device;
    const bool goes_on = is_sequence || device.move.has_value() || !plan_.rotates ||
                         (letter == 'B' && device.by_batch && device.ids.region != nullptr);
    if (!goes_on) return false;
    for (TensorSide& side : sides_) {
      if (tokens_ > 1 && side.strides.token_axes[axis] != tokens_ * side.token) return false;
    }
    for (TensorSide& side : sides_) {
      if (tokens_ == 1) side.token = side.strides.token_axes[axis];
    }
    tokens_ *= length;
    return true;
  }

  // Adds the jobs of one run of tokens, by number.
  void AddRun(int64_t run, std::vector<DeviceJob>& jobs) const {
    int64_t sequence = 0;
    absl::InlinedVector<int64_t, 4> offsets(sides_.size(), 0);
    for (const size_t axis : left_) {
      const int64_t index = run % axes_[axis].length;
      run /= axes_[axis].length;
      if (axes_[axis].letter == 'B') sequence = index;
      for (size_t i = 0; i < sides_.size(); ++i) {
        offsets[i] += index * sides_[i].strides.token_axes[axis];
      }
    }
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      for (const HeadSpan& span : plan_.tensors[i].heads) {
        DeviceJob job = {.tensor = i};
        SetTensor(plan_.tensors[i], span, &offsets[2 * i], &sides_[2 * i], job.job);
        const bool rotates = plan_.rotates && span.rotates && job.job.geometry.pairs > 0;
        if (rotates) job.rows = RowsOf(span.row_set, sequence);
        if (job.job.heads == 0) continue;
        if (!rotates && job.job.input == job.job.output && job.job.OnlyPairs()) continue;
        jobs.push_back(job);
      }
    }
  }

  void SetTensor(const TensorPlan& tensor, const HeadSpan& span, const int64_t* offsets,
                 const TensorSide* sides, kernels::RotateJob& job) const {
    const auto place = [&](const RegionPart& part, size_t side, kernels::DType dtype) {
      const int64_t elements = offsets[side] + span.begin * sides[side].strides.head;
      return static_cast<char*>(part.device_address()) + elements * kernels::ElementBytes(dtype);
    };
    job.input = place(tensor.source, 0, tensor.dtype);
    job.output = place(tensor.place, 1, tensor.output_dtype);
    job.input_strides = {sides[0].token, sides[0].strides.head};
    job.output_strides = {sides[1].token, sides[1].strides.head};
    job.tokens = tokens_;
    job.heads = span.end - span.begin;
    SetOps(plan_, tensor, span, job);
    if (job.norm.has_value()) job.norm->weight = nullptr;  // those of a device are all 1
  }

  kernels::DeviceRows RowsOf(size_t set, int64_t sequence) const {
    const DevicePositions& device = *plan_.device;
    if (device.move.has_value()) {
      const kernels::RowRef& row = rows_[set].rows.front();
      return {.one_row = row.page->Cos(row.index)};
    }
    kernels::DeviceRows rows;
    rows.frequencies = plan_.row_sets[set].runs.front().frequencies.get();
    if (device.ids.region == nullptr) {
      rows.first = device.starts[static_cast<size_t>(sequence)];
      return rows;
    }
    const int64_t first = device.by_batch ? sequence * tokens_ : 0;
    rows.wide = device.wide;
    rows.positions =
        static_cast<const char*>(device.ids.device_address()) + first * (device.wide ? 8 : 4);
    return rows;
  }

  const Plan& plan_;
  const MoveRows& rows_;
  const absl::InlinedVector<TokenAxis, kTokenAxesMax>& axes_;
  absl::InlinedVector<TensorSide, 4> sides_;         // of each tensor: its input, its output
  absl::InlinedVector<size_t, kTokenAxesMax> left_;  // axes that jobs do not take
  int64_t tokens_ = 1;                               // of a job
};

absl::StatusOr<int64_t> TableRows(const Plan& plan, const DeviceQueue& queue) {
  if (queue.positions_max < 0 || queue.positions_max > limits::kPositionMax) {
    return InvalidField("positions_max", queue.positions_max,
                        absl::StrCat("0 to ", limits::kPositionMax));
  }
  const bool needs = plan.rotates && !plan.device->move.has_value();
  const int64_t rows = queue.positions_max > 0 ? queue.positions_max : plan.device->table_rows;
  if (rows > 0 || !needs) return rows;
  return InvalidField("positions_max", 0, "the rows of the table: the config has no length");
}

}  // namespace

absl::StatusOr<std::string_view> DeviceRotation::Enqueue(const Plan& plan,
                                                         const DeviceQueue& queue) const {
  ROPE_ASSIGN_OR_RETURN(const int64_t table_rows, TableRows(plan, queue));
  std::vector<DeviceJob> jobs;
  MoveRows rows;
  if (plan.bytes() > 0) {
    for (size_t set = 0; plan.device->move.has_value() && set < plan.row_sets.size(); ++set) {
      const kernels::Frequencies& frequencies = *plan.row_sets[set].runs.front().frequencies;
      ROPE_RETURN_IF_ERROR(tables->AppendRows(frequencies, {&*plan.device->move, 1}, rows[set]));
    }
    ROPE_ASSIGN_OR_RETURN(jobs, JobCutter(plan, rows).Cut());
  }
  return executor->Enqueue(jobs, table_rows, queue);
}

}  // namespace rope::server
