#include "client/cli/lint/lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rope::client {
namespace {

TEST(RulesTest, PageHasASectionForEachRuleAndNoOther) {
  std::ifstream page(absl::StrCat(ROPE_SOURCE_DIR, "/client/cli/lint/RULES.md"));
  std::set<std::string> sections;
  std::string weight;  // of the chapter
  for (std::string line; std::getline(page, line);) {
    absl::string_view title = line;
    if (absl::ConsumePrefix(&title, "### ")) {
      ASSERT_NE(FindRule(title), nullptr) << title;
      EXPECT_EQ(absl::StrCat("## ", Name(FindRule(title)->weight), "s"), weight) << title;
      sections.insert(std::string(title));
    } else if (line.starts_with("## ")) {
      weight = line;
      weight[3] = static_cast<char>(std::tolower(weight[3]));
    }
  }
  std::set<std::string> rules;
  for (const Rule& rule : Rules()) rules.insert(std::string(rule.id));
  EXPECT_EQ(sections, rules);
  EXPECT_EQ(rules.size(), Rules().size());  // each id once
}

TEST(RulesTest, EveryRemarkIsARuleOfItsWeight) {
  for (int i = 0; i <= static_cast<int>(kernels::RemarkKind::kSizesDoNotDivide); ++i) {
    const auto kind = static_cast<kernels::RemarkKind>(i);
    const Rule& rule = RuleOf(kind);
    const kernels::RemarkWeight weight = kernels::WeightOf(kind);
    const Weight want = weight == kernels::RemarkWeight::kNote      ? Weight::kNote
                        : weight == kernels::RemarkWeight::kWarning ? Weight::kWarning
                                                                    : Weight::kError;
    EXPECT_EQ(rule.weight, want) << rule.id;
  }
}

TEST(RulesTest, HeavierRulesComeFirstAndLinksNameTheSection) {
  for (size_t i = 1; i < Rules().size(); ++i) {
    EXPECT_GE(Rules()[i - 1].weight, Rules()[i].weight) << Rules()[i].id;
  }
  EXPECT_EQ(HelpLink(RuleOf("near-miss-key")), "client/cli/lint/RULES.md#near-miss-key");
  EXPECT_EQ(FindRule("nothing"), nullptr);
}

}  // namespace
}  // namespace rope::client
