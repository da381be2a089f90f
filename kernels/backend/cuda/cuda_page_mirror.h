// CudaPageMirror: the CUDA backend's cache of table pages, in device memory.
//
// Pages are identified by id, because addresses can be reused. Acquire uploads all missing pages of
// a batch together, with one copy per run of adjacent places. A batch that needs a page which
// another batch is uploading waits for it. One block of device memory holds the pages. States of a
// page:
//
//   absent --Acquire--> uploading --ok--> ready, pinned <--Acquire/last lease ends--> ready, unused
//      ^                    |                                                            |
//      +------ error -------+                                                            |
//      +---------------- evicted, least recently used first ----------------------------+
//
// A page that finds no place in the block gets its own allocation, which is freed with its last
// lease.
//
// Threading:  Thread-safe. upload_mu_ is held while pages are copied, so uploads run one after the
//             other; mu_ is not, so batches whose pages are all ready do not wait.
// Ownership:  A lease keeps its pages on the device. Leases end before the mirror is destroyed, and
//             after the work that reads their pages.
// Errors:     INTERNAL: an allocation or an upload failed. The pages of that upload are dropped,
//             and the next batch uploads them again.
// Limits:     The budget, plus pages in use that do not fit into it.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_

#include <cstdint>
#include <list>
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
#include "kernels/backend/cuda/cuda_runtime.h"
#include "kernels/tables/table_page.h"
#include "proto/mutex.h"

namespace rope::kernels {

class CudaPageMirror {
  struct Entry;

 public:
  struct Statistics {
    int64_t hits = 0;
    int64_t uploads = 0;  // pages
    int64_t copies = 0;   // copies to the device that the uploads made
    int64_t evictions = 0;
    int64_t bytes = 0;  // current pages within the budget
    int64_t pages = 0;
  };

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

    // The device address of the first row of page number `index` in Acquire, 256-byte aligned.
    const float* address(size_t index) const;

   private:
    friend class CudaPageMirror;
    CudaPageMirror* mirror_ = nullptr;
    std::vector<std::shared_ptr<Entry>> entries_;
  };

  explicit CudaPageMirror(int64_t budget_bytes);
  ~CudaPageMirror();
  CudaPageMirror(const CudaPageMirror&) = delete;
  CudaPageMirror& operator=(const CudaPageMirror&) = delete;

  // Returns a lease of `pages`, after uploads. May block. REQUIRES: the pages are distinct, not
  // empty, and alive until this returns.
  absl::StatusOr<Lease> Acquire(absl::Span<const TablePage* const> pages);

  Statistics statistics() const;

 private:
  struct Upload {
    const TablePage* page;
    Entry* entry;
  };
  struct Staging {
    CudaBuffer buffer;
    CudaStream stream;  // destroyed before the memory that its work uses
  };

  // Returns a place in the block, after evictions if necessary, or nullopt if there is none.
  std::optional<int64_t> Allocate(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<int64_t> FirstFit(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Free(int64_t offset, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Pins the pages that have entries, creates entries for the others and lists these in `uploads`.
  void Pin(absl::Span<const TablePage* const> pages, Lease& lease, std::vector<Upload>& uploads);
  void Settle(const std::vector<Upload>& uploads, const absl::Status& status);
  absl::Status WaitForOthers(const Lease& lease);
  void Unpin(absl::Span<const std::shared_ptr<Entry>> entries);

  absl::Status MakeBlock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(upload_mu_);
  absl::Status CopyPages(const std::vector<Upload>& uploads);
  absl::Status CopyThrough(const std::vector<Upload>& uploads, const Staging& staging,
                           int64_t& copies);

  const int64_t budget_bytes_;
  proto::Mutex upload_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::optional<Staging> staging_ ABSL_GUARDED_BY(upload_mu_);
  std::optional<CudaBuffer> block_ ABSL_GUARDED_BY(upload_mu_);

  mutable proto::Mutex mu_;
  proto::CondVar settled_;  // signalled when entries leave kUploading
  absl::flat_hash_map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  std::list<Entry*> unused_ ABSL_GUARDED_BY(mu_);          // least recently used first
  std::map<int64_t, int64_t> holes_ ABSL_GUARDED_BY(mu_);  // of the block: offset -> bytes
  Statistics statistics_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_
