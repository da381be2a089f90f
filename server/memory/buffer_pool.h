// BufferPool: output memory that is kept and has been touched before, because a page that the
// kernel zeroes anew costs more than the rotation and the socket together.
//
// Threading:  Thread-safe. Giving a buffer back takes one short lock and calls nothing else, so
//             that any thread may do it, gRPC's under its own locks too.
// Ownership:  A PooledBuffer returns its memory when destroyed; it may outlive the pool.
// Limits:     Sizes are rounded up to a power of two of at least 4 KiB. Free memory beyond
//             `kept_bytes_max` goes back to the kernel; so does what Trim finds unused.
#ifndef ROPE_SERVER_MEMORY_BUFFER_POOL_H_
#define ROPE_SERVER_MEMORY_BUFFER_POOL_H_

#include <cstddef>
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

 private:
  friend class BufferPool;
  class Store;

  std::shared_ptr<Store> store_;
  char* data_ = nullptr;
  int64_t size_ = 0;
  int size_class_ = 0;
};

class BufferPool {
 public:
  explicit BufferPool(int64_t kept_bytes_max);

  // A buffer of `size` bytes with undefined contents. An empty one: `size` is 0, or the system has
  // no memory left.
  PooledBuffer Allocate(int64_t size);

  // Gives back to the system what has lain free ever since the last Trim, but for kTrimFloorBytes.
  void Trim();

  // Bytes that lie free for reuse, and bytes that are in use.
  int64_t kept_bytes() const;
  int64_t used_bytes() const;

 private:
  std::shared_ptr<PooledBuffer::Store> store_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_BUFFER_POOL_H_
