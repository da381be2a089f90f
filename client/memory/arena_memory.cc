#include "client/memory/arena_memory.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::client {

Result<std::shared_ptr<ArenaMemory>> ArenaMemory::Create(int64_t bytes, SharedMemory::Use use) {
  if (bytes == 0) return std::make_shared<ArenaMemory>(nullptr);
  ROPE_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> shared,
                        SharedMemory::CreateMemfd(bytes, use));
  return std::make_shared<ArenaMemory>(std::move(shared));
}

ArenaMemory::ArenaMemory(std::unique_ptr<SharedMemory> shared) : shared_(std::move(shared)) {
  if (capacity_bytes() > 0) free_.emplace(0, capacity_bytes());
}

// First fit: takes the beginning of the lowest free range that is large enough. free_ maps offsets
// to lengths, both multiples of kAlignment, so a range that fits `bytes` fits the rounded size too.
Result<std::byte*> ArenaMemory::Allocate(int64_t bytes) {
  const proto::MutexLock lock(&mu_);
  // A range that fits is at most the arena's size, so RoundedUp(bytes) cannot overflow.
  const auto fits = [bytes](const auto& part) { return part.second >= bytes; };
  const auto part = std::find_if(free_.begin(), free_.end(), fits);
  if (part == free_.end()) {
    return MakeError(Reason::kBudgetFull, "arena", absl::StrCat("a slot of ", bytes, " bytes"),
                     absl::StrCat("one that fits into ", capacity_bytes(), " of which ",
                                  used_bytes_, " are used"));
  }
  const auto [offset, length] = *part;
  const int64_t taken = RoundedUp(bytes);
  free_.erase(part);
  if (length > taken) free_.emplace(offset + taken, length - taken);
  used_bytes_ += taken;
  return shared_->data() + offset;
}

// Merges the range with the free range behind it, then with the one before it. Because every call
// merges, no two free ranges touch.
void ArenaMemory::GiveBack(std::byte* data, int64_t bytes) {
  const proto::MutexLock lock(&mu_);
  int64_t offset = data - shared_->data();
  int64_t length = RoundedUp(bytes);
  used_bytes_ -= length;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_.emplace_hint(next, offset, length);
}

int64_t ArenaMemory::used_bytes() const {
  const proto::MutexLock lock(&mu_);
  return used_bytes_;
}

// Needs no lock: address and size of the mapping never change.
std::optional<int64_t> ArenaMemory::OffsetOf(const void* data, int64_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  if (shared_ == nullptr || bytes > capacity_bytes()) return std::nullopt;
  const std::byte* last = shared_->data() + (capacity_bytes() - bytes);
  // Comparing unrelated pointers with < is undefined; std::less defines a total order.
  if (std::less<>()(begin, shared_->data()) || std::less<>()(last, begin)) return std::nullopt;
  return shared_->offset() + (begin - shared_->data());
}

void Slot::GiveBack::operator()(std::byte* data) const {
  memory->GiveBack(data, bytes);
}

Arena::Arena(std::shared_ptr<ArenaMemory> memory) : memory_(std::move(memory)) {}

Result<Arena> Arena::CreateLocal(int64_t bytes) {
  if (bytes < 0) return InvalidField("bytes", bytes, "0 or more");
  ROPE_ASSIGN_OR_RETURN(std::shared_ptr<ArenaMemory> memory,
                        ArenaMemory::Create(bytes, SharedMemory::Use::kArena));
  return Arena(std::move(memory));
}

Result<Slot> Arena::Allocate(int64_t bytes) const {
  if (bytes < 0) {
    return InvalidField("slot", absl::StrCat(bytes, " bytes"), "0 or more");
  }
  if (bytes == 0) return Slot();
  ROPE_ASSIGN_OR_RETURN(std::byte* const data, memory_->Allocate(bytes));
  Slot slot;
  slot.range_ = {data, Slot::GiveBack{memory_, bytes}};
  return slot;
}

int Arena::fd() const {
  return memory_->shared() == nullptr ? -1 : memory_->shared()->fd();
}

int64_t Arena::capacity_bytes() const {
  return memory_->capacity_bytes();
}

int64_t Arena::used_bytes() const {
  return memory_->used_bytes();
}

}  // namespace rope::client
