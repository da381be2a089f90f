// Test helpers: tables of one pair, what they cost, and PlainCache, which a table cache of such
// tables must agree with.
//
// Threading:  PlainCache: one thread. The functions: any thread.
#ifndef ROPE_TESTS_UNIT_KERNELS_TABLES_PLAIN_CACHE_H_
#define ROPE_TESTS_UNIT_KERNELS_TABLES_PLAIN_CACHE_H_

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/page_builder.h"
#include "kernels/tables/table_cache.h"
#include "tests/unit/kernels/tables/table_rows.h"

namespace rope::kernels {

// An embedding of one pair, different for each number. Its rows do not matter: EmptyPage builds
// them.
inline Frequencies OnePair(int64_t number) {
  Frequencies frequencies;
  frequencies.inv_freq = {1 / static_cast<InverseFrequency>(number + 1)};
  frequencies.key = TableKey(frequencies.inv_freq, 1);
  return frequencies;
}

inline absl::StatusOr<std::shared_ptr<TablePage>> EmptyPage(const Frequencies& frequencies,
                                                            int64_t) {
  const auto columns = static_cast<int64_t>(frequencies.inv_freq.size());
  std::vector<float> values(static_cast<size_t>(kPageRows * 2 * columns));
  return std::make_shared<TablePage>(kPageRows, columns, std::move(values));
}

// What pages and tables of OnePair count, as the cache says.
struct Costs {
  int64_t page = 0;
  int64_t table = 0;
};

inline Costs OnePairCosts() {
  TableCache cache(kLargeBudget, &EmptyPage);
  const int64_t positions[] = {0, kPageRows};
  Rows(cache, OnePair(0), {positions, 1});
  const int64_t one = cache.bytes();
  Rows(cache, OnePair(0), positions);
  const int64_t page = cache.bytes() - one;
  return {page, one - page};
}

// A cache of OnePair pages that keeps no counts of what it has: it walks all of its pages to count
// them. Its order of evictions is a list by last use.
class PlainCache {
 public:
  PlainCache(int64_t budget, Costs costs) : budget_(budget), costs_(costs) {}

  void Use(int64_t number, int64_t page) {
    const std::pair key(number, page);
    const auto used = last_use_.find(key);
    if (used != last_use_.end()) {
      ++counts_.hits;
      by_use_.erase(used->second);
    } else {
      ++counts_.misses;
      ++counts_.builds;
    }
    last_use_[key] = ++clock_;
    by_use_[clock_] = key;
    while (statistics().bytes > budget_) {
      last_use_.erase(by_use_.begin()->second);
      by_use_.erase(by_use_.begin());
      ++counts_.evictions;
    }
  }

  TableCache::Statistics statistics() const {
    TableCache::Statistics result = counts_;
    std::set<int64_t> tables;
    for (const auto& [key, use] : last_use_) tables.insert(key.first);
    result.tables = std::ssize(tables);
    result.pages = std::ssize(last_use_);
    result.bytes = result.pages * costs_.page + result.tables * costs_.table;
    return result;
  }

 private:
  const int64_t budget_;
  const Costs costs_;
  TableCache::Statistics counts_;
  int64_t clock_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> last_use_;  // by number and page
  std::map<int64_t, std::pair<int64_t, int64_t>> by_use_;
};

}  // namespace rope::kernels

#endif  // ROPE_TESTS_UNIT_KERNELS_TABLES_PLAIN_CACHE_H_
