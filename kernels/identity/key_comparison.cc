#include "kernels/identity/key_comparison.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/error.h"

namespace rope::kernels {
namespace {

std::string_view NameOf(std::optional<Pairing> pairing) {
  return pairing.has_value() ? std::string_view(Name(*pairing)) : "not said";
}

// The shortest text that reads as the same number.
std::string NumberText(double number) {
  std::array<char, 32> digits;
  char* const begin = digits.data();
  return {begin, std::to_chars(begin, begin + digits.size(), number).ptr};
}

std::string WindowOf(const KeyRows& rows) {
  return StrCat("channels ", rows.rotary_offset, " to ", rows.rotary_offset + rows.rotary_dim - 1,
                " of ", rows.head_dim);
}

std::optional<Pairing> OrderOf(const KeyRows& rows) {
  return rows.channel_order.has_value() ? rows.channel_order : rows.pairing;
}

// Whether both turn the same pairs of channels, or a pair of one stands still in the other.
bool TurnsSamePairs(const KeyRows& a, const KeyRows& b) {
  if (!a.rotates || !b.rotates) return true;
  if (a.pairing != b.pairing || OrderOf(a) != OrderOf(b) || a.head_dim != b.head_dim) return false;
  if (a.rotary_offset == b.rotary_offset && a.rotary_dim == b.rotary_dim) return true;
  return a.pairing == Pairing::kInterleaved && OrderOf(a) == a.pairing &&
         (a.rotary_offset - b.rotary_offset) % 2 == 0;
}

constexpr size_t kDifferencesMax = 64;

// Collects what differs, each difference once, and at most kDifferencesMax.
class Differences {
 public:
  // What the differences that follow belong to: "layer 5: ".
  void SetPlace(std::string place) { place_ = std::move(place); }

  void Add(KeyMatch match, std::string_view what, std::string_view a, std::string_view b) {
    comparison_.match = std::max(comparison_.match, match);
    if (comparison_.differences.size() == kDifferencesMax) return;
    std::string text = StrCat(what, ": ", a, " | ", b);
    if (!seen_.insert(text).second) return;
    comparison_.differences.push_back(StrCat(place_, text));
  }

  // The same where both texts are equal: nothing.
  void AddIfDifferent(KeyMatch match, std::string_view what, std::string_view a,
                      std::string_view b) {
    if (a != b) Add(match, what, a, b);
  }

  KeyComparison Take() { return std::move(comparison_); }

 private:
  KeyComparison comparison_ = {.match = KeyMatch::kSame};
  std::string place_;
  std::set<std::string> seen_;
};

void CompareNumbers(std::string_view name, KeyMatch match, const std::vector<double>& a,
                    const std::vector<double>& b, Differences& differences) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    return differences.Add(match, StrCat(name, "[", i, "]"), NumberText(a[i]), NumberText(b[i]));
  }
}

// The first frequency that takes another axis.
void CompareAxes(const KeyRows& a, const KeyRows& b, KeyMatch match, Differences& differences) {
  const auto axis = [](const KeyRows& rows, size_t i) {
    return rows.axes.empty() ? "one for all" : StrCat(rows.axes[i]);
  };
  const size_t count = a.axes.empty()   ? b.axes.size()
                       : b.axes.empty() ? a.axes.size()
                                        : std::min(a.axes.size(), b.axes.size());
  for (size_t i = 0; i < count; ++i) {
    if (axis(a, i) == axis(b, i)) continue;
    return differences.Add(match, StrCat("axis of frequency ", i), axis(a, i), axis(b, i));
  }
}

void CompareRows(const KeyRows& a, const KeyRows& b, Differences& differences) {
  using enum KeyMatch;
  if (a.rotates != b.rotates) {
    const auto text = [](const KeyRows& rows) { return rows.rotates ? "yes" : "no"; };
    const KeyRows& turned = a.rotates ? a : b;
    const bool converts = turned.factor != 0 && turned.xpos.empty();
    return differences.Add(converts ? kConvertible : kDifferent, "rotates", text(a), text(b));
  }
  if (!a.rotates) return;
  // A factor of 0 loses K.
  const KeyMatch match = TurnsSamePairs(a, b) && a.factor != 0 ? kConvertible : kDifferent;
  differences.AddIfDifferent(match, "pairing", NameOf(a.pairing), NameOf(b.pairing));
  differences.AddIfDifferent(a.pairing == b.pairing ? kReordered : kDifferent, "channel order",
                             NameOf(OrderOf(a)), NameOf(OrderOf(b)));
  differences.AddIfDifferent(match, "window", WindowOf(a), WindowOf(b));
  CompareAxes(a, b, match, differences);
  differences.AddIfDifferent(kDifferent, "xpos", a.xpos, b.xpos);
  differences.AddIfDifferent(match, "factor on K", NumberText(a.factor), NumberText(b.factor));
  const auto by_length = [](const KeyRows& rows) {
    return rows.by_length.empty() ? "every length alike" : rows.by_length;
  };
  differences.AddIfDifferent(match, "by length", by_length(a), by_length(b));
  CompareNumbers("inv_freq", match, a.inv_freq, b.inv_freq, differences);
  CompareNumbers("long_inv_freq", match, a.long_inv_freq, b.long_inv_freq, differences);
}

// The index of the rows of a layer. All layers have the same if there is no list.
size_t RowsOf(const KeyIdentity& key, size_t layer) {
  return layer < key.layers.size() ? static_cast<size_t>(key.layers[layer]) : 0;
}

void CompareLayers(const KeyIdentity& a, const KeyIdentity& b, Differences& differences) {
  const size_t count = std::max(a.layers.size(), b.layers.size());
  if (!a.layers.empty() && !b.layers.empty() && a.layers.size() != b.layers.size()) {
    differences.Add(KeyMatch::kDifferent, "layers", StrCat(a.layers.size()),
                    StrCat(b.layers.size()));
    return;
  }
  std::set<std::pair<size_t, size_t>> compared;
  for (size_t layer = 0; layer < std::max<size_t>(count, 1); ++layer) {
    const std::pair<size_t, size_t> rows = {RowsOf(a, layer), RowsOf(b, layer)};
    if (!compared.insert(rows).second) continue;
    if (count > 0) differences.SetPlace(StrCat("layer ", layer, ": "));
    CompareRows(a.rows[rows.first], b.rows[rows.second], differences);
  }
}

// Without numbers of layers, by their types.
void CompareTypes(const KeyIdentity& a, const KeyIdentity& b, Differences& differences) {
  const auto text = [](const KeyIdentity& key) {
    if (!key.layer_types.empty()) return absl::StrJoin(key.layer_types, "; ");
    return std::string(key.layers.empty() ? "all alike" : "by number");
  };
  if (a.layer_types != b.layer_types || a.rows.size() != b.rows.size()) {
    return differences.Add(KeyMatch::kDifferent, "layer types", text(a), text(b));
  }
  for (size_t i = 0; i < a.rows.size(); ++i) {
    differences.SetPlace(StrCat(a.layer_types[i], ": "));
    CompareRows(a.rows[i], b.rows[i], differences);
  }
}

}  // namespace

KeyComparison CompareKeys(const KeyIdentity& a, const KeyIdentity& b) {
  using enum KeyMatch;
  Differences differences;
  const auto engine = [](const KeyIdentity& key) {
    return key.engine.empty() ? "none" : std::string_view(key.engine);
  };
  const auto given = [](const std::string& dtype) {
    return dtype.empty() ? std::string_view("not given") : std::string_view(dtype);
  };
  const auto of_tables = [](const std::string& dtype) {
    return dtype.empty() ? std::string_view("that of K") : std::string_view(dtype);
  };
  differences.AddIfDifferent(kRounding, "engine", engine(a), engine(b));
  differences.AddIfDifferent(kRounding, "dtype", given(a.dtype), given(b.dtype));
  differences.AddIfDifferent(kRounding, "dtype of cos and sin", of_tables(a.table_dtype),
                             of_tables(b.table_dtype));
  if (a.layer_types.empty() && b.layer_types.empty()) {
    CompareLayers(a, b, differences);
  } else {
    CompareTypes(a, b, differences);
  }
  if (a.fingerprint != b.fingerprint) {
    KeyComparison found = differences.Take();
    if (found.match != kSame) return found;
    // Without an engine the numbers have more bits than the identities show.
    return {.match = kDifferent, .differences = {"a number differs by less than is shown"}};
  }
  return differences.Take();
}

}  // namespace rope::kernels
