#include "client/codec/kept_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/codec/messages.h"
#include "client/codec/placement.h"

namespace rope::client {

Result<std::unique_ptr<const KeptRequest>> KeptRequest::Of(const RotateRequest& request,
                                                           const Region& region) {
  std::unique_ptr<KeptRequest> kept(new KeptRequest(request));  // the constructor is private
  if (Status status = kept->CopyArrays(region); !status.ok()) return status;
  return std::unique_ptr<const KeptRequest>(std::move(kept));
}

Status KeptRequest::CopyArrays(const Region& region) {
  if (request_.rows.has_value()) {
    for (const RowArray& each : kRowArrays) {
      std::optional<ArrayView>& view = *request_.rows.*each.view;
      if (!view.has_value()) continue;
      const Result<int64_t> bytes = ArrayBytes(each.field, *view);
      if (!bytes.ok()) return bytes.status();
      if (RangeIn(region, view->data, *bytes).has_value()) continue;
      if (Status status = CopyArray(each.field, *view); !status.ok()) return status;
    }
  }
  for (size_t i = 0; i < request_.tensors.size(); ++i) {
    std::optional<HeadNorm>& norm = request_.tensors[i].norm;
    if (!norm.has_value()) continue;
    Status status = CopyArray(absl::StrCat("tensors[", i, "].norm.weight"), norm->weight);
    if (!status.ok()) return status;
  }
  return {};
}

Status KeptRequest::CopyArray(const std::string& field, ArrayView& view) {
  v1::Array array;
  if (Status status = SetArray(field, view, array); !status.ok()) return status;
  view.data = arrays_.emplace_back(std::move(*array.mutable_raw())).data();
  return {};
}

}  // namespace rope::client
