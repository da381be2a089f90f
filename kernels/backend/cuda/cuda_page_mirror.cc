#include "kernels/backend/cuda/cuda_page_mirror.h"

#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
// mu_ guards `pins`, `state` and `failure`; the rest is constant.
struct CudaPageMirror::Entry {
  uint64_t id = 0;
  int64_t bytes = 0;
  int64_t offset = 0;
  int64_t pins = 0;
  enum class State { kUploading, kReady, kFailed } state = State::kUploading;
  absl::Status failure = absl::OkStatus();
};

CudaPageMirror::Lease::~Lease() {
  if (mirror_ != nullptr) mirror_->Unpin(entries_);
}

const float* CudaPageMirror::Lease::address(size_t index) const {
  return reinterpret_cast<const float*>(mirror_->block_ + entries_[index]->offset);
}

// A batch settles its own uploads before it waits for others, so two batches that need each other's
// pages cannot deadlock. On an error the lease's destructor unpins.
absl::StatusOr<std::optional<CudaPageMirror::Lease>> CudaPageMirror::Acquire(
    absl::Span<const TablePage* const> pages, const CudaLane& lane, bool wait) {
  Lease lease;
  std::vector<Upload> uploads;
  {
    proto::MutexLock lock(&mu_);
    while (!Pin(pages, lease, uploads)) {
      if (leases_ == 0) {
        // Pages of several sizes left gaps that are all too small. An empty block has room.
        entries_.clear();
        by_offset_.clear();
        next_ = 0;
        ROPE_CHECK(Pin(pages, lease, uploads));
        break;
      }
      if (!wait) return std::nullopt;
      changed_.Wait(&mu_);
    }
    ++leases_;
  }
  lease.mirror_ = this;
  if (!uploads.empty()) {
    absl::Cleanup fail = [&] { Settle(uploads, absl::ResourceExhaustedError("")); };  // no memory
    const absl::Status status = CopyPages(uploads, lane);
    std::move(fail).Cancel();
    Settle(uploads, status);
    ROPE_RETURN_IF_ERROR(status);
  }
  ROPE_RETURN_IF_ERROR(WaitForOthers(lease));
  return std::optional<Lease>(std::move(lease));
}

std::shared_ptr<CudaPageMirror::Entry> CudaPageMirror::PinExisting(const TablePage& page) {
  const auto found = entries_.find(page.id());
  if (found == entries_.end()) return nullptr;
  ++found->second->pins;
  return found->second;
}

// Pins the pages that have entries, creates entries for the others and lists these in `uploads`.
// Changes nothing and returns false if one finds no place. Existing pages are pinned first, so that
// no new one takes their place.
bool CudaPageMirror::Pin(absl::Span<const TablePage* const> pages, Lease& lease,
                         std::vector<Upload>& uploads) {
  lease.entries_.resize(pages.size());
  uploads.reserve(pages.size());
  absl::Cleanup undo = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const std::shared_ptr<Entry>& pinned : lease.entries_) {
      if (pinned != nullptr) --pinned->pins;
    }
    for (const Upload& upload : uploads) Drop(*upload.entry);
    uploads.clear();
    lease.entries_.clear();
  };
  for (size_t i = 0; i < pages.size(); ++i) lease.entries_[i] = PinExisting(*pages[i]);
  for (size_t i = 0; i < pages.size(); ++i) {
    std::shared_ptr<Entry>& entry = lease.entries_[i];
    if (entry == nullptr) entry = PinExisting(*pages[i]);  // a page may be named twice
    if (entry != nullptr) continue;
    const std::optional<int64_t> offset = Place(pages[i]->bytes());
    if (!offset.has_value()) return false;
    entry = std::make_shared<Entry>(Entry{pages[i]->id(), pages[i]->bytes(), *offset, 1});
    uploads.push_back({pages[i], entry.get()});
    entries_[entry->id] = entry;
    by_offset_[*offset] = entry.get();
  }
  std::move(undo).Cancel();
  return true;
}

// Goes round the ring once, from where it stands: evicts what is in the way, and steps over pages
// in use.
std::optional<int64_t> CudaPageMirror::Place(int64_t bytes) {
  int64_t offset = next_;
  bool wrapped = false;
  while (true) {
    if (offset + bytes > bytes_) {
      if (wrapped) return std::nullopt;
      wrapped = true;
      offset = 0;
      continue;
    }
    const auto ahead = by_offset_.lower_bound(offset);
    if (ahead == by_offset_.end() || ahead->first >= offset + bytes) {
      next_ = offset + bytes;
      return offset;
    }
    const Entry& entry = *ahead->second;
    if (entry.pins > 0) {
      offset = entry.offset + entry.bytes;
    } else {
      Drop(entry);
    }
  }
}

void CudaPageMirror::Drop(const Entry& entry) {
  by_offset_.erase(entry.offset);
  entries_.erase(uint64_t{entry.id});
}

// Packs pages into the lane one after the other, and waits for the copies when it is full. Pages
// that are neighbours in the block make one copy.
absl::Status CudaPageMirror::CopyPages(const std::vector<Upload>& uploads,
                                       const CudaLane& lane) const {
  int64_t begin = 0;  // [begin, end) of the lane is not copied yet
  int64_t end = 0;
  int64_t offset = 0;  // and belongs here
  const auto copy = [&] {
    if (begin == end) return absl::OkStatus();
    const auto bytes = static_cast<size_t>(end - begin);
    return CudaStatus(cudaMemcpyAsync(block_ + offset, lane.pinned + begin, bytes,
                                      cudaMemcpyHostToDevice, lane.stream.get()),
                      "cudaMemcpyAsync");
  };
  absl::Status status;
  for (const Upload& upload : uploads) {
    const Entry& entry = *upload.entry;
    const bool full = end + entry.bytes > kCudaLaneBytes;
    if (full || offset + end - begin != entry.offset) {
      status.Update(copy());
      if (full) status.Update(lane.stream.Synchronize());
      if (!status.ok()) break;
      begin = end = full ? 0 : end;
      offset = entry.offset;
    }
    std::memcpy(lane.pinned + end, upload.page->Cos(0), static_cast<size_t>(entry.bytes));
    end += entry.bytes;
  }
  if (status.ok()) status = copy();
  status.Update(lane.stream.Synchronize());
  // After an error no copy may be left that reads the lane, or writes to places that others get.
  if (!status.ok()) static_cast<void>(lane.stream.Synchronize());
  return status;
}

void CudaPageMirror::Settle(const std::vector<Upload>& uploads, const absl::Status& status) {
  proto::MutexLock lock(&mu_);
  for (const Upload& upload : uploads) {
    upload.entry->state = status.ok() ? Entry::State::kReady : Entry::State::kFailed;
    upload.entry->failure = status;
    // The next batch creates a new entry. Leases keep this one alive until they end.
    if (!status.ok()) Drop(*upload.entry);
  }
  changed_.SignalAll();
}

absl::Status CudaPageMirror::WaitForOthers(const Lease& lease) {
  proto::MutexLock lock(&mu_);
  for (const std::shared_ptr<Entry>& entry : lease.entries_) {
    while (entry->state == Entry::State::kUploading) changed_.Wait(&mu_);
    if (entry->state == Entry::State::kFailed) return entry->failure;
  }
  return absl::OkStatus();
}

void CudaPageMirror::Unpin(absl::Span<const std::shared_ptr<Entry>> entries) {
  proto::MutexLock lock(&mu_);
  for (const std::shared_ptr<Entry>& entry : entries) --entry->pins;
  --leases_;
  changed_.SignalAll();
}

}  // namespace rope::kernels
