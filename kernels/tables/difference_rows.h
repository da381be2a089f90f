// Rows that move rotated vectors: from one position to another, and from one embedding to another.
//
// Pair j turns by to.position * to.inv_freq[j] - from.position * from.inv_freq[j], one rotation in
// place of undoing one and doing another, so nothing is rounded in between. Where both embeddings
// are the same, a difference of positions says as much: TableCache::AppendRows takes negative ones,
// and its rows are shared.
//
// Threading:  Pure functions.
// Precision:  Both angles as exact as ExactCosSin, their difference to 1e-15, stored as the nearest
//             float32.
#ifndef ROPE_KERNELS_TABLES_DIFFERENCE_ROWS_H_
#define ROPE_KERNELS_TABLES_DIFFERENCE_ROWS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Where vectors stand, or are to stand.
struct Placement {
  absl::Span<const InverseFrequency> inv_freq;  // [rotary_dim/2], zeros included
  // By token. Frequency j takes positions[mrope->Axis(j)], or positions[0] without mrope. Each in
  // [0, 2^30].
  std::array<absl::Span<const int64_t>, 3> positions;
  const Mrope* mrope = nullptr;
};

// Appends a row for each token, times `multiplier`, in a page of their own. REQUIRES: as many
// frequencies and as many tokens in both placements.
void AppendDifferenceRows(const Placement& to, const Placement& from, double multiplier,
                          TokenRows& rows);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_DIFFERENCE_ROWS_H_
