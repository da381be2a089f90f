#include "client/cli/lint/rules.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/config/embedded_data.h"

namespace rope::client {
namespace {

// In the order of Weight.
constexpr absl::string_view kWeights[] = {"note", "reading", "warning", "error"};

Weight WeightNamed(const std::string& name) {
  const auto* const found = std::find(std::begin(kWeights), std::end(kWeights), name);
  ROPE_CHECK(found != std::end(kWeights));
  return static_cast<Weight>(found - std::begin(kWeights));
}

// The rules of rules.json.
std::vector<Rule> ReadRules() {
  std::vector<Rule> rules;
  const nlohmann::json data = nlohmann::json::parse(kernels::kRulesJson);
  for (const char* const part : {"refusals", "remarks", "others"}) {
    for (const nlohmann::json& rule : data.at(part)) {
      rules.push_back({rule.at("id"), WeightNamed(rule.at("weight")), rule.at("summary")});
    }
  }
  std::ranges::stable_sort(rules, std::greater<>(), &Rule::weight);
  return rules;
}

}  // namespace

absl::string_view Name(Weight weight) {
  return kWeights[static_cast<size_t>(weight)];
}

absl::Span<const Rule> Rules() {
  static const std::vector<Rule> rules = ReadRules();
  return rules;
}

const Rule* FindRule(absl::string_view id) {
  const absl::Span<const Rule> rules = Rules();
  const auto* const found =
      std::find_if(rules.begin(), rules.end(), [id](const Rule& rule) { return rule.id == id; });
  return found == rules.end() ? nullptr : found;
}

const Rule& RuleOf(absl::string_view id) {
  const Rule* const rule = FindRule(id);
  ROPE_CHECK(rule != nullptr);
  return *rule;
}

const Rule& RuleOf(kernels::RemarkKind kind) {
  const std::string_view id = kernels::Name(kind);
  return RuleOf(absl::string_view(id.data(), id.size()));
}

std::string HelpLink(const Rule& rule) {
  return absl::StrCat("client/cli/lint/RULES.md#", rule.id);
}

}  // namespace rope::client
