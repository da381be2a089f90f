// TableCache: cos/sin rows for any position of any embedding, in pages that are built on first
// touch.
//
// A page holds kPageRows consecutive positions and never changes. One decode token at position
// 1,000,000 builds one page. Concurrent first requests for a page build it once (single flight); a
// failed build is not kept. Past the byte budget the least recently used pages go; pages in use
// stay alive. Frequencies that are not cacheable leave nothing here and do not count.
//
// Threading:  Thread-safe. Hits take no exclusive lock; no lock is held while a page is built.
// Ownership:  Rows keep their pages alive by themselves; the cache may be destroyed before them.
// Errors:     Whatever the page builder returns (the default builder never fails). What was
//             appended before an error is then unspecified.
// Limits:     statistics().bytes <= budget_bytes + one page for each thread that is building; a
//             page larger than the budget is served and not kept.
// Precision:  A page's first position in long double, its rows by angle addition in double, stored
//             as the nearest float32: within 0.51 units in the last place of cos and sin, or 1e-12
//             where that is more, at every position to 2^30.
#ifndef ROPE_KERNELS_TABLES_TABLE_CACHE_H_
#define ROPE_KERNELS_TABLES_TABLE_CACHE_H_

#include <cstdint>
#include <memory>

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
    int64_t misses = 0;     // pages not found, whoever built them
    int64_t builds = 0;     // pages built
    int64_t evictions = 0;  // pages dropped for the budget
    int64_t bytes = 0;      // pages and their bookkeeping held now
    int64_t tables = 0;     // embeddings with at least one page
    int64_t pages = 0;
  };

  explicit TableCache(int64_t budget_bytes, PageBuilder builder = &BuildPage);
  ~TableCache();
  TableCache(const TableCache&) = delete;
  TableCache& operator=(const TableCache&) = delete;

  // Appends the row of each position to `rows`. Frequencies that are not cacheable get rows of
  // their own, built for this call. Negative positions turn the other way: differences have them.
  // REQUIRES: every position in [-2^30, 2^30].
  absl::Status AppendRows(const Frequencies& frequencies, absl::Span<const int64_t> positions,
                          TokenRows& rows);

  Statistics statistics() const;
  int64_t budget_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_TABLE_CACHE_H_
