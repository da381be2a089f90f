#include "kernels/config/remark.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/check.h"
#include "kernels/config/embedded_data.h"

namespace rope::kernels {
// The ids of rules.json, whose remarks are in the order of RemarkKind.
std::string_view Name(RemarkKind kind) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> ids;
    const nlohmann::json data = nlohmann::json::parse(kRulesJson);
    for (const nlohmann::json& remark : data.at("remarks")) ids.push_back(remark.at("id"));
    ROPE_CHECK(ids.size() == static_cast<size_t>(RemarkKind::kSizesDoNotDivide) + 1);
    return ids;
  }();
  return names.at(static_cast<size_t>(kind));
}

RemarkWeight WeightOf(RemarkKind kind) {
  if (kind >= RemarkKind::kUnknownLayerType) return RemarkWeight::kError;
  return kind >= RemarkKind::kUnknownModelType ? RemarkWeight::kWarning : RemarkWeight::kNote;
}

}  // namespace rope::kernels
