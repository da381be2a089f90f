#include "client/codec/kept_request.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/codec/messages.h"
#include "kernels/status_macros.h"

namespace rope::client {

Result<std::unique_ptr<const KeptRequest>> Keep(const RotateRequest& request) {
  auto kept = std::make_unique<KeptRequest>();
  kept->request = request;
  std::vector<std::pair<std::string, ArrayView*>> views;
  if (kept->request.rows.has_value()) {
    Rows& rows = *kept->request.rows;
    if (rows.angles.has_value()) views.emplace_back("rows.angles", &*rows.angles);
    if (rows.cos.has_value()) views.emplace_back("rows.cos", &*rows.cos);
    if (rows.sin.has_value()) views.emplace_back("rows.sin", &*rows.sin);
  }
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    std::optional<HeadNorm>& norm = kept->request.tensors[i].norm;
    if (!norm.has_value()) continue;
    views.emplace_back(absl::StrCat("tensors[", i, "].norm.weight"), &norm->weight);
  }
  for (const auto& [field, view] : views) {
    v1::Array array;
    ROPE_RETURN_IF_ERROR(SetArray(field, *view, array));
    view->data = kept->arrays.emplace_back(std::move(*array.mutable_raw())).data();
  }
  return std::unique_ptr<const KeptRequest>(std::move(kept));
}

}  // namespace rope::client
