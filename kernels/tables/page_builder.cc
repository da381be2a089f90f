// BuildPage: one table page by two-level angle addition.
//
// A row holds exp(i * position * w) for every inverse frequency w. In a page that starts at
// position p, row r = 8 * c + f has the angle p*w + 8c*w + f*w, so its value is a product of three
// factors:
//   exp(i*p*w)   the base: computed once per page in long double, because its angle is large
//   exp(i*8c*w)  `coarse` to the power c: multiplied into the base after every 8 rows
//   exp(i*f*w)   fine[f], f < 8: the powers of one step, built once per page
// The last two are products in double; 64 steps add an error below 1e-14. A page therefore costs
// two evaluations of cos and sin per column instead of 64. With xPos a step also scales, and the
// powers of a step scale with it.
#include "kernels/tables/page_builder.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

namespace rope::kernels {
namespace {

// A row counts as if it had at least these columns: a page of one column takes 7 microseconds.
constexpr int64_t kBuildColumnsMin = 8;
// Rows that count for one of precision hf, whose pages have no shared angles.
constexpr int64_t kEagerRowFactor = 4;
constexpr int64_t kFine = 8;
constexpr int64_t kCoarse = kPageRows / kFine;
static_assert(kFine * kCoarse == kPageRows);

// One complex number per column. Its modulus is 1, or the multiplier for the base.
struct Rotors {
  explicit Rotors(size_t columns) : cos(columns, 1.0), sin(columns, 0.0) {}
  std::vector<double> cos;
  std::vector<double> sin;
};

// a * b, column by column.
Rotors Multiply(const Rotors& a, const Rotors& b) {
  const size_t columns = a.cos.size();
  Rotors product(columns);
  for (size_t j = 0; j < columns; ++j) {
    product.cos[j] = a.cos[j] * b.cos[j] - a.sin[j] * b.sin[j];
    product.sin[j] = a.sin[j] * b.cos[j] + a.cos[j] * b.sin[j];
  }
  return product;
}

// The base: exp(i * position * w), multiplier and xPos scale included.
Rotors AtPosition(const Frequencies& frequencies, int64_t position) {
  Rotors rotors(frequencies.inv_freq.size());
  for (size_t j = 0; j < frequencies.inv_freq.size(); ++j) {
    const CosSin exact = CosSinAt(frequencies, j, position);
    rotors.cos[j] = exact.cos;
    rotors.sin[j] = exact.sin;
  }
  return rotors;
}

// Stores base * step as a float32 row.
void StoreRow(const Rotors& base, const Rotors& step, float* row) {
  const size_t columns = base.cos.size();
  const double* const base_cos = base.cos.data();
  const double* const base_sin = base.sin.data();
  const double* const step_cos = step.cos.data();
  const double* const step_sin = step.sin.data();
  float* const __restrict row_cos = row;
  float* const __restrict row_sin = row + columns;
  for (size_t j = 0; j < columns; ++j) {
    row_cos[j] = static_cast<float>(base_cos[j] * step_cos[j] - base_sin[j] * step_sin[j]);
    row_sin[j] = static_cast<float>(base_sin[j] * step_cos[j] + base_cos[j] * step_sin[j]);
  }
}

}  // namespace

int64_t BuildBytes(const Frequencies& frequencies, int64_t rows) {
  const auto columns = static_cast<int64_t>(frequencies.inv_freq.size());
  const int64_t row_bytes =
      2 * std::max(columns, kBuildColumnsMin) * static_cast<int64_t>(sizeof(float));
  return rows * row_bytes * (frequencies.eager.has_value() ? kEagerRowFactor : 1);
}

std::shared_ptr<TablePage> BuildRows(const Frequencies& frequencies,
                                     absl::Span<const int64_t> positions) {
  const size_t columns = frequencies.inv_freq.size();
  std::vector<float> values(positions.size() * 2 * columns);
  float* row = values.data();
  for (const int64_t position : positions) {
    for (size_t j = 0; j < columns; ++j) {
      const CosSin exact = CosSinAt(frequencies, j, position);
      row[j] = static_cast<float>(exact.cos);
      row[columns + j] = static_cast<float>(exact.sin);
    }
    row += 2 * columns;
  }
  return std::make_shared<TablePage>(static_cast<int64_t>(positions.size()),
                                     static_cast<int64_t>(columns), std::move(values));
}

// Precision hf rounds each angle to float32, so angle addition does not apply.
absl::StatusOr<std::shared_ptr<TablePage>> BuildPage(const Frequencies& frequencies,
                                                     int64_t first) {
  const size_t columns = frequencies.inv_freq.size();
  if (frequencies.eager.has_value()) {
    std::array<int64_t, kPageRows> positions;
    std::iota(positions.begin(), positions.end(), first);
    return BuildRows(frequencies, positions);
  }
  std::vector<Rotors> fine(1, Rotors(columns));
  const Frequencies unscaled = {.inv_freq = frequencies.inv_freq, .growth = frequencies.growth};
  const Rotors one = AtPosition(unscaled, 1);  // with xPos the scale of one step, too
  while (fine.size() < kFine) fine.push_back(Multiply(fine.back(), one));
  const Rotors coarse = Multiply(fine.back(), one);

  std::vector<float> values(static_cast<size_t>(kPageRows) * 2 * columns);
  Rotors base = AtPosition(frequencies, first);
  float* row = values.data();
  for (int64_t c = 0; c < kCoarse; ++c) {
    for (const Rotors& step : fine) {
      StoreRow(base, step, row);
      row += 2 * columns;
    }
    base = Multiply(base, coarse);
  }
  return std::make_shared<TablePage>(kPageRows, static_cast<int64_t>(columns), std::move(values));
}

}  // namespace rope::kernels
