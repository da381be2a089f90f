#include "server/admission.h"

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {

Permit::~Permit() {
  if (admission_ != nullptr) admission_->Release(bytes_);
}

absl::StatusOr<Permit> Admission::Admit(int64_t bytes) {
  const auto amount = static_cast<uint64_t>(bytes);
  if (amount > bytes_.max()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "request: got ", bytes, " bytes of input and output, want at most ", bytes_.max()));
  }
  if (!requests_.Take(1)) {
    return RetryLater(absl::StrCat("queue: got request number ", requests_.max() + 1,
                                   ", want at most ", requests_.max(), " at a time"),
                      limits::kRetryDelayMs);
  }
  if (!bytes_.Take(amount)) {
    requests_.Give(1);
    return RetryLater(absl::StrCat("queue: got ", bytes, " bytes beside ", bytes_.held(),
                                   ", want at most ", bytes_.max(), " at a time"),
                      limits::kRetryDelayMs);
  }
  Permit permit;
  permit.admission_ = this;
  permit.bytes_ = bytes;
  return permit;
}

void Admission::Release(int64_t bytes) {
  requests_.Give(1);
  bytes_.Give(static_cast<uint64_t>(bytes));
}

}  // namespace rope::server
