#include "kernels/tables/table_cache.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"

namespace rope::kernels {
namespace {
using PagePtr = std::shared_ptr<const TablePage>;
constexpr int64_t kPositionMax = int64_t{1} << 30;
// Eviction stops at this part of the budget, so that a full cache does not evict at every new page.
constexpr double kEvictTo = 0.9;
// Pages that are looked up under one lock of a table: 64, which a prefill of 4096 tokens needs.
constexpr size_t kRunsAtOnce = 64;

// One page of one table. The thread that added the entry writes `result` once and then notifies
// `built`; other threads read `result` only after that, without a lock.
struct Entry {
  proto::Notification built;
  absl::StatusOr<PagePtr> result = absl::UnknownError("page is being built");
  std::atomic<int64_t> last_use = 0;  // value of clock_ at the last hit
};

// The pages of one embedding.
struct Table {
  proto::SharedMutex mu;
  absl::flat_hash_map<int64_t, std::shared_ptr<Entry>> pages ABSL_GUARDED_BY(mu);  // by page number
  bool removed ABSL_GUARDED_BY(mu) = false;  // no longer in the cache; a new page may not be added
  int64_t bytes = 0;                         // without the pages; constant
};

// Bytes of a page in addition to its values. A slot of the hash map counts twice, because the map
// is between 7/16 and 7/8 full; each allocation counts 16 bytes.
constexpr int64_t kSlotBytes = sizeof(std::pair<int64_t, std::shared_ptr<Entry>>) + 1;
constexpr int64_t kPageOverheadBytes =
    2 * kSlotBytes + sizeof(Entry) + sizeof(TablePage) + 3 * 16 + 2 * 16;

int64_t PageBytes(const TablePage& page) {
  return page.bytes() + kPageOverheadBytes;
}

int64_t TableBytes(const Frequencies& frequencies) {
  constexpr int64_t kTableSlotBytes = sizeof(std::pair<TableKey, std::shared_ptr<Table>>) + 1;
  return 2 * kTableSlotBytes + static_cast<int64_t>(sizeof(Table)) + 4 * 16 +
         static_cast<int64_t>((frequencies.inv_freq.size() + frequencies.growth.size() + 1) *
                              sizeof(InverseFrequency));
}

// The page number of a position, rounded down; negative positions have negative page numbers.
int64_t PageOf(int64_t position) {
  return position >= 0 ? position / kPageRows : (position + 1) / kPageRows - 1;
}

// Consecutive positions of a call that are on the same page.
struct PageRun {
  int64_t page = 0;
  absl::Span<const int64_t> positions;  // at least one
  Entry* entry = nullptr;               // valid only while the table is locked
  PagePtr built;

  bool HasPage() const {
    return entry != nullptr && entry->built.HasBeenNotified() && entry->result.ok();
  }
};

// The positions at the front that are on one page. Checking the page number checks all of them.
PageRun FirstRun(absl::Span<const int64_t> positions) {
  PageRun run;
  run.page = PageOf(positions.front());
  ROPE_CHECK(run.page >= PageOf(-kPositionMax) && run.page <= PageOf(kPositionMax));
  const int64_t first = run.page * kPageRows;
  size_t end = 1;
  while (end < positions.size() && positions[end] >= first && positions[end] < first + kPageRows) {
    ++end;
  }
  run.positions = positions.first(end);
  return run;
}

using PageRuns = absl::InlinedVector<PageRun, 8>;

// Removes up to kRunsAtOnce runs from the front of `positions`.
PageRuns ReadRuns(absl::Span<const int64_t>& positions) {
  PageRuns runs;
  while (!positions.empty() && runs.size() < kRunsAtOnce) {
    runs.push_back(FirstRun(positions));
    positions.remove_prefix(runs.back().positions.size());
  }
  return runs;
}

// Fills in the pages that are built; returns their number. Holds the table's lock shared. All
// entries and pages are prefetched before the first is read: large tensors evict them from the
// CPU's caches.
int64_t TakeBuilt(Table& table, int64_t now, PageRuns& runs) {
  proto::ReaderMutexLock lock(&table.mu);
  for (PageRun& run : runs) {
    const auto it = table.pages.find(run.page);
    if (it == table.pages.end()) continue;
    run.entry = it->second.get();
    __builtin_prefetch(run.entry);
  }
  for (const PageRun& run : runs) {
    if (run.HasPage()) __builtin_prefetch(run.entry->result->get());
  }
  int64_t count = 0;
  for (PageRun& run : runs) {
    if (!run.HasPage()) continue;
    run.entry->last_use.store(now, std::memory_order_relaxed);
    run.built = *run.entry->result;
    ++count;
  }
  return count;
}

// Appends the rows of `run` and moves run.built into `rows`. REQUIRES: run.built is set.
void AppendRowsOf(PageRun& run, TokenRows& rows) {
  for (const int64_t position : run.positions) {
    rows.rows.push_back({run.built.get(), position - run.page * kPageRows});
  }
  rows.pages.push_back(std::move(run.built));
}

struct Found {
  std::shared_ptr<Entry> entry;  // null: the cache has removed the table since FindTable
  bool is_new = false;           // this caller has added the entry and must build the page
};

// Looks with the lock held shared, and adds with the lock held exclusively after a second look.
Found FindOrAdd(Table& table, int64_t page) {
  {
    proto::ReaderMutexLock lock(&table.mu);
    const auto it = table.pages.find(page);
    if (it != table.pages.end()) return {it->second, false};
  }
  proto::WriterMutexLock lock(&table.mu);
  if (table.removed) return {};
  std::shared_ptr<Entry>& slot = table.pages[page];
  if (slot != nullptr) return {slot, false};
  slot = std::make_shared<Entry>();
  return {slot, true};
}

// Rows of single positions, without building whole pages.
PagePtr BuildRows(const Frequencies& frequencies, absl::Span<const int64_t> positions) {
  const size_t columns = frequencies.inv_freq.size();
  std::vector<float> values(positions.size() * 2 * columns);
  float* row = values.data();
  for (const int64_t position : positions) {
    for (size_t j = 0; j < columns; ++j) {
      const CosSin exact = CosSinAt(frequencies, j, position);
      row[j] = static_cast<float>(exact.cos);
      row[columns + j] = static_cast<float>(exact.sin);
    }
    row += 2 * columns;
  }
  return std::make_shared<const TablePage>(static_cast<int64_t>(positions.size()),
                                           static_cast<int64_t>(columns), std::move(values));
}

}  // namespace

class TableCache::Impl {
 public:
  Impl(int64_t budget_bytes, PageBuilder builder)
      : budget_bytes_(budget_bytes), builder_(std::move(builder)) {}

  absl::Status AppendRows(const Frequencies& frequencies, absl::Span<const int64_t> positions,
                          TokenRows& rows);
  Statistics statistics() const;
  int64_t budget_bytes() const { return budget_bytes_; }

 private:
  struct Victim {  // a built page that may be evicted
    int64_t last_use;
    Table* table;  // stays alive: tables are removed under evict_mu_ only, which Evict holds
    int64_t page;
  };
  absl::StatusOr<PagePtr> CachedPage(const Frequencies& frequencies, int64_t page,
                                     std::shared_ptr<Table>& table, int64_t now);
  absl::StatusOr<PagePtr> BuildInto(const Frequencies& frequencies, int64_t page, Table& table,
                                    Entry& entry);
  std::shared_ptr<Table> FindTable(const Frequencies& frequencies);
  void Evict() ABSL_LOCKS_EXCLUDED(evict_mu_);
  std::vector<Victim> ListPages() const;  // holds mu_ and one table's lock, both shared
  void Drop(const Victim& victim);        // holds the table's lock exclusively
  void RemoveEmptyTables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(evict_mu_);
  absl::Status AppendOwnRows(const Frequencies& frequencies, absl::Span<const int64_t> positions,
                             TokenRows& rows) const;

  const int64_t budget_bytes_;
  const PageBuilder builder_;
  std::atomic<int64_t> clock_ = 0;  // counts calls of AppendRows
  std::atomic<int64_t> hits_ = 0;
  std::atomic<int64_t> misses_ = 0;
  std::atomic<int64_t> builds_ = 0;
  std::atomic<int64_t> evictions_ = 0;
  std::atomic<int64_t> bytes_ = 0;
  // Lock order: evict_mu_, mu_, Table::mu. No thread holds the locks of two tables.
  // One eviction at a time; held to remove tables.
  proto::Mutex evict_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable proto::SharedMutex mu_;  // shared for hits; exclusive to add and to remove tables
  absl::flat_hash_map<TableKey, std::shared_ptr<Table>> tables_ ABSL_GUARDED_BY(mu_);
};

absl::Status TableCache::Impl::AppendRows(const Frequencies& frequencies,
                                          absl::Span<const int64_t> positions, TokenRows& rows) {
  if (!frequencies.cacheable) return AppendOwnRows(frequencies, positions, rows);
  const int64_t now = clock_.fetch_add(1, std::memory_order_relaxed);
  rows.rows.reserve(rows.rows.size() + positions.size());
  std::shared_ptr<Table> table;
  while (!positions.empty()) {
    PageRuns runs = ReadRuns(positions);
    if (table == nullptr) table = FindTable(frequencies);
    hits_.fetch_add(TakeBuilt(*table, now, runs), std::memory_order_relaxed);
    for (PageRun& run : runs) {
      if (run.built == nullptr) {
        ROPE_ASSIGN_OR_RETURN(run.built, CachedPage(frequencies, run.page, table, now));
      }
      AppendRowsOf(run, rows);
    }
  }
  return absl::OkStatus();
}

// Returns the page, from the cache or newly built. Looks up `table` if it is null or was removed.
// Holds no lock while it builds or waits; found.entry keeps the entry alive.
absl::StatusOr<PagePtr> TableCache::Impl::CachedPage(const Frequencies& frequencies, int64_t page,
                                                     std::shared_ptr<Table>& table, int64_t now) {
  Found found;
  while (found.entry == nullptr) {
    if (table == nullptr) table = FindTable(frequencies);
    found = FindOrAdd(*table, page);
    if (found.entry == nullptr) table = nullptr;
  }
  (found.is_new ? misses_ : hits_).fetch_add(1, std::memory_order_relaxed);
  found.entry->last_use.store(now, std::memory_order_relaxed);
  if (found.is_new) return BuildInto(frequencies, page, *table, *found.entry);
  found.entry->built.WaitForNotification();
  return found.entry->result;
}

// Builds the page of an entry that this thread has added; no lock is held. Every waiting thread
// gets a failure; the entry is erased before they wake up, so the next request builds again.
absl::StatusOr<PagePtr> TableCache::Impl::BuildInto(const Frequencies& frequencies, int64_t page,
                                                    Table& table, Entry& entry) {
  auto built = TryBuild(builder_, frequencies, page * kPageRows);
  if (built.ok()) (*built)->set_cached();
  const absl::StatusOr<PagePtr> result = entry.result = std::move(built);
  if (result.ok()) {
    builds_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(PageBytes(**result), std::memory_order_relaxed);
    entry.built.Notify();  // after bytes_: Drop takes notified pages only, so bytes_ stays >= 0
    if (bytes_.load(std::memory_order_relaxed) > budget_bytes_) Evict();
    return result;
  }
  {
    proto::WriterMutexLock lock(&table.mu);
    table.pages.erase(page);
  }
  entry.built.Notify();
  proto::MutexLock lock(&evict_mu_);
  RemoveEmptyTables();
  return result;
}

std::shared_ptr<Table> TableCache::Impl::FindTable(const Frequencies& frequencies) {
  {
    proto::ReaderMutexLock lock(&mu_);
    const auto it = tables_.find(frequencies.key);
    if (it != tables_.end()) return it->second;
  }
  proto::WriterMutexLock lock(&mu_);
  std::shared_ptr<Table>& slot = tables_[frequencies.key];
  if (slot == nullptr) {
    slot = std::make_shared<Table>();
    slot->bytes = TableBytes(frequencies);
    bytes_.fetch_add(slot->bytes, std::memory_order_relaxed);
  }
  return slot;
}

void TableCache::Impl::Evict() {
  proto::MutexLock lock(&evict_mu_);
  if (bytes_.load(std::memory_order_relaxed) <= budget_bytes_) return;  // another thread evicted
  std::vector<Victim> victims = ListPages();
  std::sort(victims.begin(), victims.end(),
            [](const Victim& a, const Victim& b) { return a.last_use < b.last_use; });
  const int64_t target = static_cast<int64_t>(static_cast<double>(budget_bytes_) * kEvictTo);
  for (const Victim& victim : victims) {
    if (bytes_.load(std::memory_order_relaxed) <= target) break;
    Drop(victim);
  }
  RemoveEmptyTables();
}

// Lists every built page.
std::vector<TableCache::Impl::Victim> TableCache::Impl::ListPages() const {
  std::vector<Victim> pages;
  proto::ReaderMutexLock lock(&mu_);
  for (const auto& [key, table] : tables_) {
    proto::ReaderMutexLock table_lock(&table->mu);
    for (const auto& [page, entry] : table->pages) {
      if (!entry->built.HasBeenNotified()) continue;
      pages.push_back({entry->last_use.load(std::memory_order_relaxed), table.get(), page});
    }
  }
  return pages;
}

void TableCache::Impl::Drop(const Victim& victim) {
  std::shared_ptr<Entry> entry;  // destroyed after the lock is released
  proto::WriterMutexLock lock(&victim.table->mu);
  const auto it = victim.table->pages.find(victim.page);
  if (it == victim.table->pages.end() || !it->second->built.HasBeenNotified()) return;
  entry = std::move(it->second);
  victim.table->pages.erase(it);
  bytes_.fetch_sub(PageBytes(**entry->result), std::memory_order_relaxed);
  evictions_.fetch_add(1, std::memory_order_relaxed);
}

// Removes tables without pages and shrinks oversized maps. Holds mu_ and one table's lock, both
// exclusively. `removed` makes a thread that still has the table look it up again (CachedPage).
void TableCache::Impl::RemoveEmptyTables() {
  proto::WriterMutexLock lock(&mu_);
  for (auto it = tables_.begin(); it != tables_.end();) {
    const std::shared_ptr<Table> table = it->second;
    proto::WriterMutexLock table_lock(&table->mu);
    if (table->pages.capacity() > 4 * table->pages.size() + 16) table->pages.rehash(0);
    table->removed = table->pages.empty();
    if (table->removed) bytes_.fetch_sub(table->bytes, std::memory_order_relaxed);
    const auto current = it++;
    if (table->removed) tables_.erase(current);
  }
}

// Rows for this call only: runs of one or two positions by row, longer runs by page.
absl::Status TableCache::Impl::AppendOwnRows(const Frequencies& frequencies,
                                             absl::Span<const int64_t> positions,
                                             TokenRows& rows) const {
  constexpr size_t kSingleRows = 2;
  absl::flat_hash_map<int64_t, PagePtr> pages;
  while (!positions.empty()) {
    PageRun run = FirstRun(positions);
    positions.remove_prefix(run.positions.size());
    if (run.positions.size() <= kSingleRows) {
      rows.pages.push_back(BuildRows(frequencies, run.positions));
      for (size_t i = 0; i < run.positions.size(); ++i) {
        rows.rows.push_back({rows.pages.back().get(), static_cast<int64_t>(i)});
      }
      continue;
    }
    PagePtr& built = pages[run.page];
    if (built == nullptr) {
      ROPE_ASSIGN_OR_RETURN(built, TryBuild(builder_, frequencies, run.page * kPageRows));
    }
    run.built = built;
    AppendRowsOf(run, rows);
  }
  return absl::OkStatus();
}

TableCache::Statistics TableCache::Impl::statistics() const {
  Statistics result{.hits = hits_.load(std::memory_order_relaxed),
                    .misses = misses_.load(std::memory_order_relaxed),
                    .builds = builds_.load(std::memory_order_relaxed),
                    .evictions = evictions_.load(std::memory_order_relaxed),
                    .bytes = bytes_.load(std::memory_order_relaxed)};
  proto::ReaderMutexLock lock(&mu_);
  for (const auto& [key, table] : tables_) {
    proto::ReaderMutexLock table_lock(&table->mu);
    if (!table->pages.empty()) ++result.tables;
    result.pages += static_cast<int64_t>(table->pages.size());
  }
  return result;
}

TableCache::TableCache(int64_t budget_bytes, PageBuilder builder)
    : impl_(std::make_unique<Impl>(budget_bytes, std::move(builder))) {}
TableCache::~TableCache() = default;
absl::Status TableCache::AppendRows(const Frequencies& frequencies,
                                    absl::Span<const int64_t> positions, TokenRows& rows) {
  return impl_->AppendRows(frequencies, positions, rows);
}
TableCache::Statistics TableCache::statistics() const {
  return impl_->statistics();
}
int64_t TableCache::budget_bytes() const {
  return impl_->budget_bytes();
}

}  // namespace rope::kernels
