#include "client/memory/output_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>
#include <vector>

namespace rope::client {
namespace {

// Eight sizes for each power of two, so that tensors of similar sizes can share pieces.
int64_t PieceBytes(int64_t bytes) {
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)) / 8);
  return (bytes + step - 1) / step * step;
}

// Leaves the memory uninitialized: zeroing it would cost as much as the copy.
std::unique_ptr<std::byte[]> NewMemory(int64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

}  // namespace

OutputMemory OutputPool::Allocate(int64_t bytes) {
  if (bytes < kPooledBytesMin) return OutputMemory(NewMemory(bytes).release());
  const int64_t piece_bytes = PieceBytes(bytes);
  Memory memory;
  {
    const proto::MutexLock lock(&mu_);
    const auto fits = [piece_bytes](const Idle& idle) { return idle.bytes == piece_bytes; };
    if (const auto last = std::find_if(idle_.rbegin(), idle_.rend(), fits); last != idle_.rend()) {
      memory = std::move(last->memory);
      idle_.erase(std::next(last).base());
      idle_bytes_ -= piece_bytes;
    }
  }
  if (memory == nullptr) memory = NewMemory(piece_bytes);
  return OutputMemory(memory.release(), OutputDeleter(shared_from_this(), piece_bytes));
}

void OutputPool::GiveBack(Memory memory, int64_t piece_bytes) {
  std::vector<Memory> dropped;  // declared before the lock, so it is freed after the unlock
  const proto::MutexLock lock(&mu_);
  if (piece_bytes > kept_bytes_max_) return;
  while (piece_bytes > kept_bytes_max_ - idle_bytes_) {
    idle_bytes_ -= idle_.front().bytes;
    dropped.push_back(std::move(idle_.front().memory));
    idle_.pop_front();
  }
  idle_.push_back({std::move(memory), piece_bytes});
  idle_bytes_ += piece_bytes;
}

void OutputPool::Close() {
  std::deque<Idle> dropped;  // freed after the unlock
  const proto::MutexLock lock(&mu_);
  dropped.swap(idle_);
  idle_bytes_ = 0;
  kept_bytes_max_ = 0;
}

int64_t OutputPool::idle_bytes() const {
  const proto::MutexLock lock(&mu_);
  return idle_bytes_;
}

OutputDeleter::OutputDeleter(std::shared_ptr<OutputPool> pool, int64_t piece_bytes)
    : pool_(std::move(pool)), piece_bytes_(piece_bytes) {}

void OutputDeleter::operator()(std::byte* data) const {
  std::unique_ptr<std::byte[]> memory(data);
  if (pool_ != nullptr) pool_->GiveBack(std::move(memory), piece_bytes_);
}

}  // namespace rope::client
