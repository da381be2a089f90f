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

// The magnitudes of floating-point numbers are ordered as their bits are. Signed bits, because SSE2
// has their largest and smallest in one instruction: every row that a request uses is checked
// before its tokens change.
template <typename Bits>
bool AllWithin(const char* cos, const char* sin, int64_t pairs, Bits least, Bits most) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  Bits smallest = kMagnitude;
  Bits largest = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    Bits c;
    Bits s;
    std::memcpy(&c, cos + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    std::memcpy(&s, sin + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    c &= kMagnitude;
    s &= kMagnitude;
    const Bits larger = std::max(c, s);
    smallest = std::min(smallest, larger);
    largest = std::max(largest, larger);
  }
  return smallest >= least && largest < most;
}

}  // namespace

bool CanBeUndone(const RowTable& table, int64_t row, int64_t pairs) {
  const char* const cos = table.Cos(row);
  const char* const sin = table.Sin(row);
  // 2^-63 and 2^63. All finite numbers of float16 but 0 lie between them.
  if (table.dtype == DType::kFloat32) {
    return AllWithin<int32_t>(cos, sin, pairs, 0x20000000, 0x5f000000);
  }
  if (table.dtype == DType::kFloat16) return AllWithin<int16_t>(cos, sin, pairs, 1, 0x7c00);
  return AllWithin<int16_t>(cos, sin, pairs, 0x2000, 0x5f00);
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
