// The errors that the client makes itself, and rope::Status of errors of other kinds.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_ERROR_H_
#define ROPE_CLIENT_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rope/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

// "<field>: got <got>, want <want>", with the code of the reason. Without ", want " if `want` is
// empty.
Status MakeError(Reason reason, absl::string_view field, const absl::AlphaNum& got,
                 const absl::AlphaNum& want);

// An error that is no "field: got X, want Y".
Status MakeError(Reason reason, absl::string_view text, bool may_have_executed = false);

// Of a call that its caller cancelled.
inline Status CancelledByCaller(bool may_have_executed) {
  return MakeError(Reason::kCancelled, "cancelled by the caller", may_have_executed);
}

// Of a Fence that would wait for callbacks of its own thread.
inline Status FenceInCallback() {
  return MakeError(Reason::kWrongState, "Fence", "a call in a callback", "one on another thread");
}

// INVALID_ARGUMENT.
inline Status InvalidField(absl::string_view field, const absl::AlphaNum& got,
                           const absl::AlphaNum& want) {
  return MakeError(Reason::kInvalidField, field, got, want);
}

// The same error of the field "<parent>.<field>". REQUIRES: MakeError made it with a field.
Status Within(absl::string_view parent, const Status& status);

Status ToStatus(const absl::Status& status);

// A reason that this library does not know becomes kUnspecified.
ErrorDetail DetailOf(const v1::Error& error);

// The reason of an error that gRPC made: it has a code only.
Reason ReasonOf(StatusCode code);

}  // namespace rope::client

#endif  // ROPE_CLIENT_ERROR_H_
