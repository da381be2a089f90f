#include "server/clients/admission.h"

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

void Count(std::atomic<int64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
}

// Adds `amount`, unless the sum would exceed `max`. The sum is written first and taken back if it
// is too large, which costs no loop on the success path. In between, `held` may exceed `max` for an
// instant, so that a concurrent caller may be refused although its amount would fit. The counter
// never stays above `max`.
bool TryAdd(std::atomic<int64_t>& held, int64_t amount, int64_t max) {
  if (held.fetch_add(amount) <= max - amount) return true;
  held.fetch_sub(amount);
  return false;
}

absl::Status QueueFull(int64_t held, int64_t max, absl::string_view whose) {
  return RetryLater(Reason::kQueueFull, "queue",
                    absl::StrCat("1 request while ", held, " are held"),
                    absl::StrCat("at most ", max, whose));
}

absl::Status BudgetFull(absl::string_view what, int64_t bytes, int64_t held, int64_t max,
                        absl::string_view whose) {
  return RetryLater(Reason::kBudgetFull, what,
                    absl::StrCat(bytes, " bytes while ", held, " are held"),
                    absl::StrCat("at most ", max, whose));
}

constexpr absl::string_view kOfTheServer = " (--memory_bytes)";
constexpr absl::string_view kOfASession = " for one connection (--memory_bytes)";

}  // namespace

// How admission works: each budget is a single atomic counter, and no lock is held anywhere. Two
// counters guard each quantity, the session's and the server's. They are acquired in this order:
//
//   session requests -> server requests -> session bytes -> server bytes
//
// When one is full, the caller gives back those acquired before it and returns the error. The
// session's counter comes first, so that a session beyond its part never touches the counter that
// all sessions share.

Permit::~Permit() {
  if (admission_ == nullptr) return;
  if (!answered_) GiveRequest();
  GiveBytes(bytes_);
}

void Permit::GiveRequest() {
  (*admission_->sessions_)[session_].requests.fetch_sub(1);
  admission_->requests_.Give(1);
  if (use_ != nullptr) use_->GiveRequest();
}

void Permit::GiveBytes(int64_t bytes) {
  (*admission_->sessions_)[session_].bytes.fetch_sub(bytes);
  admission_->bytes_.Give(static_cast<uint64_t>(bytes));
  if (use_ != nullptr) use_->GiveBytes(bytes);
}

absl::Status Permit::Grow(int64_t bytes, absl::string_view what) {
  if (bytes <= 0) return absl::OkStatus();
  if (use_ != nullptr) ROPE_RETURN_IF_ERROR(use_->TakeBytes(bytes, bytes_, what));
  Admission::Session& session = (*admission_->sessions_)[session_];
  absl::Status status = admission_->AdmitBytes(session, bytes_, bytes, what);
  if (status.ok()) {
    bytes_ += bytes;
  } else if (use_ != nullptr) {
    use_->GiveBytes(bytes);
  }
  return status;
}

void Permit::Shrink(int64_t bytes) {
  if (bytes >= bytes_) return;
  GiveBytes(bytes_ - bytes);
  bytes_ = bytes;
}

void Permit::KeepReply(int64_t bytes) {
  if (admission_ == nullptr) return;
  GiveRequest();
  answered_ = true;
  Shrink(bytes);
}

Admission::Admission(const Options& options)
    : options_(options),
      requests_(static_cast<uint64_t>(options.requests_max)),
      bytes_(static_cast<uint64_t>(options.bytes_max)),
      sessions_(std::make_unique<std::array<Session, kSessionSlots>>()) {}

absl::StatusOr<Permit> Admission::Admit(uint64_t session, int64_t bytes,
                                        std::shared_ptr<IdentityUse> use) {
  const size_t slot = session % kSessionSlots;
  if (use != nullptr) ROPE_RETURN_IF_ERROR(use->TakeRequest());
  if (absl::Status status = AdmitRequest((*sessions_)[slot]); !status.ok()) {
    if (use != nullptr) use->GiveRequest();
    return status;
  }
  Permit permit;
  permit.admission_ = this;
  permit.use_ = std::move(use);
  permit.session_ = static_cast<uint32_t>(slot);
  ROPE_RETURN_IF_ERROR(permit.Grow(bytes, "request"));
  return permit;
}

absl::Status Admission::Extend(uint64_t session, int64_t bytes, absl::string_view what,
                               Permit& permit, std::shared_ptr<IdentityUse> use) {
  if (permit.admitted()) return permit.Grow(bytes, what);
  ROPE_ASSIGN_OR_RETURN(Permit admitted, Admit(session, 0, std::move(use)));
  ROPE_RETURN_IF_ERROR(admitted.Grow(bytes, what));
  permit = std::move(admitted);
  return absl::OkStatus();
}

absl::Status Admission::AdmitRequest(Session& session) {
  if (!TryAdd(session.requests, 1, options_.session_requests_max)) {
    Count(refused_.session_requests);
    return QueueFull(options_.session_requests_max, options_.session_requests_max,
                     " for one connection");
  }
  if (requests_.TryAcquire(1)) return absl::OkStatus();
  session.requests.fetch_sub(1);
  Count(refused_.requests);
  return QueueFull(requests(), options_.requests_max, "");
}

// `held` is the size of the request's permit so far. Bytes that exceed the session's part together
// with it can never be admitted, so that this error carries no retry delay.
absl::Status Admission::AdmitBytes(Session& session, int64_t held, int64_t bytes,
                                   absl::string_view what) {
  if (bytes > options_.session_bytes_max - held) {
    Count(refused_.too_large);
    return MakeError(Reason::kLimitExceeded, what, absl::StrCat(bytes, " bytes to hold"),
                     absl::StrCat("at most ", options_.session_bytes_max - held, kOfASession));
  }
  if (!TryAdd(session.bytes, bytes, options_.session_bytes_max)) {
    Count(refused_.session_bytes);
    return BudgetFull(what, bytes, session.bytes.load(), options_.session_bytes_max, kOfASession);
  }
  if (bytes_.TryAcquire(static_cast<uint64_t>(bytes))) return absl::OkStatus();
  session.bytes.fetch_sub(bytes);
  Count(refused_.bytes);
  return BudgetFull(what, bytes, this->bytes(), options_.bytes_max, kOfTheServer);
}

Admission::Refusals Admission::refusals() const {
  return {refused_.too_large.load(), refused_.requests.load(), refused_.bytes.load(),
          refused_.session_requests.load(), refused_.session_bytes.load()};
}

}  // namespace rope::server
