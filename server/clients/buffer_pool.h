// BufferPool: reuses output buffers whose pages are already mapped. A page that the kernel has to
// zero first costs more than the rotation and the socket together.
//
// Threading:  Thread-safe. A buffer's destructor takes one short lock and calls nothing under it,
//             so that any thread may run it, including gRPC's threads under gRPC's locks.
// Ownership:  A PooledBuffer returns its memory when destroyed. It may outlive the pool.
// Limits:     Sizes are rounded up to pages of 4 KiB, and above 64 KiB by at most an eighth. Free
//             memory beyond `kept_bytes_max` returns to the kernel, as does memory that Trim finds
//             unused.
#ifndef ROPE_SERVER_CLIENTS_BUFFER_POOL_H_
#define ROPE_SERVER_CLIENTS_BUFFER_POOL_H_

#include <cstdint>
#include <memory>
#include <utility>

namespace rope::server {

class BufferPool;

// Move-only owner of a run of bytes, 64-byte aligned.
class PooledBuffer {
 public:
  PooledBuffer() = default;
  PooledBuffer(PooledBuffer&& other) noexcept { *this = std::move(other); }
  PooledBuffer& operator=(PooledBuffer&& other) noexcept;
  ~PooledBuffer();

  char* data() const { return data_; }
  int64_t size() const { return size_; }

  // Maps the pages before offset `end` now, so that no write to them faults. Only a new buffer of
  // more than kPopulatedBytes has pages that are not mapped yet. REQUIRES: end <= size().
  void Populate(int64_t end);

 private:
  friend class BufferPool;
  class Store;

  std::shared_ptr<Store> store_;
  char* data_ = nullptr;
  int64_t size_ = 0;
  int64_t populated_ = 0;
  int size_class_ = 0;
};

class BufferPool {
 public:
  // A larger buffer is mapped as it is filled: 256 MiB at once would take some 50 milliseconds.
  static constexpr int64_t kPopulatedBytes = 8 << 20;

  explicit BufferPool(int64_t kept_bytes_max);

  // A buffer of `size` bytes with undefined contents. It is empty if `size` is 0 or if the system
  // has no memory left.
  PooledBuffer Allocate(int64_t size);

  // Returns to the kernel the buffers that were free during the whole time since the last Trim.
  // Keeps kTrimFloorBytes of free memory.
  void Trim();

  // Bytes of the free buffers.
  int64_t kept_bytes() const;

 private:
  std::shared_ptr<PooledBuffer::Store> store_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_BUFFER_POOL_H_
