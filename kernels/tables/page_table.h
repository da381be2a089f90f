// The parts of a TableCache: PageEntry (a page), PageTable (the pages of one embedding), PageUses
// (the order of evictions), the key of a table, and the bytes that these count.
//
// Threading:  As each member says; TableCache has the lock order.
// Ownership:  A table shares its entries with the threads that build or wait for their pages. The
//             pages are shared with the rows that use them.
#ifndef ROPE_KERNELS_TABLES_PAGE_TABLE_H_
#define ROPE_KERNELS_TABLES_PAGE_TABLE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_page.h"
#include "proto/mutex.h"

namespace rope::kernels {

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

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_PAGE_TABLE_H_
