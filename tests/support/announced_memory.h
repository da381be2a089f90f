// AnnouncedMemory: a HostMemory whose device lets go of memory when the test says so.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_ANNOUNCED_MEMORY_H_
#define ROPE_TESTS_SUPPORT_ANNOUNCED_MEMORY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/backend/backend.h"

namespace rope::testing {

class AnnouncedMemory final : public kernels::HostMemory {
 public:
  // Expects that all memory was removed.
  ~AnnouncedMemory() override {
    Wait();
    EXPECT_TRUE(now.empty());
  }

  void Add(char* data, int64_t bytes) override {
    ++added;
    EXPECT_TRUE(now.emplace(data, bytes).second);
  }
  void Remove(char* data, Removed removed) override {
    const auto found = now.find(data);
    ASSERT_NE(found, now.end());
    removed_.push_back({data, found->second, std::move(removed)});
    now.erase(found);
  }
  void Wait() override {
    for (const Removal& removal : std::exchange(removed_, {})) {
      removal.data[removal.bytes - 1] = 1;  // a fault, if it is no longer mapped
      removal.removed();
    }
  }

  int added = 0;
  // What is announced now. No pointer to char, which would be printed as text.
  std::map<const void*, int64_t> now;

 private:
  struct Removal {
    char* data;
    int64_t bytes;
    Removed removed;
  };
  std::vector<Removal> removed_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_ANNOUNCED_MEMORY_H_
