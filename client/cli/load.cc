#include "client/cli/load.h"

#include <atomic>
#include <cstddef>
#include <latch>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace rope::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPositions = 128 * 1024;  // sequences begin again there
constexpr int64_t kPositionsApart = 1000;   // of sequences at their beginning

// Says whether another request may start.
class Budget {
 public:
  explicit Budget(const LoadPlan& plan)
      : counts_(plan.requests.has_value()),
        left_(plan.requests.value_or(0)),
        end_(Clock::now() + plan.duration) {}

  bool Take() {
    return counts_ ? left_.fetch_sub(1, std::memory_order_relaxed) > 0 : Clock::now() < end_;
  }

 private:
  const bool counts_;
  std::atomic<int64_t> left_;
  const Clock::time_point end_;
};

// One request in flight: its memory, where its sequence stands, what came of it so far.
class Slot {
 public:
  Slot(const LoadPlan& plan, int64_t index) : tokens_(plan.tokens) {
    position_ = index * kPositionsApart % kPositions;
    request_.rope = plan.rope;
    Add(plan, Role::kQ, plan.heads);
    if (plan.kv_heads > 0) Add(plan, Role::kK, plan.kv_heads);
  }

  // The request to send now.
  const RotateRequest& Begin() {
    request_.positions.start = position_;
    position_ = (position_ + tokens_) % kPositions;
    begin_ = Clock::now();
    return request_;
  }
  void End(const Status& status) {
    if (status.ok()) return result_.latencies.Add(Clock::now() - begin_);
    ++result_.errors[Name(status.code())];
    if (result_.first_error.empty()) result_.first_error = status.ToString();
  }
  const LoadResult& result() const { return result_; }

 private:
  void Add(const LoadPlan& plan, Role role, int64_t heads) {
    const int64_t elements = plan.tokens * heads * plan.head_dim;
    const auto words = static_cast<size_t>(elements * ElementBytes(plan.dtype) / 2);
    memory_.emplace_back(words, uint16_t{0x3f80});  // near 1 in each type
    const void* data = memory_.back().data();
    memory_.emplace_back(words);
    request_.tensors.push_back({.role = role,
                                .layout = "SHD",
                                .dtype = plan.dtype,
                                .shape = {plan.tokens, heads, plan.head_dim},
                                .data = data,
                                .output = memory_.back().data()});
  }

  const int64_t tokens_;
  int64_t position_ = 0;
  std::vector<std::vector<uint16_t>> memory_;
  RotateRequest request_;
  Clock::time_point begin_;
  LoadResult result_;
};

using Slots = std::vector<std::unique_ptr<Slot>>;

void RunInline(const LoadPlan& plan, const std::vector<Client>& clients, const Slots& slots) {
  Budget budget(plan);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < slots.size(); ++i) {
    threads.emplace_back([&plan, &budget, &client = clients[i], &slot = *slots[i]] {
      while (budget.Take()) slot.End(client.Rotate(slot.Begin(), plan.call).status());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The slots on one stream.
class StreamRun {
 public:
  StreamRun(const LoadPlan& plan, RotateStream stream, const Slots& slots)
      : budget_(plan), stream_(std::move(stream)), running_(static_cast<ptrdiff_t>(slots.size())) {}

  void Run(const Slots& slots) {
    for (const auto& slot : slots) SendNext(*slot);
    running_.wait();
    // What ended the stream early, the slots have counted.
    static_cast<void>(stream_.Finish());
  }

 private:
  // Its callback does the same again.
  void SendNext(Slot& slot) {
    if (!budget_.Take()) return running_.count_down();
    const Status status =
        stream_.Rotate(slot.Begin(), [this, &slot](const Result<RotateReply>& reply) {
          slot.End(reply.status());
          SendNext(slot);
        });
    if (status.ok()) return;
    slot.End(status);  // the stream has ended
    running_.count_down();
  }

  Budget budget_;
  RotateStream stream_;
  std::latch running_;
};

Status RunStream(const LoadPlan& plan, const Client& client, const Slots& slots) {
  // The slots are the only bound.
  Result<RotateStream> stream =
      client.OpenStream({.requests_max = std::numeric_limits<int64_t>::max(),
                         .bytes_max = std::numeric_limits<int64_t>::max()});
  if (!stream.ok()) return stream.status();
  StreamRun(plan, *std::move(stream), slots).Run(slots);
  return {};
}

LoadResult Sum(const Slots& slots) {
  LoadResult sum;
  for (const auto& slot : slots) {
    sum.latencies.Merge(slot->result().latencies);
    for (const auto& [code, count] : slot->result().errors) sum.errors[code] += count;
    if (sum.first_error.empty()) sum.first_error = slot->result().first_error;
  }
  return sum;
}

}  // namespace

Result<LoadResult> RunLoad(const LoadPlan& plan, const std::function<Result<Client>()>& connect) {
  const bool is_stream = plan.transport == LoadTransport::kStream;
  std::vector<Client> clients;
  for (int64_t i = 0; i < (is_stream ? 1 : plan.concurrency); ++i) {
    Result<Client> client = connect();
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  Slots slots;
  for (int64_t i = 0; i < plan.concurrency; ++i) slots.push_back(std::make_unique<Slot>(plan, i));
  const Result<RotateReply> first = clients.front().Rotate(Slot(plan, 0).Begin(), plan.call);
  if (!first.ok()) return first.status();

  const auto begin = Clock::now();
  if (is_stream) {
    if (Status status = RunStream(plan, clients.front(), slots); !status.ok()) return status;
  } else {
    RunInline(plan, clients, slots);
  }
  LoadResult result = Sum(slots);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result.device = first->device;
  return result;
}

}  // namespace rope::client
