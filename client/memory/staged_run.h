// StagedRun: the staging memory of one request, from its encoding until the results are copied out.
//
// A call that ends before the server has answered may leave the server at work on the run. Staging
// memory has no fence (fence.h), so such a run is lost: no other request gets it. Once half of a
// connection's staging memory is lost, Connector replaces the connection by one with new memory.
//
// Threading:  Thread-compatible.
// Ownership:  Owns the run and shares the memory that contains it.
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
  StagedRun() = default;  // empty
  // nullopt: no free range is large enough.
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

  // Called when the request failed with `status`. The run is lost, unless the status proves that
  // the server has finished with it: kInternal and kUnknown prove nothing.
  void NoteFailure(const Status& status) {
    const bool is_servers_word = !status.detail().may_have_executed &&
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
