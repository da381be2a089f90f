#include "server/buffer_pool.h"

#include <sys/mman.h>

#include <array>
#include <bit>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/check.h"
#include "proto/mutex.h"

namespace rope::server {
namespace {

constexpr int kSmallestClass = 12;  // 4 KiB
constexpr int kClasses = 48;

int SizeClass(int64_t size) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1)));
  return bits < kSmallestClass ? kSmallestClass : bits;
}

int64_t ClassBytes(int size_class) {
  return int64_t{1} << size_class;
}

}  // namespace

// The free lists, one for each power of two.
class PooledBuffer::Store {
 public:
  explicit Store(int64_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  ~Store() {
    for (int size_class = 0; size_class < kClasses; ++size_class) {
      for (char* data : free_[static_cast<size_t>(size_class)]) Unmap(data, size_class);
    }
  }

  char* Take(int size_class) {
    {
      proto::MutexLock lock(&mutex_);
      std::vector<char*>& list = free_[static_cast<size_t>(size_class)];
      if (!list.empty()) {
        char* data = list.back();
        list.pop_back();
        kept_bytes_ -= ClassBytes(size_class);
        return data;
      }
    }
    // MAP_POPULATE touches every page here, once, instead of in each request.
    void* data = mmap(nullptr, static_cast<size_t>(ClassBytes(size_class)), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ROPE_CHECK(data != MAP_FAILED);
    return static_cast<char*>(data);
  }

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
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

PooledBuffer& PooledBuffer::operator=(PooledBuffer&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(size_class_, other.size_class_);
  return *this;
}

PooledBuffer::~PooledBuffer() {
  if (data_ != nullptr) store_->Give(data_, size_class_);
}

BufferPool::BufferPool(int64_t kept_bytes_max)
    : store_(std::make_shared<PooledBuffer::Store>(kept_bytes_max)) {}

PooledBuffer BufferPool::Take(int64_t size) {
  PooledBuffer buffer;
  if (size == 0) return buffer;
  buffer.size_class_ = SizeClass(size);
  buffer.data_ = store_->Take(buffer.size_class_);
  buffer.size_ = size;
  buffer.store_ = store_;
  return buffer;
}

int64_t BufferPool::kept_bytes() const {
  return store_->kept_bytes();
}

}  // namespace rope::server
