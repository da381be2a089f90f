#include "client/cli/diagnose/diagnose.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/diagnose/cells.h"
#include "client/cli/diagnose/channel_order.h"
#include "client/cli/diagnose/diagnose_configs.h"
#include "client/cli/diagnose/explain_cells.h"
#include "client/cli/diagnose/facts.h"

namespace rope::client {
namespace {

using kernels::Pairing;

constexpr size_t kSeconds = 3;  // changes of the config that a second one is tried beside

// An order of channels in which every pair keeps its norm, but for a common multiplier.
struct PossibleOrder {
  ChannelOrder order;
  Cells exact;  // not possible, if the norms are kept to a 16-bit type's roundings alone
  Cells rough;
};

bool IsConfigured(const Explanation& explanation) {
  return explanation.changes.empty();
}

// Adds each explanation of `from` whose changes no explanation of `to` has, in any order.
void Merge(std::vector<Explanation> from, std::vector<Explanation>& to) {
  for (Explanation& explanation : from) {
    if (!explanation.explains()) continue;
    std::vector<std::string> words = explanation.changes;
    std::sort(words.begin(), words.end());
    const auto is_same = [&words](const Explanation& known) {
      std::vector<std::string> known_words = known.changes;
      std::sort(known_words.begin(), known_words.end());
      return known_words == words;
    };
    const auto known = std::find_if(to.begin(), to.end(), is_same);
    if (known == to.end()) {
      to.push_back(std::move(explanation));
    } else if (known->positions.empty()) {
      known->positions = std::move(explanation.positions);
    }
  }
}

class Search {
 public:
  Search(const RotatedSample& sample, Pairing pairing, int64_t seq_len)
      : whole_(sample), thin_(Thinned(sample)), pairing_(pairing), seq_len_(seq_len) {}

  Status Begin(const kernels::RopeConfig& believed) {
    Result<RopeNumbers> numbers =
        RopeNumbers::Of(believed, whole_.head_dim, seq_len_, whole_.dtype);
    if (!numbers.ok()) return numbers.status();
    variants_.push_back({{}, *std::move(numbers)});
    return {};
  }

  Diagnosis Run() {
    Diagnosis diagnosis;
    diagnosis.as_configured = TryAsConfigured();
    const bool is_right = diagnosis.as_configured.explains();
    if (IsStill()) AddStill();
    if (!is_right) {
      FindOrders();
      AddCells(0);
      AddSettings();
      if (!IsExplained()) AddVariantsOfCells();
    }
    DropNeedless();
    if (!is_right && !IsExplained()) {
      const RopeNumbers& numbers = variants_.front().numbers;
      diagnosis.facts = FactsOf(whole_, pairing_, numbers.window(), numbers.pairs());
    }
    diagnosis.explanations = std::move(found_);
    return diagnosis;
  }

 private:
  bool IsExplained() const { return !found_.empty(); }

  Explanation TryAsConfigured() const {
    const RopeNumbers& numbers = variants_.front().numbers;
    const ChannelOrder plain =
        PlainOrder(pairing_, numbers.window(), numbers.pairs(), whole_.head_dim);
    return Try(whole_, {.numbers = &numbers, .order = &plain});
  }

  void FindOrders() {
    const RopeNumbers& numbers = variants_.front().numbers;
    for (ChannelOrder& order :
         ChannelOrders(pairing_, numbers.window(), numbers.pairs(), whole_.head_dim)) {
      Cells rough = CellsOf(whole_, order, kSomeRoundings);
      if (!rough.is_possible && !CellsOf(whole_, order, kManyRoundings).is_possible) continue;
      Cells exact = CellsOf(whole_, order, 0);
      orders_.push_back({std::move(order), std::move(exact), std::move(rough)});
    }
  }

  // Whether every vector is as before.
  bool IsStill() const {
    const ChannelOrder as_it_is =
        PlainOrder(pairing_, 0, 0, whole_.head_dim);  // without pairs: channels that do not turn
    return CellsOf(whole_, as_it_is, 0).all_still;
  }

  void AddStill() {
    Explanation explanation;
    explanation.changes = {kNotRotated};
    double squares = 0;
    for (size_t i = 0; i < whole_.before.size(); ++i) {
      const double error = std::abs(whole_.before[i] - whole_.after[i]);
      explanation.max_error = std::max(explanation.max_error, error);
      squares += error * error;
    }
    explanation.rms_error = std::sqrt(squares / static_cast<double>(whole_.before.size()));
    found_.push_back(std::move(explanation));
  }

  // What the vectors say, with the frequencies of a variant.
  void AddCells(size_t index) {
    const Variant& variant = variants_[index];
    for (const PossibleOrder& possible : orders_) {
      if (variant.changes.size() + possible.order.changes.size() > kChangesMax) continue;
      if (variant.numbers.pairs() != possible.order.pairs.size()) continue;
      if (index == 0) {
        Merge(ExplainRepeated(whole_, variant.numbers, possible.order), found_);
      }
      std::vector<Explanation> found =
          ExplainCells(whole_, variant.numbers, possible.order, possible.exact, variant.changes);
      if (found.empty() && index == 0) {
        found = ExplainCells(whole_, variant.numbers, possible.order, possible.rough, {});
      }
      Merge(std::move(found), found_);
    }
  }

  // Whether the pairs of any number of channels keep their norms, but for a common multiplier.
  bool IsSomeRotation() const {
    if (!orders_.empty()) return true;
    const int64_t head_dim = whole_.head_dim;
    for (int64_t dim = 2; dim <= head_dim; dim += 2) {
      for (const int64_t window :
           {variants_.front().numbers.window(), int64_t{0}, head_dim - dim}) {
        for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
          if (window + dim > head_dim) continue;
          const ChannelOrder order =
              PlainOrder(pairing, window, static_cast<size_t>(dim / 2), head_dim);
          if (CellsOf(thin_, order, kManyRoundings).is_possible) return true;
        }
      }
    }
    return false;
  }

  bool HasOneChange() const {
    return std::any_of(found_.begin(), found_.end(),
                       [](const Explanation& found) { return found.changes.size() == 1; });
  }

  // Other settings and behaviour: one change each, and then two.
  void AddSettings() {
    if (!IsSomeRotation()) return;
    AddChangesOf(0);
    singles_ = variants_.size();
    // Another config is more plausible than the same numbers by other positions.
    std::vector<Explanation> ordered;
    Merge(Explain(thin_, whole_, pairing_, variants_, 1), ordered);
    Merge(std::move(found_), ordered);
    found_ = std::move(ordered);
    if (HasOneChange()) return;
    const std::vector<Explanation> ranked =
        Explain(thin_, whole_, pairing_, variants_, kChangesMax);
    Merge(ranked, found_);
    if (IsExplained()) return;
    AddSecondChanges(ranked);
    Merge(Explain(thin_, whole_, pairing_, variants_, kChangesMax), found_);
  }

  // Adds variants with a second change. The first change is one of those with the smallest errors,
  // or the number of rotated channels that the tensors show.
  void AddSecondChanges(const std::vector<Explanation>& ranked) {
    std::vector<std::string> words = {
        absl::StrCat("rotary_dim ", EstimateRotaryDim(thin_, variants_.front().numbers.window()))};
    for (const Explanation& explanation : ranked) {
      if (words.size() > kSeconds) break;
      if (explanation.changes.size() == 1) words.push_back(explanation.changes.front());
    }
    for (size_t i = 1; i < singles_; ++i) {
      const std::string& change = variants_[i].changes.front();
      if (std::find(words.begin(), words.end(), change) != words.end()) AddChangesOf(i);
    }
  }

  void AddChangesOf(size_t index) {
    // Copies: variants_ grows below.
    const RopeNumbers from = variants_[index].numbers;
    const std::vector<std::string> changes = variants_[index].changes;
    for (const ConfigChange& change : ConfigChanges(from.config(), from.pairs(), pairing_, thin_)) {
      Result<RopeNumbers> numbers =
          RopeNumbers::Of(change.config, whole_.head_dim, seq_len_, whole_.dtype);
      // Not every change makes a config; it is no explanation then.
      if (!numbers.ok() || IsKnown(*numbers)) continue;
      std::vector<std::string> all = changes;
      all.push_back(change.words);
      variants_.push_back({std::move(all), *std::move(numbers)});
    }
  }

  bool IsKnown(const RopeNumbers& numbers) const {
    return std::any_of(variants_.begin(), variants_.end(), [&numbers](const Variant& variant) {
      return variant.numbers.inv_freq() == numbers.inv_freq() &&
             variant.numbers.attention_factor() == numbers.attention_factor();
    });
  }

  // Another config beside another order of channels or other positions.
  void AddVariantsOfCells() {
    for (size_t i = 1; i < std::min(singles_, variants_.size()); ++i) AddCells(i);
  }

  // Keeps the explanations with the fewest changes. Where the config itself explains the sample,
  // all that is left is that nothing may have turned at all.
  void DropNeedless() {
    std::erase_if(found_, &IsConfigured);
    std::stable_sort(found_.begin(), found_.end(), [](const Explanation& a, const Explanation& b) {
      return a.changes.size() < b.changes.size();
    });
    if (found_.empty()) return;
    const size_t fewest = found_.front().changes.size();
    std::erase_if(found_,
                  [fewest](const Explanation& found) { return found.changes.size() > fewest; });
  }

  const RotatedSample& whole_;
  const RotatedSample thin_;
  const Pairing pairing_;
  const int64_t seq_len_;
  std::vector<PossibleOrder> orders_;
  std::vector<Variant> variants_;  // the believed config, then with one change, then with two
  size_t singles_ = 0;             // variants with at most one change
  std::vector<Explanation> found_;
};

}  // namespace

Result<Diagnosis> Diagnose(const RotatedSample& sample, const kernels::RopeConfig& believed,
                           Pairing pairing, int64_t seq_len) {
  Search search(sample, pairing, seq_len);
  if (Status status = search.Begin(believed); !status.ok()) return status;
  return search.Run();
}

}  // namespace rope::client
