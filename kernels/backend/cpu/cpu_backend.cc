#include "kernels/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backend/worker_pool.h"

namespace rope::kernels {
namespace {

// Tokens of a piece with several layers, if the job has as many and each has its own row: the
// memory of a layer's tokens is read in one run.
constexpr int64_t kTokensTogether = 32;

struct Piece {
  const RotateJob* job;
  RotateRange range;
};

const void* InputOf(const RotateJob& job, const RotateRange& range) {
  const int64_t elements = range.token_begin * job.input_strides.token +
                           range.head_begin * job.input_strides.head +
                           range.layer_begin * job.input_strides.layer;
  return static_cast<const char*>(job.input) + elements * ElementBytes(job.dtype);
}

// The pieces of a batch, in order, grouped into portions of about `portion_bytes`. A portion is one
// item of the worker pool.
struct Split {
  int64_t portion_bytes;
  int64_t room = portion_bytes;  // in the last portion
  std::vector<std::vector<Piece>> portions = {};

  void Add(const RotateJob& job, const RotateRange& range, int64_t bytes) {
    if (!portions.empty()) portions.back().back().range.next = InputOf(job, range);
    if (room == portion_bytes) portions.emplace_back();
    portions.back().push_back({&job, range});
    room = room > bytes ? room - bytes : portion_bytes;
  }
};

// Cuts a job into pieces of whole tokens, each of which fills a portion. A token larger than a
// portion is cut by heads. A piece has as many layers as leave room for the tokens that belong
// together.
void AddJob(const RotateJob& job, Split& split) {
  const int64_t head_bytes = std::max<int64_t>(job.head_dim * ElementBytes(job.dtype), 1);
  const int64_t heads = std::clamp<int64_t>(split.portion_bytes / head_bytes, 1, job.heads);
  int64_t layers = 1;
  if (job.layers > 1) {
    const bool one_row = job.SharesRow(0, job.tokens);
    const int64_t together = one_row ? job.tokens : std::min(job.tokens, kTokensTogether);
    layers =
        std::clamp<int64_t>(split.portion_bytes / (heads * head_bytes * together), 1, job.layers);
  }
  for (int64_t layer = 0; layer < job.layers; layer += layers) {
    const int64_t layer_end = std::min(layer + layers, job.layers);
    const int64_t part_bytes = (layer_end - layer) * head_bytes;
    for (int64_t token = 0, tokens = 1; token < job.tokens; token += tokens) {
      if (heads == job.heads) tokens = (split.room - 1) / (heads * part_bytes) + 1;
      tokens = std::min(tokens, job.tokens - token);
      for (int64_t head = 0; head < job.heads; head += heads) {
        const int64_t head_end = std::min(head + heads, job.heads);
        split.Add(job, {token, token + tokens, head, head_end, layer, layer_end},
                  tokens * (head_end - head) * part_bytes);
      }
    }
  }
}

// So that each thread has as many portions as any other, each of at most about kCpuSliceBytes.
int64_t PortionBytes(int64_t bytes, int threads) {
  const int64_t sharing = std::min<int64_t>((bytes - 1) / kCpuSliceBytes + 1, threads);
  const int64_t portions = ((bytes - 1) / (sharing * kCpuSliceBytes) + 1) * sharing;
  return (bytes - 1) / portions + 1;
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
      only_turns = only_turns && job.OnlyTurns() && !job.move;
    }
    const int64_t alone_bytes = only_turns ? kCpuAloneBytes : kCpuSliceBytes;
    if (total_bytes <= alone_bytes || pool_.threads() == 1) {
      for (size_t i = 0; i < jobs.size(); ++i) {
        const void* const next = i + 1 < jobs.size() ? jobs[i + 1].input : nullptr;
        target_.rotate(jobs[i], {0, jobs[i].tokens, 0, jobs[i].heads, 0, jobs[i].layers, next});
      }
      return absl::OkStatus();
    }
    Split split = {.portion_bytes = PortionBytes(total_bytes, pool_.threads())};
    for (const RotateJob& job : jobs) {
      if (job.tokens > 0 && job.heads > 0) AddJob(job, split);
    }
    pool_.ParallelFor(std::ssize(split.portions), [&](int64_t item) {
      for (const Piece& piece : split.portions[static_cast<size_t>(item)]) {
        target_.rotate(*piece.job, piece.range);
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
