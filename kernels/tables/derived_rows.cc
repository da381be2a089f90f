#include "kernels/tables/derived_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "kernels/dtype/element.h"
#include "kernels/status_macros.h"

namespace rope::kernels {

absl::StatusOr<int64_t> AppendMropeRows(TableCache& cache, const Frequencies& frequencies,
                                        const Mrope& mrope,
                                        absl::Span<const absl::Span<const int64_t>> positions,
                                        int64_t& build_budget, TokenRows& rows) {
  // The cached rows of all three axes come first; a token's row then takes each column from the row
  // of that column's axis.
  ROPE_CHECK(positions.size() == 3);
  const auto is_shared = [&](size_t i) {
    return positions[0][i] == positions[1][i] && positions[0][i] == positions[2][i];
  };
  // Their own rows may cost as much as the rows of the axes.
  const int64_t own_max = std::max<int64_t>(build_budget / BuildBytes(frequencies, 1), 1);
  size_t tokens = 0;
  for (int64_t own = 0; tokens < positions[0].size() && own < own_max; ++tokens) {
    own += is_shared(tokens) ? 0 : 1;
  }
  std::array<TokenRows, 3> axes;
  for (size_t axis = 0; axis < 3; ++axis) {
    ROPE_CHECK(positions[axis].size() == positions[0].size());
    int64_t part = build_budget / static_cast<int64_t>(3 - axis);
    build_budget -= part;
    const absl::StatusOr<int64_t> served =
        cache.AppendRows(frequencies, positions[axis].first(tokens), part, axes[axis]);
    build_budget += part;
    ROPE_RETURN_IF_ERROR(served.status());
    tokens = static_cast<size_t>(*served);
  }
  int64_t own_rows = 0;
  for (size_t i = 0; i < tokens; ++i) own_rows += is_shared(i) ? 0 : 1;
  build_budget -= BuildBytes(frequencies, own_rows);
  const int64_t columns = static_cast<int64_t>(frequencies.inv_freq.size());
  std::vector<float> values(static_cast<size_t>(own_rows * 2 * columns));
  float* next = values.data();
  for (size_t i = 0; i < tokens; ++i) {
    if (is_shared(i)) continue;
    for (int64_t j = 0; j < columns; ++j) {
      const RowRef& row = axes[static_cast<size_t>(AxisOf(mrope, j))].rows[i];
      next[j] = row.page->Cos(row.index)[j];
      next[columns + j] = row.page->Sin(row.index)[j];
    }
    next += 2 * columns;
  }
  const auto own = std::make_shared<const TablePage>(own_rows, columns, std::move(values));
  int64_t index = 0;
  for (size_t i = 0; i < tokens; ++i) {
    rows.rows.push_back(is_shared(i) ? axes[0].rows[i] : RowRef{own.get(), index++});
  }
  rows.pages.insert(rows.pages.end(), axes[0].pages.begin(), axes[0].pages.end());
  rows.pages.push_back(own);
  return static_cast<int64_t>(tokens);
}

namespace {

// REQUIRES: as ExactCosSin.
CosSin At(const RowPlacement& placement, size_t token, size_t column) {
  const auto axis =
      placement.mrope == nullptr
          ? 0
          : static_cast<size_t>(AxisOf(*placement.mrope, static_cast<int64_t>(column)));
  return ExactCosSin(placement.positions[axis][token], placement.inv_freq[column], 1);
}

// cos and sin of a - b, right to 1e-15. Subtracting the angles would round them first.
CosSin Difference(const CosSin& a, const CosSin& b) {
  return {.cos = a.cos * b.cos + a.sin * b.sin, .sin = a.sin * b.cos - a.cos * b.sin};
}

}  // namespace

void AppendDifferenceRows(const RowPlacement& to, const RowPlacement& from, double multiplier,
                          TokenRows& rows) {
  const size_t columns = to.inv_freq.size();
  const size_t tokens = to.positions[0].size();
  ROPE_CHECK(from.inv_freq.size() == columns && from.positions[0].size() == tokens);
  std::vector<float> values(tokens * 2 * columns);
  for (size_t token = 0; token < tokens; ++token) {
    float* const row = values.data() + token * 2 * columns;
    for (size_t j = 0; j < columns; ++j) {
      const CosSin turn = Difference(At(to, token, j), At(from, token, j));
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

namespace {

CosSin At(const RowSource& source, size_t column, int64_t position, int64_t from_position) {
  const std::vector<InverseFrequency>& inv_freq = source.frequencies->inv_freq;
  if (column >= inv_freq.size()) return CosSin();
  if (source.from == nullptr) return CosSinAt(*source.frequencies, column, position);
  const CosSin turn = Difference(ExactCosSin(position, inv_freq[column], 1),
                                 ExactCosSin(from_position, source.from->inv_freq[column], 1));
  return {.cos = source.multiplier * turn.cos, .sin = source.multiplier * turn.sin};
}

}  // namespace

void ReadRow(const RowSource& source, int64_t position, int64_t from_position,
             std::vector<CosSin>& row) {
  row.resize(static_cast<size_t>(source.columns));
  for (size_t j = 0; j < row.size(); ++j) row[j] = At(source, j, position, from_position);
}

int ArraysOf(RowLayout layout) {
  return layout == RowLayout::kCosSin || layout == RowLayout::kDuplicated ? 2 : 1;
}

std::vector<int64_t> RowShape(RowLayout layout, int64_t columns) {
  switch (layout) {
    case RowLayout::kCosSin:
      return {columns};
    case RowLayout::kCosSinCache:
    case RowLayout::kDuplicated:
      break;
    case RowLayout::kComplex:
      return {columns, 2};
  }
  return {2 * columns};
}

int64_t RowBytes(const RowFormat& format, int64_t columns) {
  const int64_t element =
      format.dtype.has_value() ? ElementBytes(*format.dtype) : static_cast<int64_t>(sizeof(double));
  return (format.layout == RowLayout::kCosSin ? 1 : 2) * columns * element;
}

void WriteRow(const RowFormat& format, absl::Span<const CosSin> row,
              const std::array<char*, 2>& out) {
  const size_t n = row.size();
  const auto set = [&](size_t array, size_t index, double value) {
    if (!format.dtype.has_value()) {
      std::memcpy(out[array] + index * sizeof(value), &value, sizeof(value));
      return;
    }
    const size_t offset = index * static_cast<size_t>(ElementBytes(*format.dtype));
    WriteElement(value, *format.dtype, reinterpret_cast<uint8_t*>(out[array] + offset));
  };
  for (size_t j = 0; j < n; ++j) {
    switch (format.layout) {
      case RowLayout::kDuplicated:
        set(0, n + j, row[j].cos);
        set(1, n + j, row[j].sin);
        [[fallthrough]];
      case RowLayout::kCosSin:
        set(0, j, row[j].cos);
        set(1, j, row[j].sin);
        break;
      case RowLayout::kCosSinCache:
        set(0, j, row[j].cos);
        set(0, n + j, row[j].sin);
        break;
      case RowLayout::kComplex:
        set(0, 2 * j, row[j].cos);
        set(0, 2 * j + 1, row[j].sin);
        break;
    }
  }
}

}  // namespace rope::kernels
