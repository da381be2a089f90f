// Admission: how much unanswered work the server holds, in requests and in bytes. Rejects, never
// blocks.
//
// Threading:  Thread-safe.
// Ownership:  A Permit gives its share back when destroyed; it may not outlive the Admission.
// Errors:     RESOURCE_EXHAUSTED with a retry delay: full now. RESOURCE_EXHAUSTED without: larger
//             than the whole budget, so waiting cannot help.
#ifndef ROPE_SERVER_ADMISSION_H_
#define ROPE_SERVER_ADMISSION_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "server/budget.h"

namespace rope::server {

class Admission;

class Permit {
 public:
  Permit() = default;
  Permit(Permit&& other) noexcept { *this = std::move(other); }
  Permit& operator=(Permit&& other) noexcept {
    std::swap(admission_, other.admission_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Permit();

 private:
  friend class Admission;
  Admission* admission_ = nullptr;
  int64_t bytes_ = 0;
};

class Admission {
 public:
  // REQUIRES: neither is below 0.
  Admission(int64_t requests_max, int64_t bytes_max)
      : requests_(static_cast<uint64_t>(requests_max)), bytes_(static_cast<uint64_t>(bytes_max)) {}

  absl::StatusOr<Permit> Admit(int64_t bytes);

  int64_t requests() const { return static_cast<int64_t>(requests_.held()); }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.held()); }

 private:
  friend class Permit;
  void Release(int64_t bytes);

  Budget requests_;
  Budget bytes_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ADMISSION_H_
