#include "kernels/tables/table_cache.h"

#include <unordered_map>

#include "absl/cleanup/cleanup.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {
constexpr int64_t kPositionMax = int64_t{1} << 30;
// Limits of the number of pages: this many, or one for so many bytes of a larger budget.
constexpr int64_t kPagesOfAnyBudget = 32768;
constexpr int64_t kBudgetBytesPerPage = 8192;

// The page number of a position, rounded down; negative positions have negative page numbers.
int64_t PageOf(int64_t position) {
  return position >= 0 ? position / kPageRows : (position + 1) / kPageRows - 1;
}

// Consecutive positions of a call that are on the same page.
struct PageRun {
  int64_t page = 0;
  absl::Span<const int64_t> positions;  // at least one
  PagePtr built;
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

// The page, if it is built; else null.
PagePtr FindBuilt(PageTable& table, int64_t page, int64_t now) {
  proto::ReaderMutexLock lock(&table.mu);
  const auto it = table.pages.find(page);
  if (it == table.pages.end()) return nullptr;
  PageEntry& entry = *it->second;
  if (!entry.built.HasBeenNotified() || !entry.result.ok()) return nullptr;
  entry.last_use.store(now, std::memory_order_relaxed);
  return *entry.result;
}

// Appends the rows of `run` and moves run.built into `rows`. REQUIRES: run.built is set.
void AppendRowsOf(PageRun& run, TokenRows& rows) {
  for (const int64_t position : run.positions) {
    rows.rows.push_back({run.built.get(), position - run.page * kPageRows});
  }
  rows.pages.push_back(std::move(run.built));
}

// RESOURCE_EXHAUSTED, kBudgetFull: an allocation for a page of these frequencies failed.
absl::Status NoMemoryForPage(const Frequencies& frequencies) {
  return MakeError(Reason::kBudgetFull, "positions",
                   StrCat("rows of ", frequencies.inv_freq.size(), " pairs"),
                   "memory for a page of them, which is short");
}

// The builder's page, or NoMemoryForPage.
absl::StatusOr<std::shared_ptr<TablePage>> TryBuild(const PageBuilder& builder,
                                                    const Frequencies& frequencies, int64_t first) {
  try {
    return builder(frequencies, first);
  } catch (const std::bad_alloc&) {
    return NoMemoryForPage(frequencies);
  }
}

// The rows behind the first `first`.
int64_t Added(const TokenRows& rows, size_t first) {
  return static_cast<int64_t>(rows.rows.size() - first);
}

}  // namespace

absl::StatusOr<int64_t> TableCache::AppendRows(const Frequencies& frequencies,
                                               absl::Span<const int64_t> positions,
                                               int64_t& build_budget, TokenRows& rows) {
  if (!frequencies.cacheable) return AppendOwnRows(frequencies, positions, build_budget, rows);
  const int64_t now = clock_.fetch_add(1, std::memory_order_relaxed);
  const size_t first = rows.rows.size();
  rows.rows.reserve(first + positions.size());
  // Pages whose rows are not returned are found again by the next call.
  int64_t hits = 0;
  const absl::Cleanup count = [&] { hits_.fetch_add(hits, std::memory_order_relaxed); };
  std::shared_ptr<PageTable> table;
  while (!positions.empty()) {
    PageRun run = FirstRun(positions);
    positions.remove_prefix(run.positions.size());
    if (table == nullptr) table = FindTable(frequencies);
    run.built = FindBuilt(*table, run.page, now);
    if (run.built != nullptr) {
      ++hits;
    } else {
      if (build_budget <= 0 && rows.rows.size() > first) return Added(rows, first);
      ROPE_ASSIGN_OR_RETURN(run.built, CachedPage(frequencies, run.page, table, now, build_budget));
    }
    AppendRowsOf(run, rows);
  }
  return Added(rows, first);
}

// Returns the page, from the cache or newly built. Looks up `table` if it is null or was removed.
// Holds no lock while it builds or waits; found.entry keeps the entry alive. A page that another
// thread builds costs nothing.
absl::StatusOr<PagePtr> TableCache::CachedPage(const Frequencies& frequencies, int64_t page,
                                               std::shared_ptr<PageTable>& table, int64_t now,
                                               int64_t& build_budget) {
  Found found;
  try {
    while (found.entry == nullptr) {
      if (table == nullptr) table = FindTable(frequencies);
      found = FindOrAdd(*table, page);
      if (found.entry == nullptr) table = nullptr;
    }
  } catch (const std::bad_alloc&) {
    if (table != nullptr) {
      proto::MutexLock lock(&evict_mu_);
      RemoveIfEmpty(*table);
    }
    return NoMemoryForPage(frequencies);
  }
  (found.is_new ? misses_ : hits_).fetch_add(1, std::memory_order_relaxed);
  found.entry->last_use.store(now, std::memory_order_relaxed);
  if (found.is_new) {
    build_budget -= BuildBytes(frequencies, kPageRows);
    return BuildInto(frequencies, *found.entry);
  }
  found.entry->built.WaitForNotification();
  return found.entry->result;
}

std::shared_ptr<PageTable> TableCache::FindTable(const Frequencies& frequencies) {
  {
    proto::ReaderMutexLock lock(&mu_);
    const auto it = tables_.find(TableKeyRef(frequencies.key));
    if (it != tables_.end()) return it->second;
  }
  const auto table = std::make_shared<PageTable>(frequencies.key, TableBytes(frequencies));
  proto::WriterMutexLock lock(&mu_);
  MakeRoom(tables_);
  const auto [it, is_new] = tables_.try_emplace(TableKeyRef(table->key), table);
  if (is_new) bytes_.fetch_add(table->bytes, std::memory_order_relaxed);
  return it->second;
}

// Looks with the lock held shared, and adds with the lock held exclusively after a second look.
TableCache::Found TableCache::FindOrAdd(PageTable& table, int64_t page) {
  {
    proto::ReaderMutexLock lock(&table.mu);
    const auto it = table.pages.find(page);
    if (it != table.pages.end()) return {it->second, false};
  }
  auto entry = std::make_shared<PageEntry>(table, page);
  proto::WriterMutexLock lock(&table.mu);
  if (table.removed) return {};
  MakeRoom(table.pages);
  const auto [it, is_new] = table.pages.try_emplace(page, std::move(entry));
  if (is_new) {
    pages_.fetch_add(1, std::memory_order_relaxed);
    if (table.pages.size() == 1) used_tables_.fetch_add(1, std::memory_order_relaxed);
  }
  return {it->second, is_new};
}

// Builds the page of an entry that this thread has added; no lock is held. Every waiting thread
// gets a failure; the entry is removed before they wake up, so the next request builds again.
absl::StatusOr<PagePtr> TableCache::BuildInto(const Frequencies& frequencies, PageEntry& entry) {
  absl::StatusOr<PagePtr> result = entry.result =
      TryBuild(builder_, frequencies, entry.page * kPageRows);
  if (result.ok()) {
    builds_.fetch_add(1, std::memory_order_relaxed);
    entry.built.Notify();
    Keep(entry);
    return result;
  }
  {
    proto::MutexLock lock(&evict_mu_);
    Remove(entry);
  }
  entry.built.Notify();
  return result;
}

// Counts a page that is built, and evicts what is then too much. A page that cannot be counted for
// lack of memory does not stay.
void TableCache::Keep(PageEntry& entry) {
  proto::MutexLock lock(&evict_mu_);
  try {
    uses_.Add(entry);
  } catch (const std::bad_alloc&) {
    Remove(entry);
    return;
  }
  bytes_.fetch_add(PageBytes(**entry.result), std::memory_order_relaxed);
  Evict();
}

// Drops the least recently used pages until the rest fits.
void TableCache::Evict() {
  int looks = PageUses::kLooksMax;
  while (!uses_.empty() && (bytes_.load(std::memory_order_relaxed) > budget_bytes_ ||
                            pages_.load(std::memory_order_relaxed) > pages_max_)) {
    PageEntry& oldest = uses_.TakeOldest(looks);
    bytes_.fetch_sub(PageBytes(**oldest.result), std::memory_order_relaxed);
    evictions_.fetch_add(1, std::memory_order_relaxed);
    Remove(oldest);
  }
}

// Takes an entry out of its table, and the table out of the cache if it has no other. Destroys
// `entry` unless the caller holds a share of it.
void TableCache::Remove(PageEntry& entry) {
  PageTable& table = entry.table;
  std::shared_ptr<PageEntry> removed;  // destroyed after the lock is released
  bool is_empty = false;
  {
    proto::WriterMutexLock lock(&table.mu);
    const auto it = table.pages.find(entry.page);
    ROPE_CHECK(it != table.pages.end());
    removed = std::move(it->second);
    table.pages.erase(it);
    pages_.fetch_sub(1, std::memory_order_relaxed);
    is_empty = table.pages.empty();
    if (is_empty) used_tables_.fetch_sub(1, std::memory_order_relaxed);
    if (!is_empty) table.Shrink();
  }
  if (is_empty) RemoveIfEmpty(table);
}

// Holds mu_ and the table's lock, both exclusively. `removed` makes a thread that still has the
// table look it up again (CachedPage).
void TableCache::RemoveIfEmpty(PageTable& table) {
  std::shared_ptr<PageTable> removed;  // destroyed after the locks are released
  proto::WriterMutexLock lock(&mu_);
  proto::WriterMutexLock table_lock(&table.mu);
  if (table.removed || !table.pages.empty()) return;
  const auto it = tables_.find(TableKeyRef(table.key));
  ROPE_CHECK(it != tables_.end());
  table.removed = true;
  bytes_.fetch_sub(table.bytes, std::memory_order_relaxed);
  removed = std::move(it->second);
  tables_.erase(it);
}

// Rows for this call only: runs of one or two positions by row, longer runs by page.
absl::StatusOr<int64_t> TableCache::AppendOwnRows(const Frequencies& frequencies,
                                                  absl::Span<const int64_t> positions,
                                                  int64_t& build_budget, TokenRows& rows) const {
  constexpr size_t kSingleRows = 2;
  const size_t first = rows.rows.size();
  std::unordered_map<int64_t, PagePtr> pages;
  while (!positions.empty() && (build_budget > 0 || rows.rows.size() == first)) {
    PageRun run = FirstRun(positions);
    positions.remove_prefix(run.positions.size());
    if (run.positions.size() <= kSingleRows) {
      const auto count = static_cast<int64_t>(run.positions.size());
      build_budget -= BuildBytes(frequencies, count * kExactRowRows);
      rows.pages.push_back(BuildRows(frequencies, run.positions));
      for (size_t i = 0; i < run.positions.size(); ++i) {
        rows.rows.push_back({rows.pages.back().get(), static_cast<int64_t>(i)});
      }
      continue;
    }
    PagePtr& built = pages[run.page];
    if (built == nullptr) {
      build_budget -= BuildBytes(frequencies, kPageRows);
      ROPE_ASSIGN_OR_RETURN(built, TryBuild(builder_, frequencies, run.page * kPageRows));
    }
    run.built = built;
    AppendRowsOf(run, rows);
  }
  return Added(rows, first);
}

TableCache::Statistics TableCache::statistics() const {
  return {.hits = hits_.load(std::memory_order_relaxed),
          .misses = misses_.load(std::memory_order_relaxed),
          .builds = builds_.load(std::memory_order_relaxed),
          .evictions = evictions_.load(std::memory_order_relaxed),
          .bytes = bytes(),
          .tables = used_tables_.load(std::memory_order_relaxed),
          .pages = pages_.load(std::memory_order_relaxed)};
}

int64_t TableCache::PagesMax(int64_t budget_bytes) {
  return std::max(kPagesOfAnyBudget, budget_bytes / kBudgetBytesPerPage);
}

}  // namespace rope::kernels
