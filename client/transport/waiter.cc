#include "client/transport/waiter.h"

#include <cstdint>
#include <fstream>

namespace rope::client {
namespace {

thread_local const CallbackOwner* owner_of_thread = nullptr;

}  // namespace

void EnterCallbackThread(const CallbackOwner& owner) {
  owner_of_thread = &owner;
}

bool IsCallbackThreadOf(const CallbackOwner& owner) {
  return owner_of_thread == &owner;
}

namespace {

using std::chrono::microseconds;

// Whether the control group limits this process to one processor or less.
bool IsLimitedToOneProcessor() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0;
  int64_t period = 0;
  return (file >> quota >> period) && quota <= period;  // "max" is not a number: no limit
}

microseconds DefaultSpin() {
  const bool alone = std::thread::hardware_concurrency() <= 1 || IsLimitedToOneProcessor();
  return microseconds(alone ? 0 : 200);
}

}  // namespace

microseconds SpinOf(const ConnectOptions& options) {
  return std::clamp<microseconds>(options.spin.value_or(DefaultSpin()), microseconds(0),
                                  std::chrono::seconds(1));
}

}  // namespace rope::client
