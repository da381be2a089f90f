#include "kernels/config/remark.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/check.h"
#include "kernels/config/embedded_data.h"

namespace rope::kernels {
namespace {

// The ids of rules.json, whose remarks are in the order of RemarkKind.
std::vector<std::string> ReadKinds() {
  std::vector<std::string> names;
  const nlohmann::json data = nlohmann::json::parse(kRulesJson);
  for (const nlohmann::json& remark : data.at("remarks")) names.push_back(remark.at("id"));
  ROPE_CHECK(names.size() == static_cast<size_t>(RemarkKind::kSizesDoNotDivide) + 1);
  return names;
}

}  // namespace

std::string_view Name(RemarkKind kind) {
  static const std::vector<std::string> names = ReadKinds();
  return names.at(static_cast<size_t>(kind));
}

RemarkWeight WeightOf(RemarkKind kind) {
  if (kind >= RemarkKind::kUnknownLayerType) return RemarkWeight::kError;
  return kind >= RemarkKind::kUnknownModelType ? RemarkWeight::kWarning : RemarkWeight::kNote;
}

}  // namespace rope::kernels
