#include "server/engine/device_rotation.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/request/layout.h"
#include "server/request/plan.h"

namespace rope::server {
namespace {

using kernels::DeviceJob;

// The rows of a move, one for each row set.
struct MoveRows {
  std::array<kernels::TokenRows, kRowSetsMax> sets;
};

absl::Status FindMoveRows(const Plan& plan, kernels::TableCache& tables, MoveRows& rows) {
  if (!plan.device->move.has_value()) return absl::OkStatus();
  for (size_t set = 0; set < plan.row_sets.size(); ++set) {
    const kernels::Frequencies& frequencies = *plan.row_sets[set].runs.front().frequencies;
    ROPE_RETURN_IF_ERROR(tables.AppendRows(frequencies, {&*plan.device->move, 1}, rows.sets[set]));
  }
  return absl::OkStatus();
}

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
    job.head_dim = tensor.layout.head_dim;
    job.dtype = tensor.dtype;
    if (span.rotates && plan_.rotates) {
      job.geometry = plan_.geometry;
      job.geometry.offset = tensor.rotary_offset.value_or(job.geometry.offset);
      job.conjugate = plan_.conjugate;
      job.arithmetic = plan_.arithmetic;
    }
    if (tensor.norm_eps.has_value()) job.norm = {nullptr, *tensor.norm_eps};
    job.scale = tensor.scale;
    job.output_dtype = tensor.output_dtype;
    job.output_scale = tensor.output_scale;
  }

  kernels::DeviceRows RowsOf(size_t set, int64_t sequence) const {
    const DevicePositions& device = *plan_.device;
    if (device.move.has_value()) {
      const kernels::RowRef& row = rows_.sets[set].rows.front();
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
    ROPE_RETURN_IF_ERROR(FindMoveRows(plan, *tables, rows));
    ROPE_ASSIGN_OR_RETURN(jobs, JobCutter(plan, rows).Cut());
  }
  return executor->Enqueue(jobs, table_rows, queue);
}

}  // namespace rope::server
