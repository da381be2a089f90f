// A backend that does not rotate: it counts jobs and returns the status that a test sets.
#ifndef ROPE_TESTS_SUPPORT_FAKE_BACKEND_H_
#define ROPE_TESTS_SUPPORT_FAKE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace rope::testing {

// Threading:  One thread.
class FakeBackend final : public kernels::Backend {
 public:
  explicit FakeBackend(std::string name = "fake") : name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  std::string detail() const override { return "rotates nothing"; }
  absl::Status Rotate(absl::Span<const kernels::RotateJob> jobs) override {
    ++calls;
    jobs_seen += static_cast<int64_t>(jobs.size());
    if (on_rotate) on_rotate(jobs);
    return answer;
  }

  absl::Status answer;
  std::function<void(absl::Span<const kernels::RotateJob>)> on_rotate;  // may be empty
  int64_t calls = 0;
  int64_t jobs_seen = 0;

 private:
  const std::string name_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_BACKEND_H_
