#include "client/cli/diagnose/facts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/diagnose/cells.h"
#include "client/cli/diagnose/channel_order.h"
#include "client/cli/diagnose/position_rules.h"
#include "client/cli/diagnose/trial.h"

namespace rope::client {
namespace {

constexpr double kKept = 1e-5;  // relative; of a norm in float32
constexpr double kKeptIn16Bits = 1e-2;

double Norm(const double* elements, size_t count) {
  double squares = 0;
  for (size_t i = 0; i < count; ++i) squares += elements[i] * elements[i];
  return std::sqrt(squares);
}

std::string FactOfNorms(const RotatedSample& sample) {
  const auto head_dim = static_cast<size_t>(sample.head_dim);
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (size_t i = 0; i < sample.before.size(); i += head_dim) {
    const double before = Norm(&sample.before[i], head_dim);
    if (before == 0) continue;
    const double ratio = Norm(&sample.after[i], head_dim) / before;
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  if (most < least) return "every vector was 0 before the rotation";
  const double kept = sample.dtype == DType::kFloat32 ? kKept : kKeptIn16Bits;
  if (most - least > kept * most) {
    return absl::StrFormat("norms of heads are not kept: after / before is %.5g to %.5g", least,
                           most);
  }
  if (std::abs(least - 1) <= kept) return "norms of heads are kept";
  return absl::StrFormat("norms of heads are all multiplied by %.5g", (least + most) / 2);
}

// Indices of one kind that changed: "channels 0..63 changed, 64 of 128".
std::string FactOfChanges(const std::string& kind, const std::set<int64_t>& changed, size_t total) {
  if (changed.empty()) return absl::StrCat("no ", kind, " changed");
  if (changed.size() == total) return absl::StrCat("every ", kind, " changed");
  return absl::StrCat(
      kind, "s that changed: ", ShortForm(std::vector<int64_t>(changed.begin(), changed.end())),
      " (", changed.size(), " of ", total, ")");
}

std::string FactOfPairs(const RotatedSample& sample, kernels::Pairing pairing, int64_t window,
                        size_t pairs) {
  for (const ChannelOrder& order : ChannelOrders(pairing, window, pairs, sample.head_dim)) {
    const Cells cells = CellsOf(sample, order, 0);
    if (!cells.is_possible || cells.all_still) continue;
    return absl::StrCat(
        "each pair of channels keeps its norm with ",
        order.changes.empty() ? "the config's pairing" : absl::StrJoin(order.changes, ", "),
        ": a rotation by angles that no setting which was tried gives");
  }
  return "no order of channels that was tried keeps the norms of pairs";
}

}  // namespace

std::vector<std::string> FactsOf(const RotatedSample& sample, kernels::Pairing pairing,
                                 int64_t window, size_t pairs) {
  std::set<int64_t> channels;
  std::set<int64_t> tokens;
  std::set<int64_t> heads;
  const auto head_dim = static_cast<size_t>(sample.head_dim);
  const auto rows = static_cast<size_t>(sample.rows);
  std::set<int64_t> all_heads;
  for (size_t row = 0; row < rows; ++row) all_heads.insert(sample.HeadOf(row));
  for (size_t i = 0; i < sample.before.size(); ++i) {
    if (sample.before[i] == sample.after[i]) continue;
    const size_t cell = i / head_dim;
    channels.insert(static_cast<int64_t>(i % head_dim));
    tokens.insert(sample.token_indices[cell / rows]);
    heads.insert(sample.HeadOf(cell % rows));
  }
  return {FactOfNorms(sample), FactOfPairs(sample, pairing, window, pairs),
          FactOfChanges("channel", channels, head_dim),
          FactOfChanges("token", tokens, sample.token_indices.size()),
          FactOfChanges("head", heads, all_heads.size())};
}

}  // namespace rope::client
