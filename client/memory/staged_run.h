// StagedRun: a run of staging memory that holds the tensors of one request, from before it is sent
// until its results have been copied out.
//
// A call that ends without the server's word may leave the server at work on the run. Nobody asks
// when that is over (fence.h), so such a run is lost: no other request gets it. A connection that
// has lost half of its staging memory is replaced by one with memory of its own (Connector).
//
// Threading:  As its memory is.
// Ownership:  Owns the run, and shares the memory it is part of.
#ifndef ROPE_CLIENT_MEMORY_STAGED_RUN_H_
#define ROPE_CLIENT_MEMORY_STAGED_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "client/memory/arena_memory.h"
#include "rope/status.h"

namespace rope::client {

class StagedRun {
 public:
  StagedRun() = default;  // of no memory
  // nullopt: there is no run of so many bytes.
  static std::optional<StagedRun> Allocate(std::shared_ptr<ArenaMemory> memory, int64_t bytes) {
    const Result<std::byte*> data = memory->Allocate(bytes);
    if (!data.ok()) return std::nullopt;
    StagedRun run;
    run.memory_ = std::move(memory);
    run.data_ = *data;
    run.bytes_ = bytes;
    return run;
  }

  StagedRun(StagedRun&& other) noexcept { Swap(other); }
  StagedRun& operator=(StagedRun&& other) noexcept {
    StagedRun moved(std::move(other));
    Swap(moved);
    return *this;
  }
  ~StagedRun() {
    if (data_ != nullptr) memory_->GiveBack(data_, bytes_);
  }

  std::byte* data() const { return data_; }

  // The request ended with `status`, not OK: the run is lost unless the server said so.
  void NoteFailure(const Status& status) {
    const bool is_servers_word = !status.detail().executed &&
                                 status.code() != StatusCode::kInternal &&
                                 status.code() != StatusCode::kUnknown;
    if (data_ == nullptr || is_servers_word) return;
    memory_->Lose(bytes_);
    data_ = nullptr;
  }

 private:
  void Swap(StagedRun& other) {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<ArenaMemory> memory_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_STAGED_RUN_H_
