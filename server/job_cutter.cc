#include "server/job_cutter.h"

#include <algorithm>

#include "kernels/check.h"

namespace rope::server {
namespace {

// Cuts one tensor. Rows of D channels are numbered as they lie in memory.
class TensorCutter {
 public:
  TensorCutter(const TensorPlan& tensor, char* output, const JobCutter::Shared& shared,
               std::deque<std::string>& gathered, std::vector<kernels::RotateJob>& jobs)
      : layout_(tensor.layout),
        dtype_(tensor.dtype),
        row_bytes_(tensor.layout.head_dim * kernels::ElementBytes(tensor.dtype)),
        input_(tensor.input),
        output_(output),
        shared_(shared),
        gathered_(gathered),
        jobs_(jobs) {
    int64_t offset = 0;
    for (std::string_view fragment : input_.fragments) {
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
      const int64_t pre = begin / layout_.post;
      const int64_t block_end = std::min(end, (pre + 1) * layout_.post);
      for (int64_t head = 0; head < layout_.heads; ++head) {
        const int64_t block = (pre * layout_.heads + head) * layout_.post;
        CutRun(block + begin % layout_.post, block + begin % layout_.post + block_end - begin);
      }
      begin = block_end;
    }
  }

 private:
  // Rows [row, end) lie one after the other; their bytes may still lie in several fragments.
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
    return fragment_begin_[fragment] + static_cast<int64_t>(input_.fragments[fragment].size());
  }

  const char* At(size_t fragment, int64_t byte) const {
    return input_.fragments[fragment].data() + (byte - fragment_begin_[fragment]);
  }

  // A copy of the row that starts in `fragment` and ends in a later one.
  const char* Gather(size_t fragment, int64_t byte) {
    std::string& row = gathered_.emplace_back();
    row.reserve(static_cast<size_t>(row_bytes_));
    while (static_cast<int64_t>(row.size()) < row_bytes_) {
      ROPE_CHECK(fragment < input_.fragments.size());
      const auto available = static_cast<size_t>(FragmentEnd(fragment) - byte);
      const size_t count = std::min(available, static_cast<size_t>(row_bytes_) - row.size());
      row.append(At(fragment, byte), count);
      byte += static_cast<int64_t>(count);
      ++fragment;
    }
    return row.data();
  }

  // Rows [begin, end) at `input`: one rectangle, or up to three where heads are inside tokens.
  void AddRows(int64_t begin, int64_t end, const char* input) {
    if (layout_.post != 1) {
      const int64_t pre = begin / layout_.post / layout_.heads;
      AddJob(pre * layout_.post + begin % layout_.post, end - begin, 1, begin, input);
      return;
    }
    const int64_t heads = layout_.heads;
    for (int64_t row = begin; row < end;) {
      const bool whole_tokens = row % heads == 0 && end - row >= heads;
      const int64_t tokens = whole_tokens ? (end - row) / heads : 1;
      const int64_t job_heads = whole_tokens ? heads : std::min(end - row, heads - row % heads);
      AddJob(row / heads, tokens, job_heads, row, input + (row - begin) * row_bytes_);
      row += tokens * job_heads;
    }
  }

  void AddJob(int64_t token, int64_t tokens, int64_t heads, int64_t row, const char* input) {
    kernels::RotateJob& job = jobs_.emplace_back();
    job.input = input;
    job.output = output_ + row * row_bytes_;
    const int64_t token_stride =
        layout_.post == 1 ? layout_.heads * layout_.head_dim : layout_.head_dim;
    job.input_strides = {token_stride, layout_.head_dim};
    job.output_strides = job.input_strides;
    job.tokens = tokens;
    job.heads = heads;
    job.head_dim = layout_.head_dim;
    job.dtype = dtype_;
    job.geometry = shared_.geometry;
    job.conjugate = shared_.conjugate;
    job.rows = shared_.rows.subspan(static_cast<size_t>(token - shared_.begin),
                                    static_cast<size_t>(tokens));
  }

  const Layout& layout_;
  const kernels::DType dtype_;
  const int64_t row_bytes_;
  const proto::FragmentedBytes& input_;
  char* const output_;
  const JobCutter::Shared& shared_;
  std::deque<std::string>& gathered_;
  std::vector<kernels::RotateJob>& jobs_;
  std::vector<int64_t> fragment_begin_;
};

}  // namespace

void JobCutter::Cut(const TensorPlan& tensor, char* output, const Shared& shared,
                    std::vector<kernels::RotateJob>& jobs) {
  TensorCutter(tensor, output, shared, gathered_, jobs)
      .CutTokens(shared.begin, shared.begin + static_cast<int64_t>(shared.rows.size()));
}

}  // namespace rope::server
