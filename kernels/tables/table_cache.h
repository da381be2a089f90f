// TableCache: cos/sin rows for any position of any embedding, in pages that are built on first use.
//
// A page holds kPageRows consecutive positions and never changes. One decode token at position
// 1,000,000 builds one page. Concurrent first requests for a page build it once (single flight).
// Two maps lead to a page: the cache maps a TableKey to a table, and a table maps a page number to
// an entry. States of an entry:
//
//   absent --AppendRows--> building --OK--> built --evicted--> absent
//                             |
//                             +--error--> absent; every waiting thread gets the error
//
// Eviction starts when the pages exceed the byte budget, or their number exceeds PagesMax. It drops
// the least recently used pages until the rest fits, and each table with its last page. Its work
// does not grow with the number of pages and tables: it drops about as many bytes as the new page
// has, and looks at no more than 1024 pages in use that it keeps. If there are more, it drops one.
// Rows that are in use keep dropped pages alive. Frequencies that are not cacheable leave no page
// here and do not count in the statistics.
//
// Threading:  Thread-safe. A hit takes shared locks only. No lock is held while a page is built or
//             while a thread waits for another thread's build. Lock order: eviction, cache, table.
// Ownership:  Rows own a share of their pages; the cache may be destroyed before them.
// Errors:     Errors of the page builder (the default one: only kBudgetFull, for lack of
//             memory). The contents of `rows` are then unspecified.
// Limits:     bytes() <= budget_bytes and pages <= PagesMax, each + one page for each thread that
//             is building. Every table that is kept has a page, so there are no more tables than
//             pages. A page larger than the budget is served and not kept.
// Precision:  The first position of a page is computed in long double, the other rows by angle
//             addition in double; both are stored as the nearest float32. The result is within 0.51
//             units in the last place of cos and sin, or within 1e-12 if that is more, at every
//             position up to 2^30.
#ifndef ROPE_KERNELS_TABLES_TABLE_CACHE_H_
#define ROPE_KERNELS_TABLES_TABLE_CACHE_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/page_builder.h"
#include "kernels/tables/page_table.h"
#include "kernels/tables/table_page.h"
#include "proto/mutex.h"

namespace rope::kernels {

class TableCache {
 public:
  struct Statistics {
    int64_t hits = 0;       // pages found, for rows that were returned
    int64_t misses = 0;     // pages not found; the caller that missed builds the page
    int64_t builds = 0;     // pages built
    int64_t evictions = 0;  // pages dropped to stay within the budget
    int64_t bytes = 0;      // current pages and tables, with their bookkeeping
    int64_t tables = 0;     // embeddings with at least one page
    int64_t pages = 0;      // built, or being built
  };

  explicit TableCache(int64_t budget_bytes, PageBuilder builder = &BuildPage)
      : budget_bytes_(budget_bytes),
        pages_max_(PagesMax(budget_bytes)),
        builder_(std::move(builder)) {}
  TableCache(const TableCache&) = delete;
  TableCache& operator=(const TableCache&) = delete;

  // Appends the row of each position to `rows`. For frequencies that are not cacheable the rows are
  // built for this call. A negative position is a difference of two positions and rotates
  // backwards. REQUIRES: every position in [-2^30, 2^30].
  //
  // Takes what it builds (BuildBytes) from `build_budget`, and ends at a row to build once nothing
  // is left. The last page may cost more than was left. Returns how many positions have their rows:
  // the first ones, and at least one, if there are any.
  absl::StatusOr<int64_t> AppendRows(const Frequencies& frequencies,
                                     absl::Span<const int64_t> positions, int64_t& build_budget,
                                     TokenRows& rows);
  // The same for all positions.
  absl::Status AppendRows(const Frequencies& frequencies, absl::Span<const int64_t> positions,
                          TokenRows& rows) {
    int64_t build_budget = std::numeric_limits<int64_t>::max();
    return AppendRows(frequencies, positions, build_budget, rows).status();
  }

  // Each in a few loads of counters, without a lock. Counters that change at the same time may be
  // from before or after the change.
  Statistics statistics() const;
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  int64_t budget_bytes() const { return budget_bytes_; }
  // The largest number of pages within a budget: 32768, or one for each 8 KiB of a budget above
  // 256 MiB. From there on pages of fewer than 16 columns reach it before they reach the budget.
  static int64_t PagesMax(int64_t budget_bytes);

 private:
  struct Found {
    std::shared_ptr<PageEntry> entry;  // null: the cache has removed the table since FindTable
    bool is_new = false;               // this caller has added the entry and must build the page
  };

  absl::StatusOr<PagePtr> CachedPage(const Frequencies& frequencies, int64_t page,
                                     std::shared_ptr<PageTable>& table, int64_t now,
                                     int64_t& build_budget);
  absl::StatusOr<PagePtr> BuildInto(const Frequencies& frequencies, PageEntry& entry);
  std::shared_ptr<PageTable> FindTable(const Frequencies& frequencies);
  Found FindOrAdd(PageTable& table, int64_t page);
  bool IsFull() const;
  void Keep(PageEntry& entry) ABSL_LOCKS_EXCLUDED(evict_mu_);
  void Evict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(evict_mu_);
  void Remove(PageEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(evict_mu_);
  void RemoveIfEmpty(PageTable& table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(evict_mu_);
  absl::StatusOr<int64_t> AppendOwnRows(const Frequencies& frequencies,
                                        absl::Span<const int64_t> positions, int64_t& build_budget,
                                        TokenRows& rows) const;

  const int64_t budget_bytes_;
  const int64_t pages_max_;
  const PageBuilder builder_;
  std::atomic<int64_t> clock_ = 0;  // counts calls of AppendRows
  std::atomic<int64_t> hits_ = 0;
  std::atomic<int64_t> misses_ = 0;
  std::atomic<int64_t> builds_ = 0;
  std::atomic<int64_t> evictions_ = 0;
  std::atomic<int64_t> bytes_ = 0;        // of tables_ and of the pages in uses_
  std::atomic<int64_t> pages_ = 0;        // entries of all tables; written under their locks
  std::atomic<int64_t> used_tables_ = 0;  // tables with entries; written under their locks
  // Lock order: evict_mu_, mu_, PageTable::mu. No thread holds the locks of two tables.
  // Held to keep a new page and to evict others, and to remove tables.
  proto::Mutex evict_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  // The built pages that are kept. Each is in its table until Evict takes it from here, and a table
  // with pages is not removed.
  PageUses uses_ ABSL_GUARDED_BY(evict_mu_);
  mutable proto::SharedMutex mu_;  // shared for hits; exclusive to add and to remove tables
  // By PageTable::key.
  absl::flat_hash_map<TableKeyRef, std::shared_ptr<PageTable>> tables_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_TABLE_CACHE_H_
