#include "kernels/tables/exact_rows.h"

#include <cstring>

#include "kernels/dtype/element.h"
#include "kernels/tables/derived_rows.h"

namespace rope::kernels {
namespace {

CosSin At(const RowSource& source, size_t column, int64_t position, int64_t from_position) {
  const std::vector<InverseFrequency>& inv_freq = source.frequencies->inv_freq;
  if (column >= inv_freq.size()) return CosSin();
  if (source.from == nullptr) return CosSinAt(*source.frequencies, column, position);
  const CosSin turn = CosSinOfDifference({position, inv_freq[column]},
                                         {from_position, source.from->inv_freq[column]});
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
