#include "kernels/backend/cuda/cuda_page_mirror.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr int64_t kAlignment = 256;
// Size of the pinned staging memory: 32 pages of 64 rows for a rotary_dim of 128.
constexpr int64_t kStagingBytes = 1 << 20;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// mu_ guards all fields except `address` and `loose`. The uploading thread writes these two before
// Settle; other threads read them after WaitForOthers.
struct CudaPageMirror::Entry {
  uint64_t id = 0;
  int64_t bytes = 0;              // rounded up to kAlignment
  std::optional<int64_t> offset;  // in the block; unset if it has no place there
  int64_t pins = 0;
  enum class State { kUploading, kReady, kFailed } state = State::kUploading;
  absl::Status failure;
  std::list<Entry*>::iterator unused;  // place in unused_; valid if pins == 0
  const char* address = nullptr;
  std::optional<CudaBuffer> loose;  // the allocation of an entry without offset
};

CudaPageMirror::CudaPageMirror(int64_t budget_bytes) : budget_bytes_(budget_bytes) {
  holes_[0] = budget_bytes;
}

CudaPageMirror::~CudaPageMirror() = default;

CudaPageMirror::Lease::~Lease() {
  if (mirror_ != nullptr) mirror_->Unpin(entries_);
}

const float* CudaPageMirror::Lease::address(size_t index) const {
  return reinterpret_cast<const float*>(entries_[index]->address);
}

// Three steps with one lock at a time: Pin under mu_, CopyPages under upload_mu_, and Settle and
// WaitForOthers under mu_ again. A batch settles its own uploads before it waits for others, so two
// batches that need each other's pages cannot deadlock. On an error the lease's destructor unpins.
absl::StatusOr<CudaPageMirror::Lease> CudaPageMirror::Acquire(
    absl::Span<const TablePage* const> pages) {
  Lease lease;
  std::vector<Upload> uploads;
  Pin(pages, lease, uploads);
  if (!uploads.empty()) {
    const absl::Status status = CopyPages(uploads);
    Settle(uploads, status);
    ROPE_RETURN_IF_ERROR(status);
  }
  ROPE_RETURN_IF_ERROR(WaitForOthers(lease));
  return lease;
}

void CudaPageMirror::Pin(absl::Span<const TablePage* const> pages, Lease& lease,
                         std::vector<Upload>& uploads) {
  lease.mirror_ = this;
  proto::MutexLock lock(&mu_);
  // Pins existing pages first, so that allocations for the new pages cannot evict them.
  for (const TablePage* page : pages) {
    std::shared_ptr<Entry>& entry = entries_[page->id()];
    if (entry == nullptr) {
      entry = std::make_shared<Entry>();
      entry->id = page->id();
      entry->bytes = RoundUp(page->bytes());
      uploads.push_back({page, entry.get()});
    } else {
      if (entry->pins == 0) unused_.erase(entry->unused);
      ++statistics_.hits;
    }
    ++entry->pins;
    lease.entries_.push_back(entry);
  }
  for (const Upload& upload : uploads) {
    upload.entry->offset = Allocate(upload.entry->bytes);
    if (!upload.entry->offset.has_value()) continue;
    statistics_.bytes += upload.entry->bytes;
    ++statistics_.pages;
  }
}

// Evicts unused pages until a hole is large enough. Pinned pages are not in unused_ and stay.
std::optional<int64_t> CudaPageMirror::Allocate(int64_t bytes) {
  if (bytes > budget_bytes_) return std::nullopt;
  while (true) {
    const std::optional<int64_t> offset = FirstFit(bytes);
    if (offset.has_value() || unused_.empty()) return offset;
    EvictOldest();
  }
}

std::optional<int64_t> CudaPageMirror::FirstFit(int64_t bytes) {
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    const auto [offset, available] = *hole;
    if (available < bytes) continue;
    holes_.erase(hole);
    if (available > bytes) holes_[offset + bytes] = available - bytes;
    return offset;
  }
  return std::nullopt;
}

// Adds a hole and merges it with the holes directly before and after it.
void CudaPageMirror::Free(int64_t offset, int64_t bytes) {
  const auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && next->first == offset + bytes) {
    bytes += next->second;
    holes_.erase(next);
  }
  const auto after = holes_.lower_bound(offset);
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  holes_[offset] = bytes;
}

void CudaPageMirror::EvictOldest() {
  const Entry& oldest = *unused_.front();
  unused_.pop_front();
  Free(*oldest.offset, oldest.bytes);
  ++statistics_.evictions;
  statistics_.bytes -= oldest.bytes;
  --statistics_.pages;
  entries_.erase(oldest.id);
}

absl::Status CudaPageMirror::MakeBlock() {
  if (!staging_.has_value()) {
    ROPE_ASSIGN_OR_RETURN(CudaBuffer buffer,
                          CudaBuffer::Create(CudaBuffer::Kind::kPinned, kStagingBytes));
    ROPE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create());
    staging_.emplace(Staging{std::move(buffer), std::move(stream)});
  }
  if (!block_.has_value()) {
    ROPE_ASSIGN_OR_RETURN(CudaBuffer block,
                          CudaBuffer::Create(CudaBuffer::Kind::kDevice, budget_bytes_));
    block_.emplace(std::move(block));
  }
  return absl::OkStatus();
}

// Holds upload_mu_ for the whole upload, because uploads share the staging memory and its stream.
// Takes mu_ only at the end, for the statistics. After an error the staging memory is created anew.
absl::Status CudaPageMirror::CopyPages(const std::vector<Upload>& uploads) {
  proto::MutexLock lock(&upload_mu_);
  ROPE_RETURN_IF_ERROR(MakeBlock());
  for (const Upload& upload : uploads) {
    Entry& entry = *upload.entry;
    if (entry.offset.has_value()) {
      entry.address = block_->data() + *entry.offset;
      continue;
    }
    ROPE_ASSIGN_OR_RETURN(CudaBuffer loose,
                          CudaBuffer::Create(CudaBuffer::Kind::kDevice, entry.bytes));
    entry.loose.emplace(std::move(loose));
    entry.address = entry.loose->data();
  }
  int64_t copies = 0;
  absl::Status status = CopyThrough(uploads, *staging_, copies);
  if (!status.ok()) {
    static_cast<void>(staging_->stream.Synchronize());  // a copy may still read the staging memory
    staging_.reset();
    return status;
  }
  proto::MutexLock statistics_lock(&mu_);
  statistics_.uploads += static_cast<int64_t>(uploads.size());
  statistics_.copies += copies;
  return absl::OkStatus();
}

// Packs pages into the staging memory one after the other. Pages with adjacent places in the block
// form a run, and a run is one copy. A page outside the block is a copy by itself: its allocation
// may lie directly behind another one, and a copy must not reach across two. When the staging
// memory is full, the function waits for its copies and starts at the beginning again.
absl::Status CudaPageMirror::CopyThrough(const std::vector<Upload>& uploads, const Staging& staging,
                                         int64_t& copies) {
  int64_t begin = 0;  // the current run in the staging memory is [begin, end)
  int64_t end = 0;
  char* target = nullptr;  // device address of the run
  bool joins = false;      // the run's last page is in the block
  const auto flush = [&]() -> absl::Status {
    if (end == begin) return absl::OkStatus();
    ++copies;
    ROPE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(target, staging.buffer.data() + begin, static_cast<size_t>(end - begin),
                        cudaMemcpyHostToDevice, staging.stream.get()),
        "cudaMemcpyAsync"));
    begin = end;
    return absl::OkStatus();
  };
  for (const Upload& upload : uploads) {
    const char* const source = reinterpret_cast<const char*>(upload.page->Cos(0));
    char* const address = const_cast<char*>(upload.entry->address);
    const int64_t bytes = upload.page->bytes();
    const bool in_block = upload.entry->offset.has_value();
    if (!joins || !in_block) ROPE_RETURN_IF_ERROR(flush());
    joins = in_block;
    for (int64_t done = 0; done < bytes;) {
      if (end == staging.buffer.bytes()) {
        ROPE_RETURN_IF_ERROR(flush());
        ROPE_RETURN_IF_ERROR(staging.stream.Synchronize());
        begin = end = 0;
      }
      if (end == begin || target + (end - begin) != address + done) {
        ROPE_RETURN_IF_ERROR(flush());
        target = address + done;
      }
      const int64_t part = std::min(bytes - done, staging.buffer.bytes() - end);
      std::memcpy(staging.buffer.data() + end, source + done, static_cast<size_t>(part));
      done += part;
      end += part;
    }
    // The alignment gap after the page is copied too, so that the next page can join the run.
    end = std::min(end + upload.entry->bytes - bytes, staging.buffer.bytes());
  }
  ROPE_RETURN_IF_ERROR(flush());
  return staging.stream.Synchronize();
}

void CudaPageMirror::Settle(const std::vector<Upload>& uploads, const absl::Status& status) {
  proto::MutexLock lock(&mu_);
  for (const Upload& upload : uploads) {
    upload.entry->state = status.ok() ? Entry::State::kReady : Entry::State::kFailed;
    upload.entry->failure = status;
    // The next batch creates a new entry. Leases keep this one alive until they end.
    if (!status.ok()) entries_.erase(upload.entry->id);
  }
  settled_.SignalAll();
}

absl::Status CudaPageMirror::WaitForOthers(const Lease& lease) {
  proto::MutexLock lock(&mu_);
  for (const std::shared_ptr<Entry>& entry : lease.entries_) {
    while (entry->state == Entry::State::kUploading) settled_.Wait(&mu_);
    if (entry->state == Entry::State::kFailed) return entry->failure;
  }
  return absl::OkStatus();
}

// An entry whose last pin goes is: ready in the block, and becomes evictable; failed in the block,
// and its place is freed (Settle has removed it from entries_); or outside the block, and is
// dropped.
void CudaPageMirror::Unpin(absl::Span<const std::shared_ptr<Entry>> entries) {
  proto::MutexLock lock(&mu_);
  for (const std::shared_ptr<Entry>& entry : entries) {
    if (--entry->pins > 0) continue;
    if (entry->state == Entry::State::kReady && entry->offset.has_value()) {
      entry->unused = unused_.insert(unused_.end(), entry.get());
      continue;
    }
    if (entry->offset.has_value()) {  // failed
      Free(*entry->offset, entry->bytes);
      statistics_.bytes -= entry->bytes;
      --statistics_.pages;
      continue;
    }
    if (entry->state == Entry::State::kReady) entries_.erase(entry->id);
  }
}

CudaPageMirror::Statistics CudaPageMirror::statistics() const {
  proto::MutexLock lock(&mu_);
  return statistics_;
}

}  // namespace rope::kernels
