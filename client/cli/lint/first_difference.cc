#include "client/cli/lint/first_difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/frequencies/frequencies.h"

namespace rope::client {
namespace {

constexpr int64_t kStepsMax = int64_t{1} << 20;
constexpr long double kNever = std::numeric_limits<long double>::infinity();

// The search in one column, whose two rows are m e^(i w p) and n e^(i v p).
struct Column {
  long double w = 0;
  long double v = 0;
  double m = 1;
  double n = 1;

  // The larger difference, of cos or of sin.
  double At(int64_t position) const {
    const kernels::CosSin first = kernels::ExactCosSin(position, w, m);
    const kernels::CosSin second = kernels::ExactCosSin(position, v, n);
    return std::max(std::abs(first.cos - second.cos), std::abs(first.sin - second.sin));
  }

  // Where D(p) first reaches `distance`, which is at least |m - n|; infinity: nowhere.
  long double Reaches(long double distance) const {
    const long double apart = std::abs(w - v);
    const long double spread = static_cast<long double>(m) - n;
    const long double product = 4.0L * m * n;
    const long double square = distance * distance - spread * spread;
    if (apart == 0 || product == 0 || square > product) return kNever;
    return 2 * std::asin(std::sqrt(std::max(square, 0.0L) / product)) / apart;
  }

  // A bound of the derivatives of both differences where D is at most `distance`.
  long double Slope(long double distance) const { return w * distance + std::abs(w - v) * n; }
};

// A position of `real`, rounded up; `end` where it is larger.
int64_t Ceiling(long double real, int64_t end) {
  return real < static_cast<long double>(end) ? static_cast<int64_t>(std::ceil(real)) : end;
}

// Searches the positions before `end`; takes evaluations from `steps`.
FirstDifference Search(const Column& column, double error, int64_t end, int64_t& steps) {
  constexpr long double kRoot = std::numbers::sqrt2_v<long double>;
  const int64_t certain = Ceiling(column.Reaches(kRoot * error), end);
  // One position earlier, in case the number is rounded up.
  int64_t p = std::max(Ceiling(column.Reaches(error), end) - 1, int64_t{0});
  while (p < end) {
    if (--steps < 0) {
      FirstDifference bound = {.exact = false};
      if (certain < end) bound.position = std::max(certain, p);
      return bound;
    }
    const double difference = column.At(p);
    if (difference > error) return {.position = p};
    const bool before = p < certain;  // D is at most sqrt(2) * error here
    const long double slope =
        column.Slope(before ? kRoot * error : static_cast<long double>(column.m) + column.n);
    const int64_t next = p + Ceiling(std::floor((error - difference) / slope), end);
    p = std::max(p + 1, before ? std::min(next, certain) : next);
  }
  return {};
}

}  // namespace

FirstDifference FindFirstDifference(const Turns& a, const Turns& b, double error, int64_t end) {
  FirstDifference first;
  const size_t columns = std::min(a.inv_freq.size(), b.inv_freq.size());
  if (columns == 0 || end <= 0) return first;
  if (std::abs(a.factor - b.factor) > error) return {.position = 0};  // cos 0 differs
  int64_t steps = kStepsMax;
  for (size_t i = 0; i < columns; ++i) {
    const Column column = {a.inv_freq[i], b.inv_freq[i], a.factor, b.factor};
    if (column.Reaches(error) == kNever) continue;
    const FirstDifference found = Search(column, error, first.position.value_or(end), steps);
    first.exact = first.exact && found.exact;
    if (!found.position.has_value()) continue;
    first.position = found.position;
    first.column = i;
  }
  return first;
}

}  // namespace rope::client
