// Names the rule by which a program's positions differ from the right ones.
//
// Threading:  Pure functions; any thread.
// Precision:  A rule is found only if it gives every token a position that its intervals contain.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_POSITION_RULES_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_POSITION_RULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/diagnose/position_solver.h"

namespace rope::client {

// The tokens of one sequence, in order. The lists are equally long and not empty.
struct SolvedTokens {
  std::vector<int64_t> indices;   // of each token in its sequence
  std::vector<int64_t> believed;  // its right position
  std::vector<int64_t> mirrored;  // the right position of the token as far from the other end
  std::vector<Intervals> solved;  // the positions that its channels allow
};

struct PositionRule {
  std::string words;              // empty: the right positions
  std::vector<double> positions;  // of each token
};

// Every rule that fits, the most plausible first. Each gives the same rotation to within what the
// intervals allow. If none fits, the positions one by one; empty: some token has no position.
std::vector<PositionRule> RulesOf(const SolvedTokens& tokens);

// A short form: "0..7, 7, 7, 7", "12 (40 times)", "0..3, 9..6". At most 16 parts, then "...".
std::string ShortForm(const std::vector<double>& positions);

// As above, for ascending indices of channels, tokens or heads.
std::string ShortForm(const std::vector<int64_t>& numbers);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_POSITION_RULES_H_
