#include "server/admission.h"

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {

Permit::~Permit() {
  if (admission_ != nullptr) admission_->Release(bytes_);
}

absl::StatusOr<Permit> Admission::Admit(int64_t bytes) {
  if (bytes > bytes_max_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "request: got ", bytes, " bytes of input and output, want at most ", bytes_max_));
  }
  absl::MutexLock lock(&mutex_);
  if (requests_ >= requests_max_) {
    return RetryLater(absl::StrCat("queue: got request number ", requests_ + 1, ", want at most ",
                                   requests_max_, " at a time"),
                      limits::kRetryDelayMs);
  }
  if (bytes > bytes_max_ - bytes_) {
    return RetryLater(absl::StrCat("queue: got ", bytes, " bytes beside ", bytes_,
                                   ", want at most ", bytes_max_, " at a time"),
                      limits::kRetryDelayMs);
  }
  ++requests_;
  bytes_ += bytes;
  Permit permit;
  permit.admission_ = this;
  permit.bytes_ = bytes;
  return permit;
}

int64_t Admission::requests() const {
  absl::MutexLock lock(&mutex_);
  return requests_;
}

int64_t Admission::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

void Admission::Release(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  --requests_;
  bytes_ -= bytes;
}

}  // namespace rope::server
