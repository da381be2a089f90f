#include "server/models/spec_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/limits.h"

namespace rope::server {
namespace {

SpecCache::Value Value(int64_t bytes, int64_t generation = 0) {
  return {
      .layers = std::make_shared<const RopeEntries>(), .generation = generation, .bytes = bytes};
}

TEST(SpecCacheTest, FirstValueOfAKeyStays) {
  SpecCache cache(limits::kMiB);
  EXPECT_EQ(cache.Find("a"), nullptr);
  const SpecCache::Value first = cache.Add("a", Value(1));
  EXPECT_EQ(cache.Add("a", Value(2)).layers, first.layers);
  ASSERT_NE(cache.Find("a"), nullptr);
  EXPECT_EQ(cache.Find("a")->layers, first.layers);
}

TEST(SpecCacheTest, OldestGoFirstWhenTheBytesAreUsedUp) {
  SpecCache cache(100'000);
  for (int i = 0; i < 10; ++i) cache.Add(absl::StrCat(i), Value(30'000));
  EXPECT_EQ(cache.Find("6"), nullptr);
  EXPECT_NE(cache.Find("7"), nullptr);
  EXPECT_NE(cache.Find("9"), nullptr);
  EXPECT_GE(cache.bytes(), 90'000);
  EXPECT_LE(cache.bytes(), 100'000);
}

TEST(SpecCacheTest, KeysCountToo) {
  SpecCache cache(100'000);
  cache.Add("a", Value(1));
  const int64_t bytes = cache.bytes();
  cache.Add(std::string(60'000, 'b'), Value(1));
  EXPECT_EQ(cache.bytes(), bytes) << "the long key does not fit, because it is kept twice";
  cache.Add(std::string(49'800, 'b'), Value(1));
  EXPECT_EQ(cache.Find("a"), nullptr) << "nor do both";
}

TEST(SpecCacheTest, ValueAboveTheBoundIsReturnedAndNotKept) {
  SpecCache cache(100'000);
  cache.Add("b", Value(1));
  const int64_t bytes = cache.bytes();
  const SpecCache::Value large = Value(200'000);
  EXPECT_EQ(cache.Add("a", large).layers, large.layers);
  EXPECT_EQ(cache.Find("a"), nullptr);
  EXPECT_NE(cache.Find("b"), nullptr) << "it takes no other's place";
  EXPECT_EQ(cache.bytes(), bytes);
}

TEST(SpecCacheTest, ValuesOfAModelAreForgotten) {
  SpecCache cache(limits::kMiB);
  cache.Add("a", Value(1, 7));
  cache.Add("b", Value(1, 8));
  cache.Add("c", Value(1, 7));
  cache.Forget(7);
  EXPECT_EQ(cache.Find("a"), nullptr);
  EXPECT_NE(cache.Find("b"), nullptr);
  EXPECT_EQ(cache.Find("c"), nullptr);
  cache.Forget(8);
  EXPECT_EQ(cache.bytes(), 0);
}

}  // namespace
}  // namespace rope::server
