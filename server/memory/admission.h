// Admission: how much the server holds for requests, in requests and in bytes: received messages,
// positions and rows as they are read, outputs, and replies until the client has taken them.
// Refuses, never blocks.
//
// A request has one Permit, which grows before each step that takes memory and keeps the bytes of
// the reply when it is answered. One session gets a part of each budget, so that it cannot keep
// others out.
//
// Threading:  Thread-safe, without a lock. A Permit is confined to its owner.
// Ownership:  A Permit gives its share back when destroyed; it may not outlive the Admission.
// Errors:     RESOURCE_EXHAUSTED with a retry delay: full now. RESOURCE_EXHAUSTED without: larger
//             than the session's part of the budget, so that waiting cannot help.
// Limits:     Shares of sessions are kept in kSessionSlots slots; sessions whose numbers fall into
//             the same slot have one part together.
#ifndef ROPE_SERVER_MEMORY_ADMISSION_H_
#define ROPE_SERVER_MEMORY_ADMISSION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/memory/budget.h"

namespace rope::server {

class Admission;

class Permit {
 public:
  Permit() = default;
  Permit(Permit&& other) noexcept { *this = std::move(other); }
  Permit& operator=(Permit&& other) noexcept {
    std::swap(admission_, other.admission_);
    std::swap(session_, other.session_);
    std::swap(bytes_, other.bytes_);
    std::swap(answered_, other.answered_);
    return *this;
  }
  ~Permit();

  // `bytes` more, for `what` (a field of the request, for the error). Nothing changes where they
  // are refused. REQUIRES: it was admitted.
  absl::Status Grow(int64_t bytes, absl::string_view what);
  // The request is answered: gives its place back, and what is above the `bytes` of its reply.
  // REQUIRES: called once at most.
  void KeepReply(int64_t bytes);

  bool admitted() const { return admission_ != nullptr; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Admission;
  Admission* admission_ = nullptr;
  int64_t bytes_ = 0;
  uint32_t session_ = 0;  // slot
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
  // Why requests were refused.
  struct Refusals {
    int64_t too_large = 0;  // for a session's part, at any time
    int64_t requests = 0;   // the server was full of requests
    int64_t bytes = 0;
    int64_t session_requests = 0;  // the session had its part
    int64_t session_bytes = 0;
  };

  // One session may have half of each.
  static Options HalfForASession(int64_t requests_max, int64_t bytes_max) {
    return {requests_max, bytes_max, (requests_max + 1) / 2, bytes_max / 2};
  }

  // REQUIRES: no bound is below 0.
  explicit Admission(const Options& options);

  // A place for a request, and `bytes` of memory.
  absl::StatusOr<Permit> Admit(uint64_t session, int64_t bytes);

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
  void GiveRequest(Session& session);
  void GiveBytes(Session& session, int64_t bytes);

  const Options options_;
  Budget requests_;
  Budget bytes_;
  const std::unique_ptr<std::array<Session, kSessionSlots>> sessions_;
  std::atomic<int64_t> too_large_{0};
  std::atomic<int64_t> full_requests_{0};
  std::atomic<int64_t> full_bytes_{0};
  std::atomic<int64_t> session_requests_{0};
  std::atomic<int64_t> session_bytes_{0};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_ADMISSION_H_
