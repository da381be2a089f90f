#include "kernels/backend/cuda/cuda_page_mirror.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

// mu_ guards `pins`, `state` and `failure`; the rest is constant.
struct CudaPageMirror::Entry {
  uint64_t id = 0;
  int64_t bytes = 0;  // rounded up to kAlignment
  int64_t offset = 0;
  const char* address = nullptr;
  int64_t pins = 0;
  enum class State { kUploading, kReady, kFailed } state = State::kUploading;
  absl::Status failure;
};

CudaPageMirror::Lease::~Lease() {
  if (mirror_ != nullptr) mirror_->Unpin(entries_);
}

const float* CudaPageMirror::Lease::address(size_t index) const {
  return reinterpret_cast<const float*>(entries_[index]->address);
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
      if (!wait) return std::nullopt;
      changed_.Wait(&mu_);
    }
  }
  lease.mirror_ = this;
  if (!uploads.empty()) {
    const absl::Status status = CopyPages(uploads, lane);
    Settle(uploads, status);
    ROPE_RETURN_IF_ERROR(status);
  }
  ROPE_RETURN_IF_ERROR(WaitForOthers(lease));
  return std::optional<Lease>(std::move(lease));
}

// Pins the pages that have entries, creates entries for the others and lists these in `uploads`.
// Changes nothing and returns false if one finds no place. Existing pages are pinned first, so that
// no new one takes their place.
bool CudaPageMirror::Pin(absl::Span<const TablePage* const> pages, Lease& lease,
                         std::vector<Upload>& uploads) {
  for (const TablePage* page : pages) {
    std::shared_ptr<Entry>& entry = lease.entries_.emplace_back();
    const auto found = entries_.find(page->id());
    if (found == entries_.end()) continue;
    entry = found->second;
    ++entry->pins;
  }
  bool placed = true;
  for (size_t i = 0; i < pages.size() && placed; ++i) {
    std::shared_ptr<Entry>& entry = lease.entries_[i];
    if (entry != nullptr) continue;
    const int64_t bytes = (pages[i]->bytes() + kAlignment - 1) / kAlignment * kAlignment;
    const std::optional<int64_t> offset = Place(bytes);
    placed = offset.has_value();
    if (!placed) break;
    entry = std::make_shared<Entry>();
    entry->id = pages[i]->id();
    entry->bytes = bytes;
    entry->offset = *offset;
    entry->address = block_ + *offset;
    entry->pins = 1;
    entries_[entry->id] = entry;
    by_offset_[*offset] = entry.get();
    uploads.push_back({pages[i], entry.get()});
  }
  if (placed) {
    statistics_.hits += static_cast<int64_t>(pages.size() - uploads.size());
    return true;
  }
  for (const Upload& upload : uploads) Drop(*upload.entry);
  for (const std::shared_ptr<Entry>& entry : lease.entries_) {
    if (entry != nullptr) --entry->pins;
  }
  uploads.clear();
  lease.entries_.clear();
  return false;
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
      ++statistics_.evictions;
    }
  }
}

void CudaPageMirror::Drop(const Entry& entry) {
  by_offset_.erase(entry.offset);
  entries_.erase(uint64_t{entry.id});
}

// Packs pages into the lane one after the other, and waits for the copies when it is full. Pages
// that are neighbours in the block make one copy, with the gaps between them. A page that is larger
// than the lane goes in parts.
absl::Status CudaPageMirror::CopyPages(const std::vector<Upload>& uploads,
                                       const CudaLane& lane) const {
  int64_t begin = 0;  // [begin, end) of the lane is not copied yet
  int64_t end = 0;
  char* target = nullptr;  // and belongs here
  absl::Status status;
  const auto flush = [&] {
    if (end > begin) {
      status.Update(
          CudaStatus(cudaMemcpyAsync(target, lane.pinned + begin, static_cast<size_t>(end - begin),
                                     cudaMemcpyHostToDevice, lane.stream.get()),
                     "cudaMemcpyAsync"));
    }
    begin = end;
  };
  for (const Upload& upload : uploads) {
    const char* const source = reinterpret_cast<const char*>(upload.page->Cos(0));
    const int64_t bytes = upload.page->bytes();
    for (int64_t done = 0; done < bytes && status.ok();) {
      char* const place = block_ + upload.entry->offset + done;
      if (target + (end - begin) != place) {
        flush();
        begin = end = (end + kAlignment - 1) / kAlignment * kAlignment;
        target = place;
      }
      if (end >= kCudaLaneBytes) {
        flush();
        status.Update(lane.stream.Synchronize());
        begin = end = 0;
        target = place;
      }
      const int64_t part = std::min(bytes - done, kCudaLaneBytes - end);
      std::memcpy(lane.pinned + end, source + done, static_cast<size_t>(part));
      done += part;
      end += part;
    }
    const int64_t gap = upload.entry->bytes - bytes;
    if (end + gap <= kCudaLaneBytes) end += gap;
  }
  if (status.ok()) flush();
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
  if (status.ok()) statistics_.uploads += static_cast<int64_t>(uploads.size());
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
  changed_.SignalAll();
}

CudaPageMirror::Statistics CudaPageMirror::statistics() const {
  proto::MutexLock lock(&mu_);
  Statistics statistics = statistics_;
  statistics.pages = static_cast<int64_t>(entries_.size());
  return statistics;
}

}  // namespace rope::kernels
