#include "client/memory/output_pool.h"

#include <bit>
#include <utility>

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

std::shared_ptr<OutputPool> OutputPool::Make(int64_t kept_bytes_max) {
  return std::shared_ptr<OutputPool>(new OutputPool(kept_bytes_max));  // owned by the shared_ptr
}

OutputMemory OutputPool::Allocate(int64_t bytes) {
  if (bytes < kPooledBytesMin) return OutputMemory(NewMemory(bytes).release());
  const int64_t piece_bytes = PieceBytes(bytes);
  Memory memory;
  {
    const proto::MutexLock lock(&mu_);
    if (const auto it = idle_.find(piece_bytes); it != idle_.end() && !it->second.empty()) {
      memory = std::move(it->second.back().memory);
      it->second.pop_back();
      idle_bytes_ -= piece_bytes;
    }
  }
  if (memory == nullptr) memory = NewMemory(piece_bytes);
  return OutputMemory(memory.release(), OutputDeleter(shared_from_this(), piece_bytes));
}

void OutputPool::GiveBack(Memory memory, int64_t piece_bytes) {
  for (;;) {
    Memory dropped;  // declared before the lock, so it is freed after the unlock
    const proto::MutexLock lock(&mu_);
    if (piece_bytes > kept_bytes_max_) return;
    if (piece_bytes <= kept_bytes_max_ - idle_bytes_) {
      idle_[piece_bytes].push_back({std::move(memory), next_number_++});
      idle_bytes_ += piece_bytes;
      return;
    }
    dropped = PopOldest();
  }
}

OutputPool::Memory OutputPool::PopOldest() {
  auto oldest = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    if (it->second.empty()) continue;
    if (oldest == idle_.end() || it->second.front().number < oldest->second.front().number) {
      oldest = it;
    }
  }
  Memory memory = std::move(oldest->second.front().memory);
  oldest->second.pop_front();
  idle_bytes_ -= oldest->first;
  return memory;
}

void OutputPool::Close() {
  std::map<int64_t, std::deque<Idle>> dropped;  // freed after the unlock
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
