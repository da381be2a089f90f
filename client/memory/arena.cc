#include "rope/arena.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/memory/arena_memory.h"
#include "client/memory/shared_memory.h"

namespace rope::client {

Slot::Slot(std::shared_ptr<ArenaMemory> memory, void* data, int64_t bytes)
    : memory_(std::move(memory)), data_(data), bytes_(bytes) {}

Slot::Slot(Slot&& other) noexcept
    : memory_(std::move(other.memory_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  Slot moved(std::move(other));
  std::swap(memory_, moved.memory_);
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  return *this;
}

Slot::~Slot() {
  if (data_ != nullptr) memory_->GiveBack(static_cast<std::byte*>(data_), bytes_);
}

Arena::Arena(std::shared_ptr<ArenaMemory> memory) : memory_(std::move(memory)) {}

Result<Arena> Arena::CreateLocal(int64_t bytes) {
  if (bytes < 0) return InvalidField("bytes", bytes, "0 or more");
  std::unique_ptr<SharedMemory> memory;
  if (bytes > 0) {
    auto created = SharedMemory::CreateMemfd(bytes, SharedMemory::Use::kArena);
    if (!created.ok()) return created.status();
    memory = *std::move(created);
  }
  return Arena(std::make_shared<ArenaMemory>(std::move(memory)));
}

Result<Slot> Arena::Allocate(int64_t bytes) const {
  if (bytes < 0) {
    return InvalidField("slot", absl::StrCat(bytes, " bytes"), "0 or more");
  }
  if (bytes == 0) return Slot();
  const Result<std::byte*> data = memory_->Allocate(bytes);
  if (!data.ok()) return data.status();
  return Slot(memory_, *data, bytes);
}

int64_t Arena::capacity_bytes() const {
  return memory_->capacity_bytes();
}

int64_t Arena::used_bytes() const {
  return memory_->used_bytes();
}

}  // namespace rope::client
