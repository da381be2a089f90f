// CudaPageMirror: copies of table pages in device memory, the backend's own cache of them.
//
// Pages are known by their ids, since addresses are used again. Those that a batch lacks are
// uploaded together, in as few copies as their places allow; whoever needs a page that another
// batch is uploading waits for it. One block of device memory holds all pages; the least recently
// used ones go first, those of batches in flight stay.
//
// Threading:  Thread-safe. No lock is held while pages are copied, except by uploads against each
//             other.
// Ownership:  A lease keeps its pages on the device. Leases end before the mirror does, and after
//             the work that reads them.
// Errors:     INTERNAL: memory or an upload failed; nothing is kept then, the next batch tries
//             again.
// Limits:     The budget, and for as long as they are in use the pages that do not fit into it.
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
    int64_t copies = 0;   // that the uploads took
    int64_t evictions = 0;
    int64_t bytes = 0;  // of pages held now, within the budget
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

    // Where the first row of the page is that was number `index` in Acquire, 256-byte aligned.
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

  // REQUIRES: distinct pages that are alive until this returns, none empty.
  absl::StatusOr<Lease> Acquire(absl::Span<const TablePage* const> pages);

  Statistics statistics() const;

 private:
  struct Upload {
    const TablePage* page;
    Entry* entry;
  };
  struct Staging {
    CudaBuffer buffer;
    CudaStream stream;  // goes before the memory that it works on
  };

  // A place in the block, made by eviction where need be; nullopt: there is none.
  std::optional<int64_t> Allocate(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<int64_t> FirstFit(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Free(int64_t offset, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Pins the pages that are here, makes entries for the others and lists them in `uploads`.
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
  proto::CondVar settled_;  // entries are not being uploaded any more
  absl::flat_hash_map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  std::list<Entry*> unused_ ABSL_GUARDED_BY(mu_);          // least recently used first
  std::map<int64_t, int64_t> holes_ ABSL_GUARDED_BY(mu_);  // of the block: offset -> bytes
  Statistics statistics_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_PAGE_MIRROR_H_
