#include "server/clients/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"
#include "server/limits.h"

namespace rope::server {
namespace {

constexpr int64_t kPageBytes = 4096;
// Eight sizes for each doubling: a buffer is at most an eighth larger than what it is admitted as.
constexpr int kSizes = 8;
constexpr int kClasses = 36 * kSizes;  // up to 2^50 bytes
// Free memory that Trim keeps, so that a quiet server still answers small requests without a page
// fault.
constexpr int64_t kTrimFloorBytes = 16 * limits::kMiB;

// 1 to 8 pages, then 9 to 16, 18 to 32 in steps of 2, 36 to 64 in steps of 4, and so on.
int SizeClass(int64_t size) {
  const int64_t before = (size - 1) / kPageBytes;  // full pages before the last one
  if (before < kSizes) return static_cast<int>(before);
  const auto doubling = static_cast<int>(std::bit_width(static_cast<uint64_t>(before / kSizes)));
  const int64_t steps = before >> (doubling - 1);  // 8 to 15
  return doubling * kSizes + static_cast<int>(steps) - kSizes;
}

int64_t ClassBytes(int size_class) {
  const int doubling = size_class / kSizes;
  if (doubling == 0) return (size_class + 1) * kPageBytes;
  return (int64_t{kSizes + 1 + size_class % kSizes} << (doubling - 1)) * kPageBytes;
}

}  // namespace

// One free list per size. mutex_ guards the lists and the counters; mmap and munmap run outside it,
// because they may take milliseconds for a large buffer. Lists are last in, first out: the buffer
// that was returned last is the one whose pages are most likely still in the cache.
//
// Buffers own a reference to the store, so that it lives until the last of them is destroyed.
class PooledBuffer::Store {
 public:
  explicit Store(int64_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  ~Store() {
    for (int size_class = 0; size_class < kClasses; ++size_class) {
      for (char* data : free_[static_cast<size_t>(size_class)]) Unmap(data, size_class);
    }
  }

  // Sets `populated` to the bytes whose pages are mapped.
  char* Allocate(int size_class, int64_t& populated) {
    populated = ClassBytes(size_class);
    {
      proto::MutexLock lock(&mutex_);
      std::vector<char*>& list = free_[static_cast<size_t>(size_class)];
      if (!list.empty()) {
        char* data = list.back();
        list.pop_back();
        kept_bytes_ -= ClassBytes(size_class);
        size_t& least = least_free_[static_cast<size_t>(size_class)];
        least = std::min(least, list.size());
        return data;
      }
    }
    // The free list is empty. MAP_POPULATE maps every page now, once, and no request faults later.
    const bool populates = populated <= BufferPool::kPopulatedBytes;
    void* data = mmap(nullptr, static_cast<size_t>(populated), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | (populates ? MAP_POPULATE : 0), -1, 0);
    if (data == MAP_FAILED) return nullptr;
    if (!populates) populated = 0;
    return static_cast<char*>(data);
  }

  // Keeps the buffer while the free memory is within its bound; unmaps it otherwise, after the lock
  // is released.
  void Give(char* data, int size_class) {
    {
      proto::MutexLock lock(&mutex_);
      if (kept_bytes_ + ClassBytes(size_class) <= kept_bytes_max_) {
        kept_bytes_ += ClassBytes(size_class);
        free_[static_cast<size_t>(size_class)].push_back(data);
        return;
      }
    }
    Unmap(data, size_class);
  }

  // least_free_ holds the shortest length of each list since the last Trim: that many buffers were
  // never needed. They are removed under the lock and unmapped after it. The largest size class
  // comes first: its buffers are the fewest, and they are what a burst leaves behind.
  void Trim() {
    std::vector<std::pair<char*, int>> unmapped;
    {
      proto::MutexLock lock(&mutex_);
      for (int size_class = kClasses - 1; size_class >= 0; --size_class) {
        std::vector<char*>& list = free_[static_cast<size_t>(size_class)];
        size_t& least = least_free_[static_cast<size_t>(size_class)];
        for (; least > 0 && kept_bytes_ > kTrimFloorBytes; --least) {
          unmapped.emplace_back(list.back(), size_class);
          list.pop_back();
          kept_bytes_ -= ClassBytes(size_class);
        }
        least = list.size();
      }
    }
    for (const auto& [data, size_class] : unmapped) Unmap(data, size_class);
  }

  int64_t kept_bytes() const {
    proto::MutexLock lock(&mutex_);
    return kept_bytes_;
  }

 private:
  static void Unmap(char* data, int size_class) {
    munmap(data, static_cast<size_t>(ClassBytes(size_class)));
  }

  const int64_t kept_bytes_max_;
  mutable proto::Mutex mutex_;
  std::array<std::vector<char*>, kClasses> free_ ABSL_GUARDED_BY(mutex_);
  std::array<size_t, kClasses> least_free_ ABSL_GUARDED_BY(mutex_) = {};
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

PooledBuffer& PooledBuffer::operator=(PooledBuffer&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(populated_, other.populated_);
  std::swap(size_class_, other.size_class_);
  return *this;
}

PooledBuffer::~PooledBuffer() {
  if (data_ != nullptr) store_->Give(data_, size_class_);
}

// Kernels before 5.14 do not know MADV_POPULATE_WRITE; the pages then come with their first write.
void PooledBuffer::Populate(int64_t end) {
  const int64_t pages_end = (end + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (pages_end <= populated_) return;
  static_cast<void>(madvise(data_ + populated_, static_cast<size_t>(pages_end - populated_),
                            MADV_POPULATE_WRITE));
  populated_ = pages_end;
}

BufferPool::BufferPool(int64_t kept_bytes_max)
    : store_(std::make_shared<PooledBuffer::Store>(kept_bytes_max)) {}

PooledBuffer BufferPool::Allocate(int64_t size) {
  PooledBuffer buffer;
  if (size == 0) return buffer;
  buffer.size_class_ = SizeClass(size);
  buffer.data_ = store_->Allocate(buffer.size_class_, buffer.populated_);
  if (buffer.data_ == nullptr) return buffer;
  buffer.size_ = size;
  buffer.store_ = store_;
  return buffer;
}

void BufferPool::Trim() {
  store_->Trim();
}

int64_t BufferPool::kept_bytes() const {
  return store_->kept_bytes();
}

}  // namespace rope::server
