// OutputPool: keeps the memory of destroyed replies for later ones. Fresh pages, which the kernel
// must map and zero, cost as much as the copy into them.
//
//   Allocate -> RotatedTensor::owned -> OutputDeleter -> idle -> Allocate
//
// Every piece is an ordinary array of new[] with a rounded size; the program's allocator keeps its
// settings. The piece that became idle last is reused first.
//
// Threading:  Thread-safe. Pieces below kPooledBytesMin take no lock.
// Ownership:  Each piece holds a reference to the pool and may outlive its connection.
// Limits:     At most `kept_bytes_max` idle bytes; beyond that the pieces that were idle longest
//             are freed. A piece exceeds the requested size by at most an eighth.
#ifndef ROPE_CLIENT_MEMORY_OUTPUT_POOL_H_
#define ROPE_CLIENT_MEMORY_OUTPUT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"
#include "rope/tensor.h"

namespace rope::client {

class OutputPool : public std::enable_shared_from_this<OutputPool> {
 public:
  // Smaller pieces are not pooled: the allocator serves them without new pages.
  static constexpr int64_t kPooledBytesMin = 64 << 10;

  // REQUIRES: a shared_ptr has it, as pieces will.
  explicit OutputPool(int64_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  // Memory with undefined contents. REQUIRES: `bytes` is the size of a received tensor, >= 0.
  OutputMemory Allocate(int64_t bytes);
  // Frees all idle memory; from now on nothing is kept.
  void Close();

  int64_t idle_bytes() const;

 private:
  friend class OutputDeleter;

  using Memory = std::unique_ptr<std::byte[]>;
  struct Idle {
    Memory memory;
    int64_t bytes = 0;
  };

  // `memory` was allocated by this pool with `piece_bytes`, the rounded size.
  void GiveBack(Memory memory, int64_t piece_bytes);

  mutable proto::Mutex mu_;
  int64_t kept_bytes_max_ ABSL_GUARDED_BY(mu_);
  std::deque<Idle> idle_ ABSL_GUARDED_BY(mu_);  // oldest first
  int64_t idle_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_OUTPUT_POOL_H_
