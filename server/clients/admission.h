// Admission: bounds the requests that the server holds, by count and by bytes. The bytes are
// received messages, positions and rows while they are read, outputs, and replies until the client
// has taken them. It rejects; it never blocks.
//
// Each request owns one Permit. The permit grows before each step that allocates memory. When the
// request is answered, the permit keeps only the bytes of the reply:
//
//   Admit -> admitted ---------- KeepReply -> answered -------- ~Permit -> nothing is held
//            1 request, n bytes               the reply's bytes
//            Grow: n increases
//
// One session may use only a part of each budget, so that it cannot starve other sessions. The
// limits of the caller's identity (access.h) hold beside.
//
// Threading:  Thread-safe, without a lock. A Permit is confined to its owner.
// Ownership:  A Permit returns its share when destroyed. It may not outlive the Admission.
// Errors:     RESOURCE_EXHAUSTED with a retry delay: the budget is full now. RESOURCE_EXHAUSTED
//             without a delay: the request is larger than the session's part of the budget, so
//             that waiting cannot help.
// Limits:     Sessions are counted in kSessionSlots slots. Sessions whose numbers map to the same
//             slot share one part.
#ifndef ROPE_SERVER_CLIENTS_ADMISSION_H_
#define ROPE_SERVER_CLIENTS_ADMISSION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/clients/access.h"

namespace rope::server {

// Budget: a counter with an upper bound. Every request passes through it, so it takes no lock.
//
// Threading:  Thread-safe. A refusal is exact: at that moment the amount did not fit.
class Budget {
 public:
  explicit Budget(uint64_t max) : max_(max) {}

  // False: less than `amount` is left; nothing is acquired.
  bool TryAcquire(uint64_t amount) {
    uint64_t held = held_.load();
    do {
      if (amount > max_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + amount));
    return true;
  }
  // REQUIRES: `amount` was acquired.
  void Give(uint64_t amount) { held_.fetch_sub(amount); }

  uint64_t held() const { return held_.load(); }
  uint64_t max() const { return max_; }

 private:
  const uint64_t max_;
  std::atomic<uint64_t> held_ = 0;  // at most max_
};

class Admission;

class Permit {
 public:
  Permit() = default;
  Permit(Permit&& other) noexcept { *this = std::move(other); }
  Permit& operator=(Permit&& other) noexcept {
    std::swap(admission_, other.admission_);
    std::swap(use_, other.use_);
    std::swap(session_, other.session_);
    std::swap(bytes_, other.bytes_);
    std::swap(answered_, other.answered_);
    return *this;
  }
  ~Permit();

  // Adds `bytes` to the permit. `what` names the request's field in the error. If the bytes are
  // refused, nothing changes. REQUIRES: admitted().
  absl::Status Grow(int64_t bytes, absl::string_view what);
  // Gives back all bytes beyond `bytes`.
  void Shrink(int64_t bytes);
  // The request is answered: returns its place, and all bytes beyond the `bytes` of its reply.
  // REQUIRES: called at most once.
  void KeepReply(int64_t bytes);

  bool admitted() const { return admission_ != nullptr; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Admission;
  // Give back, to the session, the server and the identity.
  void GiveRequest();
  void GiveBytes(int64_t bytes);

  Admission* admission_ = nullptr;
  std::shared_ptr<IdentityUse> use_;  // null: there is no access file
  int64_t bytes_ = 0;
  uint32_t session_ = 0;  // the session's slot
  bool answered_ = false;
};

class Admission {
 public:
  static constexpr size_t kSessionSlots = 4096;

  struct Options {
    int64_t requests_max = 0;
    int64_t bytes_max = 0;
    int64_t session_requests_max = 0;
    int64_t session_bytes_max = 0;
  };
  // The number of refusals, by reason.
  template <typename Number>
  struct RefusalsOf {
    Number too_large = 0;         // larger than a session's part: never admissible
    Number requests = 0;          // the server had no place for a request
    Number bytes = 0;             // the server had no bytes left
    Number session_requests = 0;  // the session had used its part of the requests
    Number session_bytes = 0;     // the session had used its part of the bytes
  };
  using Refusals = RefusalsOf<int64_t>;

  // Options by which one session may use half of each budget.
  static Options HalfForASession(int64_t requests_max, int64_t bytes_max) {
    return {requests_max, bytes_max, (requests_max + 1) / 2, bytes_max / 2};
  }

  // REQUIRES: no bound is negative.
  explicit Admission(const Options& options);

  // Acquires a place for one request and `bytes` of memory for it. `use`: of the identity that
  // calls, whose limits hold too; null: there is none.
  absl::StatusOr<Permit> Admit(uint64_t session, int64_t bytes,
                               std::shared_ptr<IdentityUse> use = nullptr);
  // Adds `bytes` to a permit of the session, which is admitted first if it holds nothing yet.
  // Errors: as Permit::Grow.
  absl::Status Extend(uint64_t session, int64_t bytes, absl::string_view what, Permit& permit,
                      std::shared_ptr<IdentityUse> use = nullptr);

  const Options& options() const { return options_; }
  int64_t requests() const { return static_cast<int64_t>(requests_.held()); }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.held()); }
  Refusals refusals() const;

 private:
  friend class Permit;
  struct Session {
    std::atomic<int64_t> requests{0};
    std::atomic<int64_t> bytes{0};
  };

  absl::Status AdmitRequest(Session& session);
  absl::Status AdmitBytes(Session& session, int64_t held, int64_t bytes, absl::string_view what);

  const Options options_;
  Budget requests_;
  Budget bytes_;
  const std::unique_ptr<std::array<Session, kSessionSlots>> sessions_;
  RefusalsOf<std::atomic<int64_t>> refused_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_ADMISSION_H_
