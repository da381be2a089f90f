#include "client/memory/staged_run.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "client/memory/shared_memory.h"

namespace rope::client {
namespace {

std::shared_ptr<ArenaMemory> NewMemory() {
  return std::make_shared<ArenaMemory>(
      SharedMemory::CreateMemfd(4096, SharedMemory::Use::kStaging).value());
}

TEST(StagedRunTest, RunIsFreeOnceItsOwnerGoes) {
  const auto memory = NewMemory();
  {
    std::optional<StagedRun> run = StagedRun::Allocate(memory, 1000);
    ASSERT_TRUE(run.has_value());
    EXPECT_FALSE(StagedRun::Allocate(memory, 4096).has_value());
    StagedRun moved = *std::move(run);
    EXPECT_NE(moved.data(), nullptr);
    EXPECT_EQ(memory->used_bytes(), 1024);
    moved = StagedRun();
    EXPECT_EQ(memory->used_bytes(), 0);
  }
  EXPECT_EQ(memory->used_bytes(), 0);
  EXPECT_EQ(memory->lost_bytes(), 0);
}

TEST(StagedRunTest, RunIsLostUnlessTheServerSaidThatItIsOver) {
  const struct {
    StatusCode code;
    bool executed;
    bool lost;
  } cases[] = {
      {StatusCode::kInvalidArgument, false, false}, {StatusCode::kResourceExhausted, false, false},
      {StatusCode::kUnavailable, false, false},     {StatusCode::kUnavailable, true, true},
      {StatusCode::kDeadlineExceeded, true, true},  {StatusCode::kCancelled, true, true},
      {StatusCode::kInternal, false, true},         {StatusCode::kUnknown, false, true},
  };
  for (const auto& [code, executed, lost] : cases) {
    const auto memory = NewMemory();
    StagedRun run = *StagedRun::Allocate(memory, 64);
    run.NoteFailure(Status(code, "x", {.may_have_executed = executed}));
    run.NoteFailure(Status(code, "x", {.may_have_executed = executed}));
    EXPECT_EQ(memory->lost_bytes(), lost ? 64 : 0) << Name(code);
    run = StagedRun();
    EXPECT_EQ(memory->used_bytes(), lost ? 64 : 0) << Name(code);
  }
}

TEST(StagedRunTest, NothingIsLostOfNothing) {
  StagedRun run;
  run.NoteFailure(Status(StatusCode::kUnavailable, "x", {.may_have_executed = true}));
  EXPECT_EQ(run.data(), nullptr);
}

}  // namespace
}  // namespace rope::client
