// CudaPageMirror: the CUDA backend's cache of table pages, in one block of device memory.
//
// Pages are identified by id, because addresses can be reused. The block is a ring: new pages take
// the place of the oldest ones that no batch uses, one behind the other, so that the pages of a
// sequence are neighbours. A batch that needs a page which another batch is uploading waits for it.
// States of a page:
//
//   absent --Acquire--> uploading --ok--> ready, pinned <--Acquire/last lease ends--> ready, unused
//      ^                    |                                                            |
//      +------ error -------+                                                            |
//      +---------- the ring comes round, or the block is emptied to make room -----------+
//
// Threading:  Thread-safe. No lock is held during a CUDA call.
// Ownership:  The block is the caller's. A lease keeps its pages on the device. Leases end before
//             the mirror is destroyed, and after the work that reads their pages.
// Errors:     As CudaStatus: an upload failed, the batch's own or one that it waits for. The pages
//             of that upload are dropped, and the next batch uploads them again.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/cuda/cuda_memory.h"
#include "kernels/tables/table_page.h"
#include "proto/mutex.h"

namespace rope::kernels {

// The largest page that the mirror takes: a sixteenth of the smallest block.
inline constexpr int64_t kCudaPageBytesMax = 512 << 10;

class CudaPageMirror {
  struct Entry;

 public:
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : mirror_(std::exchange(other.mirror_, nullptr)), entries_(std::move(other.entries_)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(mirror_, other.mirror_);
      std::swap(entries_, other.entries_);
      return *this;
    }
    ~Lease();

    // The device address of the first row of page number `index` in Acquire.
    const float* address(size_t index) const;

   private:
    friend class CudaPageMirror;
    CudaPageMirror* mirror_ = nullptr;
    std::vector<std::shared_ptr<Entry>> entries_;
  };

  CudaPageMirror(char* block, int64_t bytes) : block_(block), bytes_(bytes) {}
  CudaPageMirror(const CudaPageMirror&) = delete;
  CudaPageMirror& operator=(const CudaPageMirror&) = delete;

  // Returns a lease of `pages`, after uploads through the memory and the stream of `lane`, which
  // has no work in flight. If pages in use leave no room: waits for leases to end, or without
  // `wait` returns nullopt. REQUIRES: the pages are alive until this returns; their sizes are
  // multiples of 256 bytes, at most kCudaPageBytesMax, and together at most half of the block; with
  // `wait` the calling thread holds no lease.
  absl::StatusOr<std::optional<Lease>> Acquire(absl::Span<const TablePage* const> pages,
                                               const CudaLane& lane, bool wait);

 private:
  struct Upload {
    const TablePage* page;
    Entry* entry;
  };

  bool Pin(absl::Span<const TablePage* const> pages, Lease& lease, std::vector<Upload>& uploads)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The page's entry, pinned; null if it has none.
  std::shared_ptr<Entry> PinExisting(const TablePage& page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<int64_t> Place(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CopyPages(const std::vector<Upload>& uploads, const CudaLane& lane) const;
  void Settle(const std::vector<Upload>& uploads, const absl::Status& status);
  absl::Status WaitForOthers(const Lease& lease);
  void Unpin(absl::Span<const std::shared_ptr<Entry>> entries);

  char* const block_;
  const int64_t bytes_;
  proto::Mutex mu_;
  proto::CondVar changed_;  // signalled when entries leave kUploading, and when a lease ends
  absl::flat_hash_map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, Entry*> by_offset_ ABSL_GUARDED_BY(mu_);  // the same entries
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;                     // where the ring goes on
  int64_t leases_ ABSL_GUARDED_BY(mu_) = 0;                   // that have not ended
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_
