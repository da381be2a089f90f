// WireCursor over random bytes. It must read the same from fragments of any size as from one piece,
// and never read outside of them.
//
// ROPE_FUZZ_ROUNDS=N sets the number of byte strings, ROPE_FUZZ_SEED=N the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/wire_cursor.h"
#include "tests/fuzz/fuzz_random.h"

namespace rope::proto {
namespace {

using ::rope::testing::ExactFragments;
using ::rope::testing::FuzzRandom;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;

constexpr uint64_t kRounds = 200000;
constexpr uint64_t kSeed = 20260105;
constexpr uint64_t kSteps = 24;  // at most, for each string

enum class Step { kVarint, kTag, kLength, kSkip, kBytes, kView };
constexpr uint64_t kKinds = 6;

struct Move {
  Step step = Step::kVarint;
  uint64_t type = 0;  // for kSkip
  int64_t count = 0;  // for kBytes and kView
};

std::string Text(const absl::Status& status) {
  return absl::StrCat("status ", absl::StatusCodeToString(status.code()), ": ", status.message());
}
template <typename Number>
std::string Text(const absl::StatusOr<Number>& number) {
  return number.ok() ? absl::StrCat(*number) : Text(number.status());
}

std::string Text(const absl::StatusOr<FragmentedBytes>& view) {
  if (!view.ok()) return Text(view.status());
  std::string bytes(static_cast<size_t>(view->bytes), '\0');
  view->CopyTo(bytes.data());
  return "view " + bytes;
}

// The cursor's result for one move. No move follows an error.
std::string Make(const Move& move, WireCursor& cursor, bool& failed) {
  const auto note = [&failed](const auto& result) {
    failed = !result.ok();
    return Text(result);
  };
  switch (move.step) {
    case Step::kVarint:
      return note(cursor.ReadVarint());
    case Step::kTag:
      return note(cursor.ReadTag());
    case Step::kLength:
      return note(cursor.ReadLength());
    case Step::kSkip:
      return note(cursor.SkipField(static_cast<WireType>(move.type)));
    case Step::kBytes: {
      std::string out = "had ";
      const absl::Status status = cursor.ReadBytes(move.count, out);
      failed = !status.ok();
      return failed ? Text(status) : out;
    }
    case Step::kView:
      return note(cursor.ReadView(move.count));
  }
  return "";
}

class CursorFuzzTest : public ::testing::Test {
 protected:
  Move RandomMove(std::string_view rest) {
    Move move;
    move.step = static_cast<Step>(random_.Below(kKinds));
    move.type = random_.OneIn(8) ? random_.Below(8) : random_.OneOf<uint64_t>({0, 1, 5});
    move.count = static_cast<int64_t>(random_.Below(rest.size() + (random_.OneIn(8) ? 3 : 1)));
    if (random_.OneIn(64)) move.count = std::max<int64_t>(random_.EdgeInteger(), 0);
    return move;
  }

  // Mixes in small bytes, so that some varints end.
  std::string RandomBytes() {
    std::string bytes = random_.RandomBytes(random_.Below(64));
    for (char& byte : bytes) {
      if (random_.OneIn(2)) byte = static_cast<char>(random_.Below(128));
    }
    return bytes;
  }

  void Round() {
    const std::string bytes = RandomBytes();
    SCOPED_TRACE(absl::BytesToHexString(bytes));
    const ExactFragments whole({bytes});
    const ExactFragments cut(random_.Cut(bytes));
    WireCursor one(whole.views());
    WireCursor many(cut.views());
    EXPECT_EQ(many.size(), static_cast<int64_t>(bytes.size()));
    bool failed = false;
    for (uint64_t step = 0; step < kSteps && !failed; ++step) {
      const int64_t before = one.position();
      const Move move = RandomMove(std::string_view(bytes).substr(static_cast<size_t>(before)));
      bool many_failed = false;
      const std::string want = Make(move, one, failed);
      EXPECT_EQ(Make(move, many, many_failed), want);
      EXPECT_EQ(many_failed, failed);
      EXPECT_GE(one.position(), before);
      EXPECT_LE(one.position(), one.size());
      if (failed) break;
      EXPECT_EQ(many.position(), one.position());
      ++moves_;
    }
    failures_ += failed ? 1 : 0;
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  int64_t moves_ = 0;
  int64_t failures_ = 0;
};

TEST_F(CursorFuzzTest, FragmentsMakeNoDifferenceAndNothingPastThemIsRead) {
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) Round();
  std::printf("measured: %lld reads, %lld strings ended in an error\n",
              static_cast<long long>(moves_), static_cast<long long>(failures_));
  EXPECT_GT(moves_, static_cast<int64_t>(rounds));
  EXPECT_GT(failures_, 0);
}

}  // namespace
}  // namespace rope::proto
