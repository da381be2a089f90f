#include "client/transport/waiter.h"

#include <cstdint>
#include <fstream>

namespace rope::client {
namespace {

using std::chrono::microseconds;

thread_local const CallbackOwner* owner_of_thread = nullptr;

// None where the process has one processor or less, of the machine or by its control group.
microseconds DefaultSpin() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0;
  int64_t period = 0;
  // "max" is not a number: no limit.
  const bool is_limited = (file >> quota >> period) && quota <= period;
  return microseconds(is_limited || std::thread::hardware_concurrency() <= 1 ? 0 : 200);
}

}  // namespace

void EnterCallbackThread(const CallbackOwner& owner) {
  owner_of_thread = &owner;
}

bool IsCallbackThreadOf(const CallbackOwner& owner) {
  return owner_of_thread == &owner;
}

microseconds SpinOf(const ConnectOptions& options) {
  return std::clamp<microseconds>(options.spin.value_or(DefaultSpin()), microseconds(0),
                                  std::chrono::seconds(1));
}

}  // namespace rope::client
