// OwnerShares: places for something of which there are few, such as connections or control calls.
// It bounds them for all owners (peers.h) and for each, so that one owner leaves some to others.
//
// Threading:  Thread-safe.
// Ownership:  The shares must outlive each Place.
// Errors:     Take: RESOURCE_EXHAUSTED.
#ifndef ROPE_SERVER_CLIENTS_OWNER_SHARES_H_
#define ROPE_SERVER_CLIENTS_OWNER_SHARES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/mutex.h"
#include "server/error.h"

namespace rope::server {

class OwnerShares {
 public:
  struct Bounds {
    int64_t all = 0;
    int64_t owner = 0;
  };
  struct Refusals {
    int64_t full = 0;
    int64_t owner_share = 0;
  };

  // Taken until the last copy ends. Null: no place.
  using Place = std::shared_ptr<const void>;

  // Of the error: its reason and its words, "max_connections: got connection 3 of uid:7".
  struct Words {
    Reason reason = Reason::kBudgetFull;
    std::string field = {};
    std::string what = {};
  };
  OwnerShares(Words words, Bounds bounds) : words_(std::move(words)), bounds_(bounds) {}

  absl::StatusOr<Place> Take(const std::string& owner) {
    {
      proto::MutexLock lock(&mutex_);
      const auto found = taken_.find(owner);
      const int64_t own = found == taken_.end() ? 0 : found->second;
      if (own >= bounds_.owner) {
        ++refusals_.owner_share;
        return TooMany(own + 1, owner, bounds_.owner);
      }
      if (count_ >= bounds_.all) {
        ++refusals_.full;
        return TooMany(count_ + 1, "all clients", bounds_.all);
      }
      ++count_;
      ++taken_[owner];
    }
    return Place(nullptr, [this, owner](const void*) { Return(owner); });
  }

  const Bounds& bounds() const { return bounds_; }
  int64_t count() const {
    proto::MutexLock lock(&mutex_);
    return count_;
  }
  Refusals refusals() const {
    proto::MutexLock lock(&mutex_);
    return refusals_;
  }

 private:
  absl::Status TooMany(int64_t count, absl::string_view owner, int64_t most) const {
    return RetryLater(words_.reason, words_.field,
                      absl::StrCat(words_.what, " ", count, " of ", owner),
                      absl::StrCat("at most ", most));
  }
  void Return(const std::string& owner) {
    proto::MutexLock lock(&mutex_);
    --count_;
    const auto own = taken_.find(owner);
    if (--own->second == 0) taken_.erase(own);
  }

  const Words words_;
  const Bounds bounds_;
  mutable proto::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> taken_ ABSL_GUARDED_BY(mutex_);  // by owner, > 0
  Refusals refusals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_OWNER_SHARES_H_
