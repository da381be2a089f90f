#include "server/engine/planner.h"

#include <utility>

#include "server/error.h"

namespace rope::server {

Planner::Planner(Plan plan) : plan_(std::move(plan)), thread_([this] { Loop(); }) {}

Planner::~Planner() {
  Drain();
}

absl::Status Planner::Enqueue(std::unique_ptr<Request>& request) {
  proto::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  const uint64_t session = request->arrival.session;
  Queue& queue = queues_[session];
  if (queue.empty()) turn_.push_back(session);
  queue.push_back(std::move(request));
  work_.Signal();
  return absl::OkStatus();
}

void Planner::Loop() {
  while (true) {
    std::unique_ptr<Request> request;
    {
      proto::MutexLock lock(&mutex_);
      while (turn_.empty() && !draining_) work_.Wait(&mutex_);
      if (turn_.empty()) {
        ended_ = true;
        drained_.SignalAll();
        return;
      }
      request = Next();
    }
    plan_(std::move(request));
  }
}

std::unique_ptr<Request> Planner::Next() {
  const uint64_t session = turn_.front();
  turn_.pop_front();
  const auto queue = queues_.find(session);
  std::unique_ptr<Request> request = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) {
    queues_.erase(queue);
  } else {
    turn_.push_back(session);
  }
  return request;
}

void Planner::Drain(absl::Duration timeout) {
  if (!thread_.joinable()) return;
  {
    proto::MutexLock lock(&mutex_);
    draining_ = true;
    work_.Signal();
    if (timeout < absl::InfiniteDuration() && !ended_ && !abandoned_.load()) {
      drained_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
      abandoned_.store(true);
    }
  }
  thread_.join();
}

void Planner::StopWaiting() {
  proto::MutexLock lock(&mutex_);
  abandoned_.store(true);
  drained_.SignalAll();
}

}  // namespace rope::server
