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

#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/page_builder.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

class TableCache {
 public:
  struct Statistics {
    int64_t hits = 0;       // pages found
    int64_t misses = 0;     // pages not found; the caller that missed builds the page
    int64_t builds = 0;     // pages built
    int64_t evictions = 0;  // pages dropped to stay within the budget
    int64_t bytes = 0;      // current pages and tables, with their bookkeeping
    int64_t tables = 0;     // embeddings with at least one page
    int64_t pages = 0;      // built, or being built
  };

  explicit TableCache(int64_t budget_bytes, PageBuilder builder = &BuildPage);
  ~TableCache();
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
  int64_t bytes() const;  // statistics().bytes
  int64_t budget_bytes() const;
  // The largest number of pages within a budget: 32768, or one for each 8 KiB of a budget above
  // 256 MiB. From there on pages of fewer than 16 columns reach it before they reach the budget.
  static int64_t PagesMax(int64_t budget_bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_TABLE_CACHE_H_
