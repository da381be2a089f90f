#include "kernels/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backend/worker_pool.h"

namespace rope::kernels {
namespace {

struct Piece {
  const RotateJob* job;
  RotateRange range;
};

// The pieces of a batch, in order, grouped into portions of about `portion_bytes`. A portion is one
// item of the worker pool: portion p is the pieces [ends[p - 1], ends[p]).
struct Split {
  int64_t portion_bytes;
  std::vector<Piece> pieces = {};
  std::vector<size_t> ends = {};
  int64_t open_bytes = 0;  // bytes in the last portion, which is not closed yet

  void Add(const RotateJob& job, const RotateRange& range, int64_t bytes) {
    pieces.push_back({&job, range});
    open_bytes += bytes;
    if (open_bytes >= portion_bytes) Close();
  }
  void Close() {
    if (open_bytes > 0) ends.push_back(pieces.size());
    open_bytes = 0;
  }
};

// Cuts a job into pieces of whole tokens, each of which fills a portion. A token larger than a
// portion is cut by heads.
void AddJob(const RotateJob& job, Split& split) {
  const int64_t head_bytes = std::max<int64_t>(job.head_dim * ElementBytes(job.dtype), 1);
  const int64_t heads = std::clamp<int64_t>(split.portion_bytes / head_bytes, 1, job.heads);
  const int64_t token_bytes = heads * head_bytes;
  for (int64_t token = 0; token < job.tokens;) {
    const int64_t room = heads < job.heads ? 1 : split.portion_bytes - split.open_bytes;
    const int64_t tokens = std::min((room + token_bytes - 1) / token_bytes, job.tokens - token);
    for (int64_t head = 0; head < job.heads; head += heads) {
      const int64_t head_end = std::min(head + heads, job.heads);
      split.Add(job, {token, token + tokens, head, head_end},
                tokens * (head_end - head) * head_bytes);
    }
    token += tokens;
  }
}

// Each thread gets as many portions of at most about kCpuSliceBytes as any other.
int64_t PortionBytes(int64_t bytes, int threads) {
  const int64_t portions = (bytes + kCpuSliceBytes - 1) / kCpuSliceBytes;
  const int64_t sharing = std::min<int64_t>(portions, threads);
  const int64_t rounds = (portions + sharing - 1) / sharing;
  return (bytes + sharing * rounds - 1) / (sharing * rounds);
}

class CpuBackend : public Backend {
 public:
  CpuBackend(const BackendOptions& options, CpuTarget target)
      : target_(std::move(target)), pool_(options.threads) {}

  std::string_view name() const override { return "cpu"; }
  std::string detail() const override {
    return absl::StrFormat("%s, %d thread%s", target_.name, pool_.threads(),
                           pool_.threads() == 1 ? "" : "s");
  }

  // Takes no lock. Pieces do not overlap, so the threads need no synchronisation but ParallelFor's.
  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    int64_t total_bytes = 0;
    bool only_turns = true;
    for (const RotateJob& job : jobs) {
      CheckJob(job);
      total_bytes += job.bytes();
      only_turns = only_turns && job.OnlyTurns();
    }
    const int64_t alone_bytes = only_turns ? kCpuAloneBytes : kCpuSliceBytes;
    if (total_bytes <= alone_bytes || pool_.threads() == 1) {
      for (const RotateJob& job : jobs) target_.rotate(job, {0, job.tokens, 0, job.heads});
      return absl::OkStatus();
    }
    Split split = {.portion_bytes = PortionBytes(total_bytes, pool_.threads())};
    for (const RotateJob& job : jobs) {
      if (job.tokens > 0 && job.heads > 0) AddJob(job, split);
    }
    split.Close();
    pool_.ParallelFor(static_cast<int64_t>(split.ends.size()), [&](int64_t item) {
      const size_t portion = static_cast<size_t>(item);
      for (size_t i = portion == 0 ? 0 : split.ends[portion - 1]; i < split.ends[portion]; ++i) {
        target_.rotate(*split.pieces[i].job, split.pieces[i].range);
      }
    });
    return absl::OkStatus();
  }

 private:
  const CpuTarget target_;
  WorkerPool pool_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options, const CpuTarget& target) {
  return std::make_unique<CpuBackend>(options, target);
}

}  // namespace rope::kernels
