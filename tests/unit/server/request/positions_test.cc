#include "server/request/positions.h"

#include <gtest/gtest.h>

#include "server/request/limits.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::RawBytes;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

Layout LayoutOf(const char* letters, const std::vector<int64_t>& shape) {
  return ParseLayout(letters, shape, 4, "t").value();
}

// Two sequences of three tokens.
Layout TwoByThree() {
  return LayoutOf("BSHD", {2, 3, 1, 8});
}

void SetNumbers(v1::Array& array, const std::vector<double>& numbers,
                const std::vector<int64_t>& shape = {}) {
  array.mutable_numbers()->Assign(numbers.begin(), numbers.end());
  SetShape(array, shape);
}

absl::StatusOr<TokenPositions> Read(const v1::Positions& message, const Layout& layout,
                                    bool multimodal = false, size_t piece = 1000) {
  v1::RotateRequest request;
  *request.mutable_positions() = message;
  const ReceivedRequest received(request, piece);
  ArraySource source(received.split);
  return ReadPositions(received.message.positions(), source, layout, multimodal, "positions");
}

v1::Positions Start(int64_t start) {
  v1::Positions message;
  message.set_start(start);
  return message;
}

v1::Positions Starts(const std::vector<double>& starts) {
  v1::Positions message;
  SetNumbers(*message.mutable_starts(), starts);
  return message;
}

v1::Positions Ids(const std::vector<double>& ids, const std::vector<int64_t>& shape) {
  v1::Positions message;
  SetNumbers(*message.mutable_position_ids(), ids, shape);
  return message;
}

v1::Positions Packed(const std::vector<double>& offsets, int64_t start = 0) {
  v1::Positions message = Start(start);
  SetNumbers(*message.mutable_cu_seqlens(), offsets);
  return message;
}

void ExpectFails(const v1::Positions& message, const Layout& layout, absl::StatusCode code,
                 const std::string& text, bool multimodal = false) {
  EXPECT_THAT(Read(message, layout, multimodal), Fails(code, text));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

TEST(PositionsTest, StartCountsUpInEverySequence) {
  ASSERT_OK(read, Read(Start(10), TwoByThree()));
  EXPECT_EQ(read->axes, 1);
  EXPECT_THAT(read->values[0], ElementsAre(10, 11, 12, 10, 11, 12));
  EXPECT_THAT(read->sequence, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(read->seq_len, ElementsAre(13, 13));
}

TEST(PositionsTest, StartsFollowMemoryOrderOfSequenceMajorTensors) {
  ASSERT_OK(read, Read(Starts({100, 200}), LayoutOf("SBHD", {3, 2, 1, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(100, 200, 101, 201, 102, 202));
  EXPECT_THAT(read->sequence, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(read->seq_len, ElementsAre(103, 203));
}

TEST(PositionsTest, LayersShareTheirPositions) {
  ASSERT_OK(read, Read(Start(5), LayoutOf("LSHD", {2, 2, 1, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(5, 6, 5, 6));
  EXPECT_THAT(read->seq_len, ElementsAre(7));
}

v1::Positions Parallel(v1::Positions message, int32_t size, int32_t rank) {
  message.set_cp_size(size);
  message.set_cp_rank(rank);
  return message;
}

TEST(ContextParallelTest, RankHoldsItsChunkAndTheOneThatMirrorsIt) {
  // 12 tokens in 6 chunks over three ranks: 0 and 5, 1 and 4, 2 and 3.
  const Layout layout = LayoutOf("SD", {4, 8});
  const std::vector<std::vector<int64_t>> want = {{0, 1, 10, 11}, {2, 3, 8, 9}, {4, 5, 6, 7}};
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_OK(read, Read(Parallel(Start(100), 3, rank), layout));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(read->values[0][i], 100 + want[static_cast<size_t>(rank)][i]) << rank;
    }
    EXPECT_THAT(read->seq_len, ElementsAre(112)) << "every rank computes the same length";
  }
}

TEST(ContextParallelTest, PackedSequencesAreSplitOneByOne) {
  // Sequences of 4 and 8 tokens over two ranks; this rank holds 2 and 4 of them.
  ASSERT_OK(read, Read(Parallel(Packed({0, 2, 6}), 2, 0), LayoutOf("TD", {6, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(0, 3, 0, 1, 6, 7));
  EXPECT_THAT(read->seq_len, ElementsAre(4, 8));
}

TEST(ContextParallelTest, OneRankHoldsEverythingAlsoOddLengths) {
  ASSERT_OK(read, Read(Parallel(Start(0), 1, 0), LayoutOf("SD", {3, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(0, 1, 2));
}

TEST(ContextParallelTest, WhatCannotBeIsRefused) {
  const Layout layout = LayoutOf("SD", {4, 8});
  ExpectFails(Parallel(Start(0), 0, 0), layout, kInvalid, "positions.cp_size: got 0, want a size");
  ExpectFails(Parallel(Start(0), 2, 2), layout, kInvalid, "positions.cp_rank: got 2, want 0 to 1");
  ExpectFails(Parallel(Start(0), 2, -1), layout, kInvalid, "positions.cp_rank: got -1");
  ExpectFails(Parallel(Start(0), 2, 0), LayoutOf("SD", {3, 8}), kInvalid,
              "positions.cp_size: got 2 and a sequence of 3 tokens here, want an even number");
  ExpectFails(Parallel(Ids({0, 1, 2, 3}, {4}), 2, 0), layout, kInvalid,
              "positions.cp_size: got it together with position_ids");
  v1::Positions lonely = Start(0);
  lonely.set_cp_size(2);
  ExpectFails(lonely, layout, kInvalid, "positions.cp_rank: got nothing");
  lonely.clear_cp_size();
  lonely.set_cp_rank(0);
  ExpectFails(lonely, layout, kInvalid, "positions.cp_size: got nothing");
  ExpectFails(Parallel(Start(0), 1 << 30, 0), layout, kOutOfRange, "positions.start: got");
}

TEST(PositionsTest, StartsOfAnotherCountAreInvalid) {
  ExpectFails(Starts({1, 2, 3}), TwoByThree(), kInvalid,
              "positions.starts.shape: got [3], want [2]");
  ExpectFails(Starts({1}), TwoByThree(), kInvalid, "positions.starts.shape: got [1], want [2]");
}

TEST(PositionsTest, IdsOfOneSequenceServeAll) {
  ASSERT_OK(read, Read(Ids({7, 3, 9}, {3}), TwoByThree()));
  EXPECT_THAT(read->values[0], ElementsAre(7, 3, 9, 7, 3, 9));
  EXPECT_THAT(read->seq_len, ElementsAre(10, 10));
}

TEST(PositionsTest, IdsOfEverySequenceAreRowMajorWhateverTheLayout) {
  const v1::Positions ids = Ids({1, 2, 3, 4, 5, 6}, {2, 3});
  ASSERT_OK(batch_first, Read(ids, TwoByThree()));
  EXPECT_THAT(batch_first->values[0], ElementsAre(1, 2, 3, 4, 5, 6));
  ASSERT_OK(sequence_first, Read(ids, LayoutOf("SBHD", {3, 2, 1, 8})));
  EXPECT_THAT(sequence_first->values[0], ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(PositionsTest, IdsOfPackedTokens) {
  ASSERT_OK(read, Read(Ids({4, 0, 2}, {3}), LayoutOf("THD", {3, 1, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(4, 0, 2));
  EXPECT_THAT(read->seq_len, ElementsAre(5));
}

TEST(PositionsTest, IdsOfAnotherShapeListTheLegalOnes) {
  ExpectFails(Ids({1, 2}, {2}), TwoByThree(), kInvalid,
              "positions.position_ids.shape: got [2], want [3] or [2, 3]");
  ExpectFails(Ids({1, 2, 3, 4, 5, 6}, {3, 2}), TwoByThree(), kInvalid, "want [3] or [2, 3]");
}

TEST(PositionsTest, RawIdsInAnyPieces) {
  const std::vector<int64_t> wide = {5, 1, 8};
  const std::vector<int32_t> narrow = {5, 1, 8};
  for (const bool is_wide : {true, false}) {
    v1::Positions message;
    v1::Array& array = *message.mutable_position_ids();
    array.set_dtype(is_wide ? v1::DTYPE_INT64 : v1::DTYPE_INT32);
    SetShape(array, {3});
    array.set_raw(is_wide ? RawBytes(wide) : RawBytes(narrow));
    for (const size_t piece : {1U, 2U, 5U, 1000U}) {
      ASSERT_OK(read, Read(message, LayoutOf("SD", {3, 8}), false, piece));
      EXPECT_THAT(read->values[0], ElementsAre(5, 1, 8));
    }
  }
}

TEST(MropePositionsTest, LeadingAxisOfThreeGivesThreeRows) {
  ASSERT_OK(read, Read(Ids({1, 2, 11, 12, 21, 22}, {3, 2}), LayoutOf("SHD", {2, 1, 8}),
                       /*multimodal=*/true));
  EXPECT_EQ(read->axes, 3);
  EXPECT_THAT(read->values[0], ElementsAre(1, 2));
  EXPECT_THAT(read->values[1], ElementsAre(11, 12));
  EXPECT_THAT(read->values[2], ElementsAre(21, 22));
  EXPECT_THAT(read->seq_len, ElementsAre(23));  // the largest of the three
}

TEST(MropePositionsTest, ThreeAxesWithBatchAndWithPackedTokens) {
  ASSERT_OK(batch, Read(Ids({1, 2, 3, 4, 5, 6}, {3, 2, 1}), LayoutOf("BSD", {2, 1, 8}), true));
  EXPECT_THAT(batch->values[1], ElementsAre(3, 4));
  ASSERT_OK(packed, Read(Ids({1, 2, 3, 4, 5, 6}, {3, 2}), LayoutOf("TD", {2, 8}), true));
  EXPECT_THAT(packed->values[2], ElementsAre(5, 6));
}

TEST(MropePositionsTest, OneRowStaysOneAxis) {
  ASSERT_OK(read, Read(Ids({4, 5}, {2}), LayoutOf("SD", {2, 8}), true));
  EXPECT_EQ(read->axes, 1);
  EXPECT_THAT(read->values[1], IsEmpty());
}

TEST(MropePositionsTest, ThreeRowsBesideThreeSequencesAreAmbiguous) {
  const Layout layout = LayoutOf("BSD", {3, 2, 8});
  ExpectFails(Ids({1, 2, 3, 4, 5, 6}, {3, 2}), layout, kInvalid,
              "got [3, 2], want [3, 3, 2], which is not ambiguous", /*multimodal=*/true);
  EXPECT_THAT(Read(Ids({1, 2, 3, 4, 5, 6}, {3, 2}), layout, /*multimodal=*/false), IsOk());
}

TEST(MropePositionsTest, ThreeRowsWithoutMropeSectionAreInvalid) {
  ExpectFails(Ids({1, 2, 3, 4, 5, 6}, {3, 2}), LayoutOf("SD", {2, 8}), kInvalid,
              "got [3, 2], want [2] or [1, 2]");
}

TEST(PackedPositionsTest, EachSequenceStartsAgain) {
  ASSERT_OK(read, Read(Packed({0, 2, 2, 5}, 10), LayoutOf("THD", {5, 1, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(10, 11, 10, 11, 12));
  EXPECT_THAT(read->sequence, ElementsAre(0, 0, 2, 2, 2));
  EXPECT_THAT(read->seq_len, ElementsAre(12, 1, 13));
}

TEST(PackedPositionsTest, StartsAreOneForEachSequence) {
  v1::Positions message = Starts({100, 7});
  SetNumbers(*message.mutable_cu_seqlens(), {0, 1, 3});
  ASSERT_OK(read, Read(message, LayoutOf("HTD", {4, 3, 8})));
  EXPECT_THAT(read->values[0], ElementsAre(100, 7, 8));
  SetNumbers(*message.mutable_starts(), {1, 2, 3});
  ExpectFails(message, LayoutOf("THD", {3, 1, 8}), kInvalid,
              "positions.starts.shape: got [3], want [2]");
}

TEST(PackedPositionsTest, BadOffsetsAreInvalid) {
  const Layout layout = LayoutOf("THD", {3, 1, 8});
  ExpectFails(Packed({1, 3}), layout, kInvalid, "positions.cu_seqlens: got 1, want 0 first");
  ExpectFails(Packed({-1, 3}), layout, kInvalid, "positions.cu_seqlens: got -1, want 0 first");
  ExpectFails(Packed({0, 2, 1, 3}), layout, kInvalid, "got a falling offset");
  ExpectFails(Packed({0, 2}), layout, kInvalid, "got 2, want 3 last");
  ExpectFails(Packed({0, 4}), layout, kInvalid, "got 4, want 3 last");
  ExpectFails(Packed({0}), layout, kInvalid, "got [1], want one axis of sequences + 1");
  ExpectFails(Packed({}), layout, kInvalid, "got [0], want one axis");
}

TEST(PackedPositionsTest, OffsetsOfTwoAxesAreInvalid) {
  v1::Positions message = Start(0);
  SetNumbers(*message.mutable_cu_seqlens(), {0, 1, 1, 3}, {2, 2});
  ExpectFails(message, LayoutOf("THD", {3, 1, 8}), kInvalid, "got [2, 2], want one axis");
}

TEST(PackedPositionsTest, OffsetsWithoutPackedTokensAreInvalid) {
  ExpectFails(Packed({0, 3}), TwoByThree(), kInvalid,
              "positions.cu_seqlens: got it without a T axis");
}

TEST(SeqLenTest, OneServesAllSequencesAndOneEachIsTaken) {
  v1::Positions message = Start(0);
  message.add_seq_lens(100);
  auto read = Read(message, TwoByThree());
  ASSERT_THAT(read, IsOk());
  EXPECT_THAT(read->seq_len, ElementsAre(100, 100));
  message.add_seq_lens(200);
  read = Read(message, TwoByThree());
  ASSERT_THAT(read, IsOk());
  EXPECT_THAT(read->seq_len, ElementsAre(100, 200));
  message.add_seq_lens(300);
  ExpectFails(message, TwoByThree(), kInvalid,
              "positions.seq_lens: got 3 lengths, want one, or 2, one for each sequence");
}

TEST(SeqLenTest, BelowOneAndBeyondTheLimitAreInvalid) {
  for (const int64_t length : {int64_t{0}, int64_t{-5}, limits::kSeqLenMax + 1}) {
    v1::Positions message = Start(0);
    message.add_seq_lens(length);
    ExpectFails(message, TwoByThree(), kInvalid,
                "positions.seq_lens: got " + std::to_string(length));
  }
}

TEST(PositionBoundsTest, TwoToTheThirtyIsLegalAndOneMoreIsNot) {
  const Layout one = LayoutOf("SD", {1, 8});
  const auto max = static_cast<double>(limits::kPositionMax);
  EXPECT_THAT(Read(Start(limits::kPositionMax), one), IsOk());
  EXPECT_THAT(Read(Starts({max}), one), IsOk());
  EXPECT_THAT(Read(Ids({max}, {1}), one), IsOk());
  ExpectFails(Start(limits::kPositionMax + 1), one, kOutOfRange,
              "positions.start: got 1073741825, want at most 1073741824");
  ExpectFails(Starts({max + 1}), one, kOutOfRange, "positions.starts: got 1073741825");
  ExpectFails(Ids({max + 1}, {1}), one, kOutOfRange, "positions.position_ids: got 1073741825");
}

TEST(PositionBoundsTest, TokensThatFollowCountToo) {
  ExpectFails(Start(limits::kPositionMax), LayoutOf("SD", {2, 8}), kOutOfRange,
              "positions.start: got 1073741825");
  ExpectFails(Starts({0, static_cast<double>(limits::kPositionMax) - 1}), TwoByThree(), kOutOfRange,
              "positions.starts: got 1073741825");
}

TEST(PositionBoundsTest, NegativePositionsAreInvalid) {
  const Layout one = LayoutOf("SD", {1, 8});
  ExpectFails(Start(-1), one, kInvalid, "positions.start: got -1");
  ExpectFails(Start(std::numeric_limits<int64_t>::min()), TwoByThree(), kInvalid,
              "positions.start: got -9223372036854775808");
  ExpectFails(Starts({-2}), one, kInvalid, "positions.starts: got -2");
  ExpectFails(Ids({-3}, {1}), one, kInvalid, "positions.position_ids: got -3");
}

TEST(PositionSourceTest, IsRequired) {
  ExpectFails(v1::Positions(), TwoByThree(), kInvalid, "positions: got nothing, want exactly one");
}

TEST(EmptyPositionsTest, NoTokensGiveNoPositions) {
  for (const v1::Positions& message : {Start(3), Starts({1, 2})}) {
    ASSERT_OK(read, Read(message, LayoutOf("BSHD", {2, 0, 1, 8})));
    EXPECT_THAT(read->values[0], IsEmpty());
    EXPECT_THAT(read->seq_len, Each(1));
  }
  EXPECT_THAT(Read(Packed({0, 0}), LayoutOf("THD", {0, 1, 8})), IsOk());
}

}  // namespace
}  // namespace rope::server
