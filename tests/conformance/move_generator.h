// Random legal moves of K by a table in pages of a memory region, with the same moves of the same
// tokens as packed tensors of a message.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_CONFORMANCE_MOVE_GENERATOR_H_
#define ROPE_TESTS_CONFORMANCE_MOVE_GENERATOR_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rope/v1/rotate.pb.h"

namespace rope::testing {

inline constexpr uint64_t kMoveRegionBytes = 16 << 20;  // the most that a case needs

struct MoveCase {
  v1::RotateRequest in_pages;    // region ids are 0: SetRegion
  v1::RotateRequest in_message;  // the same tokens, packed, in the order of the elements of Place
  std::string memory;            // the beginning of the region, before the move

  // D elements of one head of one token: where the move writes them. Negative: nowhere.
  using Place = int64_t;
  std::vector<std::vector<Place>> places;  // of each tensor
  int64_t place_bytes = 0;

  // The region after the move, with the results of the tensors of `in_message`.
  std::string Moved(const std::vector<std::string>& results) const;
};

// Names the region of all arrays that have one.
void SetRegion(uint64_t id, v1::RotateRequest& request);

// Draws pages or slots, block sizes, the order of heads and tokens in a page and of layers and
// pages, gaps behind K, dtypes, pairings, windows, one to three sequences, tokens that are skipped,
// other slots and other pools for the results, tables and their dtypes, and how far tokens move:
// all alike, by page, by token or by head.
class MoveGenerator {
 public:
  explicit MoveGenerator(uint32_t seed) : random_(seed) {}

  MoveCase Make();

 private:
  struct Pool;   // sizes and strides
  struct Draft;  // what the two requests have in common

  int64_t Between(int64_t least, int64_t most);
  bool OneIn(int64_t count) { return Between(1, count) == 1; }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[static_cast<size_t>(Between(0, static_cast<int64_t>(values.size()) - 1))];
  }

  Draft DrawShape();
  void DrawSlots(Draft& draft);
  void DrawTargets(Draft& draft);
  void DrawTable(Draft& draft, MoveCase& made);
  void DrawDistance(const Draft& draft, MoveCase& made);
  void DrawTensor(Draft& draft, MoveCase& made);
  v1::RegionSpan Take(int64_t bytes, int64_t element_bytes, std::string& memory);

  std::mt19937 random_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_MOVE_GENERATOR_H_
