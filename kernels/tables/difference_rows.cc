#include "kernels/tables/difference_rows.h"

#include <memory>
#include <utility>

#include "kernels/check.h"

namespace rope::kernels {
namespace {

PositionAngle At(const RowPlacement& placement, size_t token, size_t column) {
  const auto axis =
      placement.mrope == nullptr
          ? 0
          : static_cast<size_t>(AxisOf(*placement.mrope, static_cast<int64_t>(column)));
  return {placement.positions[axis][token], placement.inv_freq[column]};
}

}  // namespace

// Subtracting the angles would round them first.
CosSin CosSinOfDifference(const PositionAngle& to, const PositionAngle& from) {
  const CosSin a = ExactCosSin(to.position, to.inv_freq, 1);
  const CosSin b = ExactCosSin(from.position, from.inv_freq, 1);
  return {.cos = a.cos * b.cos + a.sin * b.sin, .sin = a.sin * b.cos - a.cos * b.sin};
}

void AppendDifferenceRows(const RowPlacement& to, const RowPlacement& from, double multiplier,
                          TokenRows& rows) {
  const size_t columns = to.inv_freq.size();
  const size_t tokens = to.positions[0].size();
  ROPE_CHECK(from.inv_freq.size() == columns && from.positions[0].size() == tokens);
  std::vector<float> values(tokens * 2 * columns);
  for (size_t token = 0; token < tokens; ++token) {
    float* const row = values.data() + token * 2 * columns;
    for (size_t j = 0; j < columns; ++j) {
      const CosSin turn = CosSinOfDifference(At(to, token, j), At(from, token, j));
      row[j] = static_cast<float>(multiplier * turn.cos);
      row[columns + j] = static_cast<float>(multiplier * turn.sin);
    }
  }
  auto page = std::make_shared<const TablePage>(static_cast<int64_t>(tokens),
                                                static_cast<int64_t>(columns), std::move(values));
  for (size_t token = 0; token < tokens; ++token) {
    rows.rows.push_back({page.get(), static_cast<int64_t>(token)});
  }
  rows.pages.push_back(std::move(page));
}

}  // namespace rope::kernels
