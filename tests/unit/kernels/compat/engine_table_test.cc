#include "kernels/compat/engine_table.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

TEST(EngineTableTest, EnginesAreNeighboursAndFamiliesBelongToOneEntry) {
  std::set<std::pair<std::string_view, std::string_view>> finished;
  for (const EngineVersions& versions : EngineTable()) {
    SCOPED_TRACE(std::string(versions.engine) + " " + std::string(versions.first));
    EXPECT_TRUE(finished.emplace(versions.engine, versions.first).second);
    std::set<Family> seen;
    for (const EngineEntry* const entry : versions.entries) {
      EXPECT_TRUE(IsBetween(entry->first, versions.last, entry->last));
      for (const Family family : entry->families) {
        EXPECT_TRUE(seen.insert(family).second);
        EXPECT_NE(family, Family::kUnchecked);
      }
    }
  }
}

}  // namespace
}  // namespace rope::kernels
