// The errors of the kernels: values of proto/error.h, from any mix of string types.
#ifndef ROPE_KERNELS_ERROR_H_
#define ROPE_KERNELS_ERROR_H_

#include "absl/status/status.h"
#include "kernels/str_cat.h"
#include "proto/error.h"

namespace rope::kernels {

using proto::Reason;

template <typename Field, typename Got, typename Want>
absl::Status MakeError(Reason reason, const Field& field, const Got& got, const Want& want) {
  return proto::MakeError(reason, ToAbsl(field), ToAbsl(got), ToAbsl(want));
}

// INVALID_ARGUMENT "<field>: got <got>, want <want>".
template <typename Field, typename Got, typename Want>
absl::Status InvalidField(const Field& field, const Got& got, const Want& want) {
  return MakeError(Reason::kInvalidField, field, got, want);
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_ERROR_H_
