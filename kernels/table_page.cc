// BuildPage: one table page by two-level angle addition.
//
// Row r = 8 * c + f of a page that starts at position p has the angle p*w + 8c*w + f*w. The first
// part is large and comes from long double; the other two are powers of exp(i*w), multiplied up in
// double, where 64 steps cost less than 1e-14.
#include "kernels/table_page.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/table_cache.h"

namespace rope::kernels {
namespace {

constexpr int64_t kFine = 8;
constexpr int64_t kCoarse = kPageRows / kFine;
static_assert(kFine * kCoarse == kPageRows);

// One complex number of modulus 1 (or the multiplier) for each column.
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

Rotors AtPosition(const Frequencies& frequencies, int64_t position, double multiplier) {
  Rotors rotors(frequencies.inv_freq.size());
  for (size_t j = 0; j < frequencies.inv_freq.size(); ++j) {
    const CosSin exact = ExactCosSin(position, frequencies.inv_freq[j], multiplier);
    rotors.cos[j] = exact.cos;
    rotors.sin[j] = exact.sin;
  }
  return rotors;
}

// base * step, rounded to the float32 of a row.
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

uint64_t TablePage::NextId() {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(1, std::memory_order_relaxed);
}

absl::StatusOr<std::shared_ptr<const TablePage>> BuildPage(const Frequencies& frequencies,
                                                           int64_t first) {
  const size_t columns = frequencies.inv_freq.size();
  std::vector<Rotors> fine(1, Rotors(columns));
  const Rotors one = AtPosition(frequencies, 1, 1.0);
  while (fine.size() < kFine) fine.push_back(Multiply(fine.back(), one));
  const Rotors coarse = Multiply(fine.back(), one);

  std::vector<float> values(static_cast<size_t>(kPageRows) * 2 * columns);
  Rotors base = AtPosition(frequencies, first, frequencies.multiplier);
  float* row = values.data();
  for (int64_t c = 0; c < kCoarse; ++c) {
    for (const Rotors& step : fine) {
      StoreRow(base, step, row);
      row += 2 * columns;
    }
    base = Multiply(base, coarse);
  }
  return std::make_shared<const TablePage>(kPageRows, static_cast<int64_t>(columns),
                                           std::move(values));
}

}  // namespace rope::kernels
