// Patterns: what happened to the vectors of a sample, in words and positions.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_CELL_PATTERNS_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_CELL_PATTERNS_H_

#include <string>
#include <vector>

#include "client/cli/diagnose/cells.h"
#include "client/cli/diagnose/diagnose_input.h"
#include "client/cli/diagnose/trial.h"

namespace rope::client {

struct CellPattern {
  std::vector<std::string> words;  // a change each; empty: the right positions, everywhere
  bool is_inverse = false;         // words has "inverse rotation"
  CellPlan plan;
  std::string positions;  // in short form; empty: not worth printing
};

// Every pattern that is compatible with the cells, the more plausible first. REQUIRES: SolveCells
// returned true for them.
std::vector<CellPattern> PatternsOf(const RotatedSample& sample, const Cells& cells);

inline constexpr char kInverseWords[] = "inverse rotation";

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_CELL_PATTERNS_H_
