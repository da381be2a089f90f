#include "client/cli/diagnose/cell_patterns.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/diagnose/position_rules.h"

namespace rope::client {
namespace {

constexpr size_t kSequencesNamed = 8;

class PatternFinder {
 public:
  PatternFinder(const RotatedSample& sample, const Cells& cells)
      : sample_(sample),
        cells_(cells.cells),
        tokens_(sample.positions.size()),
        rows_(static_cast<size_t>(sample.rows)) {
    for (size_t token = 0; token < tokens_; ++token) all_tokens_.push_back(token);
    for (size_t row = 0; row < rows_; ++row) all_rows_.push_back(row);
  }

  std::vector<CellPattern> Find() {
    AddByToken();
    AddSomeHeads();
    AddSomeTokens();
    AddByHead();
    AddByMemory();
    AddBySequence();
    return std::move(patterns_);
  }

 private:
  using Indices = std::vector<size_t>;

  const Cell& At(size_t token, size_t row) const { return cells_[token * rows_ + row]; }

  // The positions that all vectors of these tokens and rows may have.
  Intervals CommonOf(const Indices& tokens, const Indices& rows) const {
    Intervals common = At(tokens.front(), rows.front()).positions;
    for (const size_t token : tokens) {
      for (const size_t row : rows) common = Common(common, At(token, row).positions);
    }
    return common;
  }

  // The right position of the token at `index`, also past the last one.
  int64_t RightPosition(int64_t index) const {
    const auto count = static_cast<int64_t>(sample_.all_positions.size());
    if (index < count) return sample_.all_positions[static_cast<size_t>(index)];
    return sample_.all_positions.back() + index - count + 1;
  }

  // Rules for these tokens, over these rows.
  std::vector<PositionRule> RulesByToken(const Indices& tokens, const Indices& rows) const {
    SolvedTokens solved;
    for (const size_t token : tokens) {
      const int64_t index = sample_.token_indices[token];
      solved.indices.push_back(index);
      solved.believed.push_back(sample_.positions[token]);
      solved.mirrored.push_back(RightPosition(sample_.tokens_total - 1 - index));
      solved.solved.push_back(CommonOf({token}, rows));
      if (solved.solved.back().empty()) return {};
    }
    return RulesOf(solved);
  }

  // The plan in which nothing but these tokens and rows is rotated.
  CellPlan PlanOf(const PositionRule& rule, const Indices& tokens, const Indices& rows) const {
    CellPlan plan;
    plan.positions.resize(cells_.size());
    plan.still.assign(cells_.size(), true);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (const size_t row : rows) {
        plan.positions[tokens[i] * rows_ + row] = rule.positions[i];
        plan.still[tokens[i] * rows_ + row] = false;
      }
    }
    return plan;
  }

  void Add(std::string where, const PositionRule& rule, CellPlan plan) {
    CellPattern pattern;
    if (!where.empty()) pattern.words.push_back(std::move(where));
    if (!rule.words.empty()) {
      pattern.words.push_back(rule.words);
      pattern.is_inverse = rule.words == kInverseWords;
      pattern.positions = ShortForm(rule.positions);
    }
    pattern.plan = std::move(plan);
    patterns_.push_back(std::move(pattern));
  }

  // Each token has a position, which its rows share.
  void AddByToken() {
    for (const PositionRule& rule : RulesByToken(all_tokens_, all_rows_)) {
      Add("", rule, PlanOf(rule, all_tokens_, all_rows_));
    }
  }

  // Rows of which every vector is still; the others follow a rule.
  void AddSomeHeads() {
    Indices turned;
    std::set<int64_t> turned_heads;
    std::set<int64_t> still_heads;
    for (const size_t row : all_rows_) {
      const bool is_still = std::all_of(all_tokens_.begin(), all_tokens_.end(),
                                        [&](size_t token) { return At(token, row).is_still; });
      if (!is_still) turned.push_back(row);
      (is_still ? still_heads : turned_heads).insert(sample_.HeadOf(row));
    }
    if (turned.empty() || turned.size() == rows_) return;
    const bool by_head = std::none_of(still_heads.begin(), still_heads.end(),
                                      [&](int64_t head) { return turned_heads.count(head) > 0; });
    std::vector<int64_t> named(turned_heads.begin(), turned_heads.end());
    if (!by_head) {
      named.clear();
      for (const size_t row : turned) named.push_back(sample_.row_indices[row]);
    }
    const std::string where =
        absl::StrCat("only ", by_head ? "heads " : "rows ", ShortForm(named), " rotated");
    for (const PositionRule& rule : RulesByToken(all_tokens_, turned)) {
      Add(where, rule, PlanOf(rule, all_tokens_, turned));
    }
  }

  // Tokens of which every vector is still; the others follow a rule, but not one by one.
  void AddSomeTokens() {
    Indices turned;
    std::vector<int64_t> named;
    for (const size_t token : all_tokens_) {
      const bool is_still = std::all_of(all_rows_.begin(), all_rows_.end(),
                                        [&](size_t row) { return At(token, row).is_still; });
      if (is_still) continue;
      turned.push_back(token);
      named.push_back(sample_.token_indices[token]);
    }
    if (turned.empty() || turned.size() == tokens_) return;
    // A token whose right position is 0 may be still.
    const bool has_rotated_all = std::all_of(all_tokens_.begin(), all_tokens_.end(), [&](size_t i) {
      return sample_.positions[i] == 0 || std::count(turned.begin(), turned.end(), i) > 0;
    });
    if (has_rotated_all) return;
    const std::string where = absl::StrCat("only tokens ", ShortForm(named), " rotated");
    for (const PositionRule& rule : RulesByToken(turned, all_rows_)) {
      Add(where, rule, PlanOf(rule, turned, all_rows_));
    }
  }

  // Each head has a position, which its tokens share.
  void AddByHead() {
    if (sample_.heads < 2 || tokens_ < 2) return;
    SolvedTokens solved;
    for (const size_t row : all_rows_) {
      const int64_t head = sample_.HeadOf(row);
      solved.indices.push_back(head);
      solved.believed.push_back(RightPosition(head));
      solved.mirrored.push_back(RightPosition(sample_.heads - 1 - head));
      solved.solved.push_back(CommonOf(all_tokens_, {row}));
      if (solved.solved.back().empty()) return;
    }
    for (PositionRule& rule : RulesOf(solved)) {
      CellPlan plan;
      for (size_t token = 0; token < tokens_; ++token) {
        plan.positions.insert(plan.positions.end(), rule.positions.begin(), rule.positions.end());
      }
      if (absl::StartsWith(rule.words, "every token")) continue;  // found by token
      Add("head and sequence axes swapped: positions follow the heads", rule, std::move(plan));
    }
  }

  // The memory of [tokens, heads] was read as [heads, tokens], or the reverse.
  void AddByMemory() {
    if (sample_.heads < 2 || sample_.heads != sample_.rows_total || tokens_ < 2) return;
    CellPlan plan;
    for (const size_t token : all_tokens_) {
      for (const size_t row : all_rows_) {
        const int64_t head = sample_.HeadOf(row);
        const int64_t index =
            sample_.heads_before_tokens
                ? (head * sample_.tokens_total + sample_.token_indices[token]) / sample_.heads
                : (sample_.token_indices[token] * sample_.heads + head) % sample_.tokens_total;
        plan.positions.push_back(static_cast<double>(RightPosition(index)));
        if (!Contains(At(token, row).positions, plan.positions.back())) return;
      }
    }
    Add("head and sequence axes swapped: the memory was viewed with them exchanged", {},
        std::move(plan));
  }

  // The sequences follow different rules, for example each with its own padding.
  void AddBySequence() {
    std::vector<int64_t> sequences;
    for (const size_t row : all_rows_) sequences.push_back(sample_.SequenceOf(row));
    const std::set<int64_t> different(sequences.begin(), sequences.end());
    if (different.size() < 2) return;
    CellPlan plan;
    plan.positions.resize(cells_.size());
    std::vector<std::string> words;
    for (const int64_t sequence : different) {
      Indices rows;
      for (const size_t row : all_rows_) {
        if (sequences[row] == sequence) rows.push_back(row);
      }
      const std::vector<PositionRule> rules = RulesByToken(all_tokens_, rows);
      if (rules.empty()) return;
      const PositionRule& rule = rules.front();
      for (const size_t token : all_tokens_) {
        for (const size_t row : rows) plan.positions[token * rows_ + row] = rule.positions[token];
      }
      words.push_back(absl::StrCat("sequence ", sequence, " ",
                                   rule.words.empty() ? "as configured" : rule.words));
    }
    if (words.size() > kSequencesNamed) {
      words.resize(kSequencesNamed);
      words.push_back("...");
    }
    Add(absl::StrJoin(words, "; "), {}, std::move(plan));
  }

  const RotatedSample& sample_;
  const std::vector<Cell>& cells_;
  const size_t tokens_;
  const size_t rows_;
  Indices all_tokens_;
  Indices all_rows_;
  std::vector<CellPattern> patterns_;
};

}  // namespace

std::vector<CellPattern> PatternsOf(const RotatedSample& sample, const Cells& cells) {
  return PatternFinder(sample, cells).Find();
}

}  // namespace rope::client
