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

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/page_builder.h"
#include "kernels/tables/table_page.h"
#include "proto/mutex.h"

namespace rope::kernels {

// The parts of a TableCache: PageEntry (a page), PageTable (the pages of one embedding), PageUses
// (the order of evictions), the key of a table, and the bytes that these count. A table shares its
// entries with the threads that build or wait for their pages.

using PagePtr = std::shared_ptr<const TablePage>;
struct PageTable;

// Gives a map another capacity, or throws std::bad_alloc and changes nothing. REQUIRES: `capacity`
// is at least 8/7 of the size.
template <typename Map>
void Rebuild(Map& map, size_t capacity) {
  Map rebuilt(capacity);
  for (auto& [key, value] : map) rebuilt.try_emplace(key, std::move(value));
  map.swap(rebuilt);
}

// Makes room for one more element, so that adding it does not allocate: a map of Abseil that finds
// no memory while it grows by itself is broken afterwards. A map that is at most 5/8 full does not
// grow; of a small one that lost elements this is not certain, so it is always rebuilt.
template <typename Map>
void MakeRoom(Map& map) {
  const size_t size = map.size() + 1;
  if (map.capacity() < 31 || 8 * size > 5 * map.capacity()) Rebuild(map, size == 1 ? 1 : 2 * size);
}

// One page of one table. The thread that added the entry writes `result` once and then notifies
// `built`; other threads read `result` only after that, without a lock.
struct PageEntry {
  PageEntry(PageTable& owner, int64_t number) : table(owner), page(number) {}
  proto::Notification built;
  absl::StatusOr<PagePtr> result = absl::UnknownError("page is being built");
  std::atomic<int64_t> last_use = 0;  // value of the cache's clock at the last hit
  PageTable& table;                   // has this entry until it is removed
  const int64_t page;
};

// The pages of one embedding.
struct PageTable {
  PageTable(TableKey its_key, int64_t own_bytes) : key(std::move(its_key)), bytes(own_bytes) {}
  const TableKey key;
  const int64_t bytes;  // without the pages
  proto::SharedMutex mu;
  absl::flat_hash_map<int64_t, std::shared_ptr<PageEntry>> pages
      ABSL_GUARDED_BY(mu);                   // by page number
  bool removed ABSL_GUARDED_BY(mu) = false;  // no longer in the cache; a new page may not be added

  // Gives memory back if the map is much too large and there is memory for a smaller one.
  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (pages.capacity() <= 8 * pages.size() + 16) return;
    try {
      Rebuild(pages, 2 * pages.size());
    } catch (const std::bad_alloc&) {
      return;  // the map is as it was
    }
  }
};

// A view of a table's key, with the key's hash, so that a map that grows reads no table.
struct TableKeyRef {
  explicit TableKeyRef(const TableKey& named) : key(&named), hash(absl::Hash<TableKey>{}(named)) {}
  bool operator==(const TableKeyRef& other) const {
    return hash == other.hash && *key == *other.key;
  }
  template <typename H>
  friend H AbslHashValue(H h, const TableKeyRef& ref) {
    return H::combine(std::move(h), ref.hash);
  }
  const TableKey* key;
  size_t hash;
};

// Pages by their last use. A hit changes only the entry, not the order here: a page that comes to
// the front and was used since then goes back to the place of its last use. So the page in front
// with an unchanged use is the least recently used one.
class PageUses {
 public:
  struct Use {
    int64_t at;  // the entry's last use, or an earlier one
    PageEntry* entry;
  };
  // Pages that one eviction may send back, in some 0.1 ms. It then takes the page in front, so that
  // its time does not grow with the number of pages.
  static constexpr int kLooksMax = 1024;

  bool empty() const { return heap_.empty(); }
  // Throws std::bad_alloc, and then changes nothing. `entry` must live until it is taken.
  void Add(PageEntry& entry) {
    heap_.push_back({entry.last_use.load(std::memory_order_relaxed), &entry});
    std::push_heap(heap_.begin(), heap_.end(), IsLater);
  }
  // Sends at most `looks` pages back, and subtracts their number from it. REQUIRES: not empty.
  PageEntry& TakeOldest(int& looks) {
    while (true) {
      std::pop_heap(heap_.begin(), heap_.end(), IsLater);
      Use& use = heap_.back();
      const int64_t last = use.entry->last_use.load(std::memory_order_relaxed);
      if (last <= use.at || looks == 0) break;
      --looks;
      use.at = last;
      std::push_heap(heap_.begin(), heap_.end(), IsLater);
    }
    PageEntry& oldest = *heap_.back().entry;
    heap_.pop_back();
    return oldest;
  }

 private:
  static bool IsLater(const Use& a, const Use& b) { return a.at > b.at; }

  std::vector<Use> heap_;  // the least use in front
};

// Bytes of a page in addition to its values. A slot of the hash map counts three times, because the
// map is between 5/16 and 5/8 full, and a PageUses::Use twice; each allocation counts 16 bytes.
inline constexpr int64_t kSlotBytes = sizeof(std::pair<int64_t, std::shared_ptr<PageEntry>>) + 1;
inline constexpr int64_t kPageOverheadBytes = 3 * kSlotBytes + 2 * sizeof(PageUses::Use) +
                                              sizeof(PageEntry) + sizeof(TablePage) + 3 * 16 +
                                              2 * 16;

inline int64_t PageBytes(const TablePage& page) {
  return page.bytes() + kPageOverheadBytes;
}

// Bytes of a table without pages: its slot, itself and its key.
inline int64_t TableBytes(const Frequencies& frequencies) {
  constexpr int64_t kTableSlotBytes =
      sizeof(std::pair<TableKeyRef, std::shared_ptr<PageTable>>) + 1;
  return 3 * kTableSlotBytes + static_cast<int64_t>(sizeof(PageTable)) + 4 * 16 +
         static_cast<int64_t>((frequencies.inv_freq.size() + frequencies.growth.size() + 1) *
                              sizeof(InverseFrequency));
}

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
