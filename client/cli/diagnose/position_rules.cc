#include "client/cli/diagnose/position_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rope::client {
namespace {

constexpr size_t kPartsMax = 16;          // of a short form
constexpr size_t kListedMax = 4;          // equal positions in a row that are written one by one
constexpr int64_t kShiftsMax = 8;         // shifts that one interval may hold
constexpr int64_t kGroupMax = 256;        // tokens that share a position
constexpr int64_t kModulusMax = 1 << 22;  // largest difference whose divisors are tried

std::string Tokens(int64_t count) {
  return absl::StrCat(count, count == 1 ? " token" : " tokens");
}

// The rules that fit one list of tokens.
class RuleFinder {
 public:
  explicit RuleFinder(const SolvedTokens& tokens) : tokens_(tokens), count_(tokens.solved.size()) {
    smallest_ = *std::min_element(tokens.believed.begin(), tokens.believed.end());
    // Fewest intervals, then the narrowest ones: the token that says most.
    const auto width = [&](size_t i) {
      const Intervals& solved = tokens_.solved[i];
      return solved.empty() ? 0 : solved.front().high - solved.front().low;
    };
    for (size_t i = 1; i < count_; ++i) {
      const size_t parts = tokens.solved[i].size();
      const size_t best = tokens.solved[sharpest_].size();
      if (parts < best || (parts == best && width(i) < width(sharpest_))) sharpest_ = i;
    }
    for (const Intervals& solved : tokens.solved) integers_.push_back(IntegerIn(solved));
  }

  std::vector<PositionRule> Find() {
    AddIf("", [this](size_t i) { return tokens_.believed[i]; });
    AddShifts();
    AddConstant();
    if (count_ > 1) AddIf("positions reversed", [this](size_t i) { return tokens_.mirrored[i]; });
    AddScaled();
    AddGrouped();
    AddModulo();
    AddClamped();
    AddPadded();
    AddIf("inverse rotation", [this](size_t i) { return -tokens_.believed[i]; });
    if (rules_.empty()) AddOneByOne();
    return std::move(rules_);
  }

 private:
  // Adds the rule if it gives each token a position that it may have.
  template <typename PositionOf>
  bool AddIf(const std::string& words, const PositionOf& position_of) {
    PositionRule rule = {.words = words, .positions = {}};
    for (size_t i = 0; i < count_; ++i) {
      const auto position = static_cast<double>(position_of(i));
      if (!Contains(tokens_.solved[i], position)) return false;
      rule.positions.push_back(position);
    }
    rules_.push_back(std::move(rule));
    return true;
  }

  void AddShifts() {
    for (const Interval& interval : tokens_.solved[sharpest_]) {
      const auto from = static_cast<double>(tokens_.believed[sharpest_]);
      const double first = std::ceil(interval.low - from);
      const double last = std::min(std::floor(interval.high - from), first + kShiftsMax);
      for (double shift = first; shift <= last; ++shift) {
        if (shift == 0) continue;
        const auto by = static_cast<int64_t>(shift);
        AddIf(WordsOfShift(by), [&](size_t i) { return tokens_.believed[i] + by; });
      }
    }
  }

  std::string WordsOfShift(int64_t by) const {
    const bool is_step = std::abs(by) == 1;
    if (!is_step && (by == -smallest_ || by == 1 - smallest_)) {
      return absl::StrCat("positions counted from ", smallest_ + by);
    }
    return absl::StrCat("positions ", by < 0 ? "- " : "+ ", std::abs(by));
  }

  void AddConstant() {
    if (count_ < 2) return;
    Intervals common = tokens_.solved[0];
    for (const Intervals& solved : tokens_.solved) common = Common(common, solved);
    const std::optional<int64_t> position = IntegerIn(common);
    if (!position.has_value()) return;
    AddIf(absl::StrCat("every token at position ", *position), [&](size_t) { return *position; });
  }

  void AddScaled() {
    Intervals factors = {{-1e6, 1e6}};
    for (size_t i = 0; i < count_; ++i) {
      const auto believed = static_cast<double>(tokens_.believed[i]);
      if (believed == 0) continue;
      Intervals own;
      for (const Interval& interval : tokens_.solved[i]) {
        own.push_back({.low = interval.low / believed, .high = interval.high / believed});
      }
      factors = Common(factors, own);
    }
    if (factors.size() > kPartsMax || factors.empty() || factors.front().low == -1e6) return;
    for (const Interval& interval : factors) AddFactor(interval);
  }

  // The roundest number of the interval.
  void AddFactor(const Interval& interval) {
    const double middle = (interval.low + interval.high) / 2;
    if (interval.low <= 0 && interval.high >= 0) return;
    const double whole = std::round(middle);
    const double part = std::round(1 / middle);
    const auto within = [&](double factor) {
      return interval.low <= factor && factor <= interval.high;
    };
    const auto scaled = [this](double factor) {
      return [this, factor](size_t i) { return factor * static_cast<double>(tokens_.believed[i]); };
    };
    if (whole != 0 && within(whole)) {
      if (std::abs(whole) != 1) AddIf(absl::StrFormat("positions * %.0f", whole), scaled(whole));
      return;
    }
    if (within(1 / part)) {
      AddIf(absl::StrFormat("positions / %.0f", part), scaled(1 / part));
      return;
    }
    for (double digits = 1; digits < 12; ++digits) {
      const double unit = std::pow(10, std::floor(std::log10(std::abs(middle))) + 1 - digits);
      const double factor = std::round(middle / unit) * unit;
      if (!within(factor)) continue;
      AddIf(absl::StrFormat("positions * %.10g", factor), scaled(factor));
      return;
    }
  }

  void AddGrouped() {
    for (int64_t group = 2; group <= kGroupMax; ++group) {
      const auto shared = [&](size_t i) { return tokens_.believed[i] / group; };
      const auto is_whole = [&](int64_t position) { return position % group == 0; };
      if (std::all_of(tokens_.believed.begin(), tokens_.believed.end(), is_whole)) continue;
      if (shared(0) == shared(count_ - 1)) return;  // one group: every token at one position
      if (AddIf(absl::StrCat("positions / ", group, ", rounded down"), shared)) return;
    }
  }

  // A modulus divides every difference and is above every position.
  void AddModulo() {
    int64_t divisor = 0;
    int64_t most = 0;
    for (size_t i = 0; i < count_; ++i) {
      if (!integers_[i].has_value() || *integers_[i] < 0) return;
      most = std::max(most, *integers_[i]);
      divisor = std::gcd(divisor, tokens_.believed[i] - *integers_[i]);
    }
    if (divisor == 0 || divisor > kModulusMax) return;
    std::vector<int64_t> moduli;
    for (int64_t modulus = most + 1; modulus <= divisor; ++modulus) {
      if (divisor % modulus == 0) moduli.push_back(modulus);
    }
    if (moduli.empty()) return;
    const auto is_power = [](int64_t modulus) { return (modulus & (modulus - 1)) == 0; };
    const auto rounded = std::find_if(moduli.begin(), moduli.end(), is_power);
    const int64_t modulus = rounded != moduli.end() ? *rounded : moduli.front();
    std::string words = absl::StrCat("positions modulo ", modulus);
    if (moduli.size() > 1) {
      absl::StrAppend(&words, " (or another divisor of ", divisor, " above ", most, ")");
    }
    AddIf(words, [&](size_t i) { return tokens_.believed[i] % modulus; });
  }

  void AddClamped() {
    if (!integers_.front().has_value() || !integers_.back().has_value()) return;
    const auto [low, high] = std::minmax(*integers_.front(), *integers_.back());
    const auto lies = [this](auto beyond) {
      const auto count = std::count_if(tokens_.believed.begin(), tokens_.believed.end(), beyond);
      return count > 0 && count < static_cast<std::ptrdiff_t>(count_);
    };
    const int64_t ceiling = high;
    const int64_t floor = low;
    if (lies([&](int64_t position) { return position > ceiling; })) {
      AddIf(absl::StrCat("positions not above ", ceiling),
            [&](size_t i) { return std::min(tokens_.believed[i], ceiling); });
    }
    if (lies([&](int64_t position) { return position < floor; })) {
      AddIf(absl::StrCat("positions not below ", floor),
            [&](size_t i) { return std::max(tokens_.believed[i], floor); });
    }
  }

  // The first tokens share a position and the others count up, or the last ones share one.
  void AddPadded() {
    if (count_ < 3 || !integers_.front().has_value() || !integers_.back().has_value()) return;
    const int64_t left = *integers_.front();
    const int64_t right = *integers_.back();
    size_t begin = 0;
    while (begin < count_ && Contains(tokens_.solved[begin], static_cast<double>(left))) ++begin;
    size_t end = count_;
    while (end > 0 && Contains(tokens_.solved[end - 1], static_cast<double>(right))) --end;
    // A padded token may have the position of the first real one, or of the last.
    for (const size_t first : {begin - 1, begin}) {
      if (first > 0 && first + 1 < count_ && AddLeftPadding(first, left)) break;
    }
    for (const size_t last : {end + 1, end}) {
      if (last > 1 && last < count_ && AddRightPadding(last, left, right)) break;
    }
  }

  // The tokens before `first` are at `filler`.
  bool AddLeftPadding(size_t first, int64_t filler) {
    if (!integers_[first].has_value()) return false;
    const int64_t start = *integers_[first];
    const auto counted = [&](size_t i) {
      return start + tokens_.indices[i] - tokens_.indices[first];
    };
    if (first == 1 && counted(0) == filler) return false;  // no padding
    return AddIf(absl::StrCat("left padding: the first ", Tokens(tokens_.indices[first]),
                              " at position ", filler, ", the others count from ", start),
                 [&](size_t i) { return i < first ? filler : counted(i); });
  }

  // The tokens from `last` on are at `filler`.
  bool AddRightPadding(size_t last, int64_t start, int64_t filler) {
    const auto counted = [&](size_t i) { return start + tokens_.indices[i] - tokens_.indices[0]; };
    if (last + 1 == count_ && counted(last) == filler) return false;  // no padding
    const int64_t padded = tokens_.indices.back() + 1 - tokens_.indices[last];
    return AddIf(absl::StrCat("right padding: the last ", Tokens(padded), " at position ", filler,
                              ", the others count from ", start),
                 [&](size_t i) { return i < last ? counted(i) : filler; });
  }

  void AddOneByOne() {
    PositionRule rule;
    for (size_t i = 0; i < count_; ++i) {
      const Intervals& solved = tokens_.solved[i];
      if (solved.empty()) return;
      rule.positions.push_back(integers_[i].has_value()
                                   ? static_cast<double>(*integers_[i])
                                   : (solved.front().low + solved.front().high) / 2);
    }
    rule.words = absl::StrCat("positions ", ShortForm(rule.positions));
    rules_.push_back(std::move(rule));
  }

  const SolvedTokens& tokens_;
  const size_t count_;
  size_t sharpest_ = 0;
  int64_t smallest_ = 0;
  std::vector<std::optional<int64_t>> integers_;
  std::vector<PositionRule> rules_;
};

// The end of the run of equal steps `step` that begins at `begin`.
size_t RunEnd(const std::vector<double>& values, size_t begin, double step) {
  size_t end = begin + 1;
  while (end < values.size() && values[end] - values[end - 1] == step) ++end;
  return end;
}

}  // namespace

std::vector<PositionRule> RulesOf(const SolvedTokens& tokens) {
  return RuleFinder(tokens).Find();
}

std::string ShortForm(const std::vector<double>& positions) {
  std::string text;
  size_t parts = 0;
  for (size_t begin = 0; begin < positions.size(); ++parts) {
    if (parts > 0) text += ", ";
    if (parts == kPartsMax) return text + "...";
    absl::StrAppendFormat(&text, "%.10g", positions[begin]);
    const size_t up = RunEnd(positions, begin, 1);
    const size_t down = RunEnd(positions, begin, -1);
    const size_t same = RunEnd(positions, begin, 0);
    size_t end = begin + 1;
    if (std::max(up, down) > begin + 2) {
      end = std::max(up, down);
      absl::StrAppendFormat(&text, "..%.10g", positions[end - 1]);
    } else if (same > begin + kListedMax) {
      end = same;
      absl::StrAppendFormat(&text, " (%d times)", end - begin);
    }
    begin = end;
  }
  return text;
}

std::string ShortForm(const std::vector<int64_t>& numbers) {
  return ShortForm(std::vector<double>(numbers.begin(), numbers.end()));
}

}  // namespace rope::client
