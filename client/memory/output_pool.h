// OutputPool: memory of replies that is kept for the replies after them, because pages that the
// kernel has to map and zero anew cost as much as the copy into them.
//
//   Take -> RotatedTensor::owned -> OutputDeleter -> idle -> Take
//
// Every piece is an ordinary array of new[], of a rounded size; the program's allocator is set up
// by nobody here. The last piece to come back is the first to go out.
//
// Threading:  Thread-safe. Pieces below kPooledBytesMin take no lock.
// Ownership:  Pieces share the pool, and may outlive whoever made it.
// Limits:     At most `kept_bytes_max` idle bytes; beyond that the pieces that have lain idle
//             longest go back to the allocator. A piece is larger than asked for by an eighth at
//             most.
#ifndef ROPE_CLIENT_MEMORY_OUTPUT_POOL_H_
#define ROPE_CLIENT_MEMORY_OUTPUT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"
#include "rope/tensor.h"

namespace rope::client {

class OutputPool : public std::enable_shared_from_this<OutputPool> {
 public:
  // Smaller pieces are never kept: the allocator has them at hand.
  static constexpr int64_t kPooledBytesMin = 64 << 10;

  // Always owned by a shared_ptr, which pieces share.
  static std::shared_ptr<OutputPool> Make(int64_t kept_bytes_max);

  // Memory with undefined contents. REQUIRES: bytes >= 0, of a message that exists.
  OutputMemory Allocate(int64_t bytes);
  // Keeps nothing from now on.
  void Close();

  int64_t idle_bytes() const;

 private:
  friend class OutputDeleter;

  using Memory = std::unique_ptr<std::byte[]>;
  struct Idle {
    Memory memory;
    uint64_t number = 0;  // grows with every piece that comes back
  };

  explicit OutputPool(int64_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  // What Take gave, with the size that it had made.
  void GiveBack(Memory memory, int64_t piece_bytes);
  // REQUIRES: something is idle.
  Memory PopOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable proto::Mutex mu_;
  int64_t kept_bytes_max_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::deque<Idle>> idle_
      ABSL_GUARDED_BY(mu_);  // size -> pieces of it, oldest first
  int64_t idle_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_OUTPUT_POOL_H_
