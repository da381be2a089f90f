#include "client/codec/kept_request.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/codec/messages.h"
#include "client/codec/placement.h"
#include "kernels/status_macros.h"

namespace rope::client {

Result<std::unique_ptr<const KeptRequest>> Keep(const RotateRequest& request,
                                                const Region& region) {
  auto kept = std::make_unique<KeptRequest>();
  kept->request = request;
  std::vector<std::pair<std::string, ArrayView*>> views;
  for (const RowArray& each : kRowArrays) {
    if (!request.rows.has_value()) break;
    std::optional<ArrayView>& view = *kept->request.rows.*each.view;
    if (!view.has_value()) continue;
    ROPE_ASSIGN_OR_RETURN(const int64_t bytes, ArrayBytes(each.field, *view));
    if (!RangeIn(region, view->data, bytes).has_value()) views.emplace_back(each.field, &*view);
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
