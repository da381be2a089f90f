#include "kernels/tables/row_table.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/dtype/element.h"

namespace rope::kernels {
namespace {

float ReadFloat(const char* row, int64_t index, DType dtype) {
  const char* const element = row + index * ElementBytes(dtype);
  return static_cast<float>(ReadElement(reinterpret_cast<const uint8_t*>(element), dtype));
}

// The magnitudes of floating-point numbers are ordered as their bits are. Every row that a request
// uses is checked before its tokens change, so rows are read in vectors; the last vector of a row
// may overlap the one before it. Signed bits, because SSE2 compares only these.
template <typename Bits>
[[gnu::always_inline]] inline bool AllWithin(const RowTable& table, int64_t row, int64_t rows,
                                             int64_t pairs, Bits least, Bits most) {
  typedef Bits Vector [[gnu::vector_size(32)]];
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(Bits);
  const Vector magnitude = Vector{} + std::numeric_limits<Bits>::max();
  Vector smallest = magnitude;
  Vector largest = {};
  const int64_t lanes = std::min(pairs, kLanes);
  for (const int64_t end = row + rows; row < end; ++row) {
    for (int64_t i = 0; i < pairs; i += kLanes) {
      const int64_t at = std::min(i, pairs - lanes) * static_cast<int64_t>(sizeof(Bits));
      Vector c = Vector{} + least;
      Vector s = c;
      if (lanes == kLanes) {
        std::memcpy(&c, table.Cos(row) + at, sizeof(c));
        std::memcpy(&s, table.Sin(row) + at, sizeof(s));
      } else {
        std::memcpy(&c, table.Cos(row), static_cast<size_t>(lanes) * sizeof(Bits));
        std::memcpy(&s, table.Sin(row), static_cast<size_t>(lanes) * sizeof(Bits));
      }
      c &= magnitude;
      s &= magnitude;
      const Vector larger = c > s ? c : s;
      smallest = larger < smallest ? larger : smallest;
      largest = larger > largest ? larger : largest;
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    if (smallest[lane] < least || largest[lane] >= most) return false;
  }
  return true;
}

bool HalvesWithin(const RowTable& table, int64_t row, int64_t rows, int64_t pairs, int16_t least,
                  int16_t most) {
  return AllWithin<int16_t>(table, row, rows, pairs, least, most);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] bool HalvesWithinAvx2(const RowTable& table, int64_t row, int64_t rows,
                                              int64_t pairs, int16_t least, int16_t most) {
  return AllWithin<int16_t>(table, row, rows, pairs, least, most);
}
const auto kHalvesWithin = __builtin_cpu_supports("avx2") ? HalvesWithinAvx2 : HalvesWithin;
#else
constexpr auto kHalvesWithin = HalvesWithin;
#endif

}  // namespace

bool CanBeUndone(const RowTable& table, int64_t row, int64_t rows, int64_t pairs) {
  // 2^-63 and 2^63. All finite numbers of float16 but 0 lie between them.
  if (table.dtype == DType::kFloat32) {
    return AllWithin<int32_t>(table, row, rows, pairs, 0x20000000, 0x5f000000);
  }
  const bool is_float16 = table.dtype == DType::kFloat16;
  return kHalvesWithin(table, row, rows, pairs, is_float16 ? 1 : 0x2000,
                       is_float16 ? 0x7c00 : 0x5f00);
}

void ComposeRow(const TableMove& move, int64_t token, int64_t pairs, float* row) {
  const RowTable& table = *move.table;
  const int64_t from = move.from[static_cast<size_t>(token)];
  const int64_t to = move.to[static_cast<size_t>(token)];
  for (int64_t i = 0; i < pairs; ++i) {
    const ComposedPair pair = Compose(
        ReadFloat(table.Cos(from), i, table.dtype), ReadFloat(table.Sin(from), i, table.dtype),
        ReadFloat(table.Cos(to), i, table.dtype), ReadFloat(table.Sin(to), i, table.dtype));
    row[i] = pair.c;
    row[i + pairs] = pair.s;
  }
}

}  // namespace rope::kernels
