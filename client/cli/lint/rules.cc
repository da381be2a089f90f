#include "client/cli/lint/rules.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/config/embedded_data.h"

namespace rope::client {
namespace {

using enum Weight;

Weight WeightNamed(const std::string& name) {
  for (const Weight weight : {kNote, kReading, kWarning}) {
    if (Name(weight) == name) return weight;
  }
  return kError;
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
  switch (weight) {
    case Weight::kNote:
      return "note";
    case Weight::kReading:
      return "reading";
    case Weight::kWarning:
      return "warning";
    case Weight::kError:
      break;
  }
  return "error";
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
