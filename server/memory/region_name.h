// RegionName: a region under one of its ids. The table has it while the id is registered, and each
// request that names the id has it until it is done. Who unregisters the id can be told when the
// last of these has let go.
//
// Threading:  `set_released` and `KeepsBack` under the table's lock, by who unregisters the id.
//             Destroyed on the thread of whoever lets go last, which is never under a lock.
// Ownership:  Shares the region with its other names, and gives it back before it says so.
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

  // `names` bounds the names of a session; one of them was taken for this.
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
  // The region, which holds this name.
  static std::shared_ptr<const Region> Hold(const std::shared_ptr<const RegionName>& name) {
    return {name, name->region_.get()};
  }

  // What to run when all have let go.
  void set_released(Released released) { released_ = std::move(released); }
  // `later` is not let go of before this one is.
  void KeepsBack(std::shared_ptr<RegionName> later) { later_.push_back(std::move(later)); }

 private:
  std::shared_ptr<const Region> region_;
  const std::shared_ptr<Budget> names_;
  Released released_;
  std::vector<std::shared_ptr<RegionName>> later_;  // go last
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_REGION_NAME_H_
