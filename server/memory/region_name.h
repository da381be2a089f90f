// RegionName: a region under one of its ids. Shared owners keep it alive:
//
//   registered    the table and the requests that named the id
//   unregistered  the requests that named the id, and earlier names of the same file (KeepsBack)
//   destroyed     nothing uses the memory by this id or an earlier one; `released` runs
//
// Threading:  `set_released` and `KeepsBack` run under the table's lock, in Unregister. The
//             destructor runs on the thread that drops the last reference, never under a lock.
// Ownership:  Shares the region with its other names, and releases it before `released` runs.
#ifndef ROPE_SERVER_MEMORY_REGION_NAME_H_
#define ROPE_SERVER_MEMORY_REGION_NAME_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/memory/budget.h"
#include "server/memory/region.h"

namespace rope::server {

class RegionName {
 public:
  // Runs once. Must not block.
  using Released = std::function<void()>;

  // `names` bounds the names of a session. REQUIRES: the caller acquired 1 of it for this name.
  RegionName(std::shared_ptr<const Region> region, std::shared_ptr<Budget> names)
      : region_(std::move(region)), names_(std::move(names)) {}
  ~RegionName() {
    region_.reset();
    names_->Give(1);
    if (released_) released_();
  }
  RegionName(const RegionName&) = delete;
  RegionName& operator=(const RegionName&) = delete;

  const std::shared_ptr<const Region>& region() const { return region_; }
  // A pointer to the region that keeps `name` alive.
  static std::shared_ptr<const Region> Hold(const std::shared_ptr<const RegionName>& name) {
    return {name, name->region_.get()};
  }

  // Sets the function that runs when the last owner has released this name.
  void set_released(Released released) { released_ = std::move(released); }
  // Keeps `later` alive at least as long as this name.
  void KeepsBack(std::shared_ptr<RegionName> later) { later_.push_back(std::move(later)); }

 private:
  std::shared_ptr<const Region> region_;
  const std::shared_ptr<Budget> names_;
  Released released_;
  std::vector<std::shared_ptr<RegionName>> later_;  // released after the destructor's body
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_REGION_NAME_H_
