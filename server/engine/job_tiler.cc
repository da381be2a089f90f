#include "server/engine/job_tiler.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

// Where rows begin. `over`: the same place for writing, if the results overwrite the rows.
struct RowsAt {
  const char* input = nullptr;
  char* over = nullptr;

  RowsAt Plus(int64_t bytes) const {
    return {input + bytes, over == nullptr ? nullptr : over + bytes};
  }
};

// The tokens of a layer, if a job may take several; else more than there are. Layers share their
// positions, so that each row of a move is composed once for all of them.
int64_t LayerTokens(const Plan& plan, const Layout& layout) {
  const bool has_layers = !layout.token_axes.empty() && layout.token_axes.front().letter == 'L';
  if (plan.table == nullptr || !has_layers || plan.tokens == 0) {
    return std::numeric_limits<int64_t>::max();
  }
  return plan.tokens / layout.token_axes.front().length;
}

// Appends jobs for one tensor, and computes where each job's output lies. The cutters below find
// the input: they call Add with rectangles of tokens and heads whose rows are evenly spaced in
// memory.
class JobWriter {
 public:
  JobWriter(const TensorPlan& tensor, char* output, const JobTiler::Shared& shared,
            std::atomic<int64_t>* saturated, Jobs& jobs)
      : tensor_(tensor),
        input_element_bytes_(kernels::ElementBytes(tensor.dtype)),
        output_element_bytes_(kernels::ElementBytes(tensor.output_dtype)),
        output_(output),
        each_(LayerTokens(shared.plan, tensor.layout)),
        shared_(shared),
        saturated_(saturated),
        jobs_(jobs) {}

  // The whole layers that one job takes, of the tokens [begin, end); at least 1.
  int64_t LayersFrom(int64_t begin, int64_t end) const {
    return begin % each_ == 0 ? std::max<int64_t>((end - begin) / each_, 1) : 1;
  }

  // Adds tokens [token, token + tokens) and heads [head, head + heads), which start at `rows`.
  // Makes one job for each HeadSpan that the heads touch.
  void Add(int64_t token, int64_t tokens, int64_t head, int64_t heads, RowsAt rows,
           kernels::Strides input_strides) {
    for (const HeadSpan& span : tensor_.heads) {
      const int64_t begin = std::max(span.begin, head);
      const int64_t end = std::min(span.end, head + heads);
      if (begin >= end) continue;
      const RowsAt from = rows.Plus((begin - head) * input_strides.head * input_element_bytes_);
      AddSpan(token, tokens, begin, end - begin, from, input_strides, span);
    }
  }

  // Adds tokens of a paged tensor, which are evenly spaced, at elements `from` of `input` and `to`
  // of the output, and the same tokens of the layers that follow.
  void AddPaged(int64_t token, int64_t tokens, int64_t layers, const char* input, int64_t from,
                int64_t to) {
    const PagedPlan& paged = *tensor_.paged;
    const kernels::Strides strides = {paged.token_stride, paged.head_stride, paged.layer_stride};
    for (const HeadSpan& span : tensor_.heads) {
      const int64_t heads = span.begin * paged.head_stride;
      AddJob(token, tokens, span.end - span.begin, {input + (from + heads) * input_element_bytes_},
             strides, to + heads, strides, span, layers);
    }
  }

  // Distances between tokens and heads of a packed tensor.
  kernels::Strides PackedStrides() const {
    const Layout& layout = tensor_.layout;
    if (layout.post == 1) return {layout.heads * layout.head_dim, layout.head_dim};
    return {layout.head_dim, layout.post * layout.head_dim};
  }

 private:
  // Heads of one HeadSpan. A packed output takes them in one job. An output with strides takes one
  // job for each run along the last token axis.
  void AddSpan(int64_t token, int64_t tokens, int64_t head, int64_t heads, RowsAt rows,
               kernels::Strides input_strides, const HeadSpan& span) {
    const Layout& layout = tensor_.layout;
    if (!tensor_.output_strides.has_value()) {
      kernels::Strides packed = PackedStrides();
      int64_t offset = RowOf(token, head, layout) * layout.head_dim;
      for (int64_t count = 0; tokens > 0; tokens -= count) {
        const int64_t layers = LayersFrom(token, token + tokens);
        count = layers > 1 ? layers * each_ : std::min(tokens, each_ - token % each_);
        if (layers > 1) {
          input_strides.layer = each_ * input_strides.token;
          packed.layer = each_ * packed.token;
        }
        AddJob(token, count / layers, heads, rows, input_strides, offset, packed, span, layers);
        token += count;
        rows = rows.Plus(count * input_strides.token * input_element_bytes_);
        offset += count * packed.token;
      }
      return;
    }
    const LayoutStrides& strides = *tensor_.output_strides;
    const int64_t run = layout.run();
    const int64_t step = layout.token_axes.empty() ? 0 : strides.token_axes.back();
    for (const int64_t end = token + tokens; token < end;) {
      const int64_t count = std::min(end - token, run - token % run);
      const int64_t offset = OffsetOf(token, layout, strides) + head * strides.head;
      AddJob(token, count, heads, rows, input_strides, offset, {step, strides.head}, span);
      rows = rows.Plus(count * input_strides.token * input_element_bytes_);
      token += count;
    }
  }

  void AddJob(int64_t token, int64_t tokens, int64_t heads, RowsAt rows,
              kernels::Strides input_strides, int64_t output_offset,
              kernels::Strides output_strides, const HeadSpan& span, int64_t layers = 1) {
    kernels::RotateJob& job = jobs_.emplace_back();
    job.input = rows.input;
    job.input_strides = input_strides;
    if (rows.over != nullptr) {
      job.output = rows.over;
      job.output_strides = input_strides;
    } else {
      job.output = output_ + output_offset * output_element_bytes_;
      job.output_strides = output_strides;
    }
    job.tokens = tokens;
    job.heads = heads;
    job.layers = layers;
    const Plan& plan = shared_.plan;
    SetOps(plan, tensor_, span, job);
    job.streams = plan.bytes() > kernels::kCachedBytesMax;
    job.saturated = saturated_;
    const auto first = static_cast<size_t>(token);
    const auto count = static_cast<size_t>(tokens);
    if (tensor_.token_scaled) {
      job.token_scales = absl::MakeConstSpan(plan.token_scales).subspan(first, count);
    }
    if (!span.rotates || !plan.rotates) return;
    if (plan.table != nullptr) {
      job.move = {&plan.table->rows,
                  absl::MakeConstSpan(plan.from_positions[0]).subspan(first, count),
                  absl::MakeConstSpan(plan.positions[0]).subspan(first, count)};
    } else {
      job.rows =
          shared_.rows[span.row_set].subspan(static_cast<size_t>(token - shared_.begin), count);
    }
  }

  const TensorPlan& tensor_;
  const int64_t input_element_bytes_;
  const int64_t output_element_bytes_;
  char* const output_;
  const int64_t each_;
  const JobTiler::Shared& shared_;
  std::atomic<int64_t>* const saturated_;
  Jobs& jobs_;
};

// Cuts a packed tensor, whose rows of head_dim channels are numbered in memory order. The layout is
// [pre][heads][post][head_dim]: `post` counts the tokens inside a head.
//
//   post == 1: all heads of a token are adjacent. Consecutive rows make up to three rectangles: the
//              last heads of a token, whole tokens, and the first heads of the next token.
//   post > 1:  consecutive rows are tokens of one head, up to the end of a block of `post` tokens.
class PackedCutter {
 public:
  PackedCutter(const TensorPlan& tensor, JobWriter& writer, std::list<JobTiler::Gathered>& gathered)
      : layout_(tensor.layout),
        row_bytes_(tensor.layout.head_dim * kernels::ElementBytes(tensor.dtype)),
        tensor_(tensor),
        writer_(writer),
        gathered_(gathered) {
    int64_t offset = 0;
    for (std::string_view fragment : tensor_.input.fragments) {
      fragment_begin_.push_back(offset);
      offset += static_cast<int64_t>(fragment.size());
    }
  }

  void CutTokens(int64_t begin, int64_t end) {
    if (layout_.heads == 0) return;
    if (layout_.post == 1) {  // heads are inside tokens: one run
      CutRun(begin * layout_.heads, end * layout_.heads);
      return;
    }
    while (begin < end) {  // tokens are inside heads: one run for each head of each block of tokens
      const int64_t block_end = std::min(end, (begin / layout_.post + 1) * layout_.post);
      for (int64_t head = 0; head < layout_.heads; ++head) {
        const int64_t row = RowOf(begin, head, layout_);
        CutRun(row, row + block_end - begin);
      }
      begin = block_end;
    }
  }

 private:
  // Cuts rows [row, end), which are consecutive but may lie in several fragments. Whole rows of a
  // fragment are used in place; a row that the fragment's end cuts is gathered.
  void CutRun(int64_t row, int64_t end) {
    size_t fragment = FragmentOf(row * row_bytes_);
    while (row < end) {
      const int64_t byte = row * row_bytes_;
      while (byte >= FragmentEnd(fragment)) ++fragment;
      const int64_t whole = std::min((FragmentEnd(fragment) - byte) / row_bytes_, end - row);
      if (whole > 0) {
        AddRows(row, row + whole, At(fragment, byte));
        row += whole;
      } else {
        AddRows(row, row + 1, Gather(fragment, byte));
        ++row;
      }
    }
  }

  // Index of the fragment that holds `byte`.
  size_t FragmentOf(int64_t byte) const {
    const auto next = std::upper_bound(fragment_begin_.begin(), fragment_begin_.end(), byte);
    return static_cast<size_t>(next - fragment_begin_.begin()) - 1;
  }

  int64_t FragmentEnd(size_t fragment) const {
    return fragment_begin_[fragment] +
           static_cast<int64_t>(tensor_.input.fragments[fragment].size());
  }

  RowsAt At(size_t fragment, int64_t byte) const {
    const RowsAt begin = {tensor_.input.fragments[fragment].data(),
                          tensor_.overwritten.empty() ? nullptr : tensor_.overwritten[fragment]};
    return begin.Plus(byte - fragment_begin_[fragment]);
  }

  // Copies the row that starts at `byte` in `fragment` and ends in a later fragment. If the results
  // overwrite the rows, it notes where the pieces came from; PutBack copies the result there.
  RowsAt Gather(size_t fragment, int64_t byte) {
    auto& [row, places] = gathered_.emplace_back();
    row.reserve(static_cast<size_t>(row_bytes_));
    while (static_cast<int64_t>(row.size()) < row_bytes_) {
      ROPE_CHECK(fragment < tensor_.input.fragments.size());
      const auto available = static_cast<size_t>(FragmentEnd(fragment) - byte);
      const size_t count = std::min(available, static_cast<size_t>(row_bytes_) - row.size());
      const RowsAt piece = At(fragment, byte);
      row.append(piece.input, count);
      if (piece.over != nullptr) places.emplace_back(piece.over, count);
      byte += static_cast<int64_t>(count);
      ++fragment;
    }
    return {row.data(), places.empty() ? nullptr : row.data()};
  }

  // Adds rows [begin, end) at `rows`: one rectangle, or up to three if heads lie inside tokens.
  void AddRows(int64_t begin, int64_t end, RowsAt rows) {
    const int64_t heads = layout_.heads;
    const kernels::Strides strides = writer_.PackedStrides();
    if (layout_.post != 1) {  // tokens of one head
      const int64_t block = begin / layout_.post;
      const int64_t token = block / heads * layout_.post + begin % layout_.post;
      writer_.Add(token, end - begin, block % heads, 1, rows, strides);
      return;
    }
    for (int64_t row = begin; row < end;) {
      const bool whole_tokens = row % heads == 0 && end - row >= heads;
      const int64_t tokens = whole_tokens ? (end - row) / heads : 1;
      const int64_t job_heads = whole_tokens ? heads : std::min(end - row, heads - row % heads);
      writer_.Add(row / heads, tokens, row % heads, job_heads,
                  rows.Plus((row - begin) * row_bytes_), strides);
      row += tokens * job_heads;
    }
  }

  const Layout& layout_;
  const int64_t row_bytes_;
  const TensorPlan& tensor_;
  JobWriter& writer_;
  std::list<JobTiler::Gathered>& gathered_;
  absl::InlinedVector<int64_t, 2> fragment_begin_;
};

// Cuts a tensor with strides: one rectangle for each run of tokens along the last token axis, where
// one stride leads from token to token. A job needs adjacent channels.
void CutStrided(const TensorPlan& tensor, int64_t begin, int64_t end, JobWriter& writer,
                std::list<JobTiler::Gathered>& gathered) {
  const Layout& layout = tensor.layout;
  const LayoutStrides& strides = *tensor.strides;
  const int64_t element_bytes = kernels::ElementBytes(tensor.dtype);
  const int64_t step = layout.token_axes.empty() ? 0 : strides.token_axes.back();
  for (int64_t tokens = 0; begin < end; begin += tokens) {
    tokens = std::min(end - begin, layout.run() - begin % layout.run());
    const char* const input =
        tensor.input.fragments.front().data() + OffsetOf(begin, layout, strides) * element_bytes;
    if (!tensor.IsGathered()) {
      writer.Add(begin, tokens, 0, layout.heads, {input}, {step, strides.head});
      continue;
    }
    std::string& copy = gathered.emplace_back().bytes;
    copy.reserve(static_cast<size_t>(tokens * layout.heads * layout.head_dim * element_bytes));
    for (int64_t row = 0; row < tokens * layout.heads; ++row) {
      const int64_t offset = row / layout.heads * step + row % layout.heads * strides.head;
      for (int64_t d = 0; d < layout.head_dim; ++d) {
        copy.append(input + (offset + d * strides.channel) * element_bytes,
                    static_cast<size_t>(element_bytes));
      }
    }
    writer.Add(begin, tokens, 0, layout.heads, {copy.data()},
               {layout.heads * layout.head_dim, layout.head_dim});
  }
}

// Cuts a paged tensor: one rectangle for each run of adjacent slots in a page, of the tokens and of
// the results, in as many layers as one job takes.
void CutPages(const TensorPlan& tensor, int64_t begin, int64_t end, JobWriter& writer) {
  const PagedPlan& paged = *tensor.paged;
  const auto each = static_cast<int64_t>(paged.slots->size());  // tokens of a layer
  const char* const input = tensor.input.fragments.front().data();
  while (begin < end) {
    const int64_t layers = writer.LayersFrom(begin, end);
    const int64_t layer = begin / each * paged.layer_stride;
    const int64_t stop = std::min(end, (begin / each + 1) * each);  // of the first layer
    for (int64_t token = begin, tokens = 1; token < stop; token += tokens) {
      const int64_t* const slots = paged.slots->data() + token % each;
      const int64_t* const targets = paged.targets->data() + token % each;
      tokens = 1;
      if (slots[0] < 0 || targets[0] < 0) continue;
      const int64_t most = std::min({stop - token, paged.block_size - slots[0] % paged.block_size,
                                     paged.block_size - targets[0] % paged.block_size});
      while (tokens < most && slots[tokens] == slots[0] + tokens &&
             targets[tokens] == targets[0] + tokens) {
        ++tokens;
      }
      writer.AddPaged(token, tokens, layers, input, layer + paged.OffsetOf(slots[0]),
                      layer + paged.OffsetOf(targets[0]));
    }
    begin = stop + (layers - 1) * each;
  }
}

// The jobs that a tensor becomes for each run of tokens, and the length of a run.
std::pair<int64_t, int64_t> JobRunsOf(const TensorPlan& tensor) {
  const Layout& layout = tensor.layout;
  const int64_t spans = std::ssize(tensor.heads);
  // Pages are whole; slots may be anywhere.
  if (tensor.paged.has_value()) {
    return {spans, tensor.paged->pages_shape.empty() ? 1 : tensor.paged->block_size};
  }
  if (tensor.strides.has_value()) return {spans, layout.run()};
  const int64_t run =
      tensor.output_strides.has_value() ? layout.run() : std::numeric_limits<int64_t>::max();
  if (layout.post == 1) return {spans, run};
  return {layout.heads, std::min(run, layout.post)};  // tokens inside heads: each head has its jobs
}

// The kTokenBytesMax of a tensor whose channels are not adjacent: a slice of it is copied first.
constexpr int64_t kGatheredTokenBytesMax = limits::kSliceBytesMax;

// Of all results that the reply has as numbers.
absl::Status CheckNumbers(const Plan& plan) {
  int64_t elements = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.numbers && tensor.IsInReply()) elements += tensor.elements();
  }
  return CheckAtMost(elements, limits::kReplyNumbersMax, "tensors", " numbers in the reply",
                     ", or raw bytes");
}

absl::Status CheckTokenBytes(const Plan& plan) {
  ROPE_RETURN_IF_ERROR(CheckAtMost(plan.bytes_per_token, limits::kTokenBytesMax, "tensors",
                                   " bytes for each token"));
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const int64_t bytes = plan.tensors[i].token_bytes();
    if (!plan.tensors[i].IsGathered() || bytes <= kGatheredTokenBytesMax) continue;
    return MakeError(Reason::kLimitExceeded, absl::StrCat("tensors[", i, "].array.strides"),
                     absl::StrCat("a channel stride of ", plan.tensors[i].strides->channel, " and ",
                                  bytes, " bytes for each token"),
                     absl::StrCat("a channel stride of 1, or at most ", kGatheredTokenBytesMax));
  }
  return absl::OkStatus();
}

}  // namespace

void SetOps(const Plan& plan, const TensorPlan& tensor, const HeadSpan& span,
            kernels::RotateJob& job) {
  job.head_dim = tensor.layout.head_dim;
  job.dtype = tensor.dtype;
  if (span.rotates && plan.rotates) {
    job.geometry = plan.geometry;
    job.geometry.offset = tensor.rotary_offset.value_or(job.geometry.offset);
    job.conjugate = plan.conjugate;
    job.arithmetic = plan.arithmetic;
  }
  if (tensor.norm_eps.has_value()) {
    const bool weighted = tensor.norm_weight != nullptr;
    job.norm = {weighted ? tensor.norm_weight->data() : nullptr, *tensor.norm_eps};
  }
  job.scale = tensor.scale;
  job.output_dtype = tensor.output_dtype;
  job.output_scale = tensor.output_scale;
}

void JobTiler::Cut(const TensorPlan& tensor, char* output, const Shared& shared,
                   std::atomic<int64_t>* saturated, Jobs& jobs) {
  JobWriter writer(tensor, output, shared, saturated, jobs);
  if (!tensor.paged.has_value() && !tensor.strides.has_value()) {
    return PackedCutter(tensor, writer, gathered_).CutTokens(shared.begin, shared.end);
  }
  if (tensor.elements() == 0 || tensor.input.fragments.empty()) return;
  ROPE_CHECK(tensor.input.fragments.size() == 1);
  if (tensor.paged.has_value()) {
    CutPages(tensor, shared.begin, shared.end, writer);
  } else {
    CutStrided(tensor, shared.begin, shared.end, writer, gathered_);
  }
}

// Copies each gathered row, rotated by now, piece by piece to its places in the fragments.
void JobTiler::PutBack() const {
  for (const Gathered& gathered : gathered_) {
    const char* from = gathered.bytes.data();
    for (const absl::Span<char> place : gathered.places) {
      std::memcpy(place.data(), from, place.size());
      from += place.size();
    }
  }
}

absl::Status BoundJobs(Plan& plan) {
  plan.jobs = {};
  if (plan.bytes() == 0) return absl::OkStatus();
  ROPE_RETURN_IF_ERROR(CheckTokenBytes(plan));
  ROPE_RETURN_IF_ERROR(CheckNumbers(plan));
  int64_t units = 0;  // the jobs of one token
  for (const TensorPlan& tensor : plan.tensors) {
    const auto [jobs, run] = JobRunsOf(tensor);
    units += jobs;
    plan.jobs.per_token += static_cast<double>(jobs) / static_cast<double>(run);
  }
  // A slice may begin and end within a run, and have layers between its first and its last run.
  plan.jobs.fixed = (plan.table == nullptr ? 2 : 3) * units;
  return CheckAtMost(units, limits::kJobsMax, "tensors",
                     " separate heads and head_ranges for each token",
                     ", or H behind the token axes");
}

}  // namespace rope::server
