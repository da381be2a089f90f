#include "kernels/tables/row_table.h"

#include <bit>
#include <cfloat>
#include <cstddef>
#include <cstring>

#include "kernels/dtype/element.h"

namespace rope::kernels {
namespace {

float ReadFloat(const char* row, int64_t index, DType dtype) {
  const char* const element = row + index * ElementBytes(dtype);
  return static_cast<float>(ReadElement(reinterpret_cast<const uint8_t*>(element), dtype));
}

// Loops without branches, so that compilers use SIMD instructions for them: every row that a
// request uses is checked before its tokens change.
constexpr int64_t kChunk = 64;

template <typename Bits, typename Widen>
bool AllNormal(const char* cos, const char* sin, int64_t pairs, const Widen& widen) {
  int outside = 0;
  for (int64_t begin = 0; begin < pairs; begin += kChunk) {
    Bits c[kChunk];
    Bits s[kChunk];
    const int64_t count = pairs - begin < kChunk ? pairs - begin : kChunk;
    const auto offset = begin * static_cast<int64_t>(sizeof(Bits));
    std::memcpy(c, cos + offset, static_cast<size_t>(count) * sizeof(Bits));
    std::memcpy(s, sin + offset, static_cast<size_t>(count) * sizeof(Bits));
    for (int64_t i = 0; i < count; ++i) {
      const float a = widen(c[i]);
      const float b = widen(s[i]);
      const float square = a * a + b * b;
      outside |= static_cast<int>(!(square >= FLT_MIN)) | static_cast<int>(!(square <= FLT_MAX));
    }
  }
  return outside == 0;
}

// FromFloat16 without branches. What is not finite stays so.
float FromHalf(uint16_t half) {
  const auto magnitude = static_cast<uint32_t>(half & 0x7fff);
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return magnitude < 0x7c00 ? finite : FLT_MAX;
}

}  // namespace

bool CanBeUndone(const RowTable& table, int64_t row, int64_t pairs) {
  const char* const cos = table.Cos(row);
  const char* const sin = table.Sin(row);
  if (table.dtype == DType::kFloat32) {
    return AllNormal<float>(cos, sin, pairs, [](float value) { return value; });
  }
  if (table.dtype == DType::kFloat16) {
    return AllNormal<uint16_t>(cos, sin, pairs, [](uint16_t bits) { return FromHalf(bits); });
  }
  return AllNormal<uint16_t>(cos, sin, pairs, [](uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  });
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
