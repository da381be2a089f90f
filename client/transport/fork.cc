#include "client/transport/fork.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "client/error.h"

namespace rope::client {
namespace {

std::atomic<int> forks = 0;
std::atomic<int> forks_at_first_connect = -1;  // -1: there was none

}  // namespace

int ForkCount() {
  static std::once_flag registered;
  std::call_once(registered, [] {
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  });
  return forks.load(std::memory_order_relaxed);
}

Status NoteConnect() {
  const int now = ForkCount();
  int first = -1;
  if (forks_at_first_connect.compare_exchange_strong(first, now) || first == now) return {};
  return MakeError(Reason::kWrongState, "target", "a process forked after its parent had connected",
                   "a fork before the first connection, or exec; \"inproc:\" can be connected");
}

Status MadeByParent() {
  return MakeError(Reason::kWrongState, "client", "a connection of the parent process",
                   "one of this process: connect in the child");
}

void KeepUntilExit(std::shared_ptr<void> object) {
  static std::mutex& mutex = *new std::mutex;                   // owned by the process
  static auto& kept = *new std::vector<std::shared_ptr<void>>;  // owned by the process
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(object));
}

}  // namespace rope::client
