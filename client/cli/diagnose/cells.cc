#include "client/cli/diagnose/cells.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "client/cli/diagnose/trial.h"
#include "client/cli/golden.h"

namespace rope::client {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFloat32HalfUnit = 0x1p-24;
constexpr double kTiny = 1e-37;
constexpr double kTimesMax = 9;            // positions are looked for up to this many times
constexpr double kPositionsMin = 1 << 20;  // the right ones, and at least so far

// Reads one vector. The elements at `before` and `after` are a head's.
class CellReader {
 public:
  CellReader(const RotatedSample& sample, const ChannelOrder& order, double more)
      : sample_(sample), order_(order), more_(more) {}

  // False: no rotation in the order gives this vector. Narrows the bounds of the multiplier, unless
  // the vector is still.
  bool Read(const double* before, const double* after, Cell& cell, Cells& bounds) {
    cell.is_still = IsStill(before, after);
    double low = 0;
    double high = kInfinity;
    for (const StillChannel& still : order_.still) {
      const double from = before[still.before];
      const double error = std::abs(after[still.after] - from);
      if (error > (kFloat32HalfUnit + more_) * std::abs(from) + Unit(after[still.after]) + kTiny) {
        return cell.is_still;
      }
    }
    cell.angles.reserve(order_.pairs.size());
    for (const ChannelPair& pair : order_.pairs) {
      if (!ReadPair({before[pair.before_a], before[pair.before_b]},
                    {after[pair.after_a], after[pair.after_b]}, cell, low, high)) {
        cell.angles.clear();
        return cell.is_still;
      }
      if (cell.is_still) continue;
      bounds.multiplier_low = std::max(bounds.multiplier_low, low);
      bounds.multiplier_high = std::min(bounds.multiplier_high, high);
      if (bounds.multiplier_low > bounds.multiplier_high) return false;
    }
    return true;
  }

 private:
  using Complex = std::complex<double>;

  double Unit(double value) const { return HalfUnit(value, sample_.dtype); }

  bool IsStill(const double* before, const double* after) const {
    for (int64_t i = 0; i < sample_.head_dim; ++i) {
      if (std::abs(after[i] - before[i]) >
          kFloat32HalfUnit * std::abs(before[i]) + Unit(after[i]) + kTiny) {
        return false;
      }
    }
    return true;
  }

  // Appends the angle of a pair, and narrows the bounds of its multiplier.
  bool ReadPair(Complex before, Complex after, Cell& cell, double& low, double& high) const {
    const double in = std::abs(before);
    const double out = std::abs(after);
    // What Try allows for each channel, with the multiplier that the pair has.
    const double size = std::abs(before.real()) + std::abs(before.imag());
    const double multiplier = in > 0 ? out / in : 0;
    const double turned = 1.01 * kTrialTolerance * multiplier * size + kTiny;
    const double error =
        std::hypot(turned + Unit(after.real()), turned + Unit(after.imag())) + more_ * out;
    if (in == 0) {
      cell.angles.push_back({.angle = 0, .slack = kInfinity, .frequency = 0});
      return out <= error;
    }
    low = std::max(low, (out - error) / in);
    high = std::min(high, (out + error) / in);
    if (low > high) return false;
    const double slack = error < out ? std::asin(error / out) : kInfinity;
    cell.angles.push_back(
        {.angle = std::arg(after * std::conj(before)), .slack = slack, .frequency = 0});
    return true;
  }

  const RotatedSample& sample_;
  const ChannelOrder& order_;
  const double more_;
};

// How far from 0 positions are looked for.
double RangeOf(const RotatedSample& sample) {
  double largest = 0;
  for (const int64_t position : sample.positions) {
    largest = std::max(largest, static_cast<double>(position));
  }
  return std::min(std::max(kTimesMax * largest, kPositionsMin), kSolvedPositionMax);
}

}  // namespace

Cells CellsOf(const RotatedSample& sample, const ChannelOrder& order, double more) {
  Cells cells;
  cells.multiplier_high = kInfinity;
  CellReader reader(sample, order, more);
  const auto head_dim = static_cast<size_t>(sample.head_dim);
  cells.cells.resize(sample.before.size() / head_dim);
  cells.all_still = true;
  for (size_t i = 0; i < cells.cells.size(); ++i) {
    if (!reader.Read(&sample.before[i * head_dim], &sample.after[i * head_dim], cells.cells[i],
                     cells)) {
      return {};
    }
    cells.all_still = cells.all_still && cells.cells[i].is_still;
  }
  cells.is_possible = true;
  return cells;
}

bool SolveCells(const RotatedSample& sample, const RopeNumbers& numbers, Cells& cells) {
  const std::vector<double>& inv_freq = numbers.inv_freq();
  std::vector<size_t> slowest_first(inv_freq.size());
  std::iota(slowest_first.begin(), slowest_first.end(), size_t{0});
  std::sort(slowest_first.begin(), slowest_first.end(),
            [&inv_freq](size_t a, size_t b) { return inv_freq[a] < inv_freq[b]; });
  const double most = RangeOf(sample);
  const Intervals everywhere = {{-most, most}};
  const auto rows = static_cast<size_t>(sample.rows);
  std::vector<PairAngle> angles;
  for (size_t i = 0; i < cells.cells.size(); ++i) {
    Cell& cell = cells.cells[i];
    if (cell.angles.empty()) continue;  // still, and not by this order
    angles.clear();
    for (const size_t pair : slowest_first) {
      angles.push_back(cell.angles[pair]);
      angles.back().frequency = inv_freq[pair];
    }
    // Most often the heads of a token share its position.
    const Cell& first = cells.cells[i - i % rows];
    if (&first != &cell && !first.positions.empty()) {
      cell.positions = SolvePosition(angles, first.positions);
    }
    if (cell.positions.empty()) cell.positions = SolvePosition(angles, everywhere);
    if (cell.positions.empty() && !cell.is_still) return false;
  }
  return true;
}

}  // namespace rope::client
