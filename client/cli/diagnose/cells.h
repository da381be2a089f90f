// Cells: what the elements of each vector (a head of a token) say about its rotation, whatever the
// frequencies are.
//
// Threading:  Pure functions; any thread.
// Precision:  Bounds: a rotation that Try accepts keeps to every one of them.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_CELLS_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_CELLS_H_

#include <vector>

#include "client/cli/diagnose/channel_order.h"
#include "client/cli/diagnose/diagnose_input.h"
#include "client/cli/diagnose/position_solver.h"
#include "client/cli/diagnose/rope_numbers.h"

namespace rope::client {

// Relative errors that are allowed beside those of the tensor's type: for arithmetic and tables in
// a 16-bit type, and for several of its roundings.
inline constexpr double kSomeRoundings = 0x1p-6;
inline constexpr double kManyRoundings = 0x1p-4;

// One vector, under an order of channels.
struct Cell {
  bool is_still = false;          // nothing changed: not rotated, or at position 0
  std::vector<PairAngle> angles;  // of each pair; their frequencies are not set
  Intervals positions;            // filled in by SolveCells
};

struct Cells {
  // False: no rotation in this order, by any angles, with one multiplier, gives the sample. Nothing
  // else is set then.
  bool is_possible = false;
  bool all_still = false;
  // The multiplier on cos and sin is between these two: so says every vector that is not still.
  double multiplier_low = 0;
  double multiplier_high = 0;
  std::vector<Cell> cells;  // [tokens, rows]
};

// `more` is the relative error to allow for beside that of the tensor's type.
Cells CellsOf(const RotatedSample& sample, const ChannelOrder& order, double more);

// Solves the position of each cell. False: a vector has none; a still one needs none.
bool SolveCells(const RotatedSample& sample, const RopeNumbers& numbers, Cells& cells);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_CELLS_H_
