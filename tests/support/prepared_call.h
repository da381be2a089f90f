// Prepared rotations in tests: cuts a request into what Prepare takes and what each call brings.
#ifndef ROPE_TESTS_SUPPORT_PREPARED_CALL_H_
#define ROPE_TESTS_SUPPORT_PREPARED_CALL_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/message_split.h"
#include "rope/v1/prepare.pb.h"
#include "server/request/prepared_rotation.h"

namespace rope::testing {

// A request without its values.
inline v1::PrepareRequest PrepareOf(const v1::RotateRequest& whole) {
  v1::PrepareRequest request;
  v1::RotateRequest& rotate = *request.mutable_rotate();
  rotate = whole;
  rotate.clear_request_id();
  rotate.clear_labels();
  rotate.clear_positions();
  if (rotate.has_reposition()) rotate.mutable_reposition()->clear_from();
  if (rotate.has_output()) rotate.mutable_output()->clear_regions();
  if (rotate.has_rows()) {
    rotate.mutable_rows()->mutable_cos()->clear_raw();
    rotate.mutable_rows()->mutable_sin()->clear_raw();
  }
  for (v1::Tensor& tensor : *rotate.mutable_tensors()) {
    tensor.mutable_array()->clear_raw();
    tensor.mutable_array()->clear_numbers();
    tensor.mutable_array()->clear_region();
  }
  return request;
}

// The values of a request, as a call of the prepared one. `is_open`: with shapes.
inline v1::RotateRequest CallOf(const v1::RotateRequest& whole, const std::string& prepared_id,
                                bool is_open = false) {
  v1::RotateRequest call;
  call.set_prepared_id(prepared_id);
  call.set_request_id(whole.request_id());
  *call.mutable_labels() = whole.labels();
  if (whole.has_positions()) *call.mutable_positions() = whole.positions();
  if (whole.has_reposition()) call.mutable_reposition();
  if (whole.reposition().has_from()) {
    *call.mutable_reposition()->mutable_from() = whole.reposition().from();
  }
  if (whole.has_rows()) {
    call.mutable_rows()->mutable_cos()->set_raw(whole.rows().cos().raw());
    call.mutable_rows()->mutable_sin()->set_raw(whole.rows().sin().raw());
  }
  for (const v1::RegionSpan& span : whole.output().regions()) {
    *call.mutable_output()->add_regions() = span;
  }
  for (const v1::Tensor& tensor : whole.tensors()) {
    v1::Array& array = *call.add_tensors()->mutable_array();
    array = tensor.array();
    array.clear_dtype();
    array.clear_strides();
    if (!is_open) array.clear_shape();
  }
  return call;
}

// Prepares a request as a server that receives it does.
inline absl::StatusOr<std::shared_ptr<const server::PreparedRotation>> PrepareReceived(
    const v1::PrepareRequest& request, server::ModelRegistry& registry) {
  const std::string bytes = request.SerializeAsString();
  const std::string_view view = bytes;
  auto split = proto::Split(proto::Schema::Of(v1::PrepareRequest::descriptor()),
                            absl::MakeConstSpan(&view, 1));
  if (!split.ok()) return split.status();
  v1::PrepareRequest received;
  if (!received.ParseFromString(split->skeleton)) return absl::InvalidArgumentError("malformed");
  return server::Prepare(received, *split, registry);
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_PREPARED_CALL_H_
