#include "client/cli/load/load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
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

constexpr int64_t kPositions = 128 * 1024;  // sequences restart at this position
constexpr int64_t kPositionsApart = 1000;   // between the first positions of sequences

// Decides whether another request may start: by count or by time.
class Budget {
 public:
  explicit Budget(const LoadPlan& plan)
      : counts_(plan.requests.has_value()),
        left_(plan.requests.value_or(0)),
        end_(Clock::now() + plan.duration) {}

  bool TryAcquire() {
    return counts_ ? left_.fetch_sub(1, std::memory_order_relaxed) > 0 : Clock::now() < end_;
  }

 private:
  const bool counts_;
  std::atomic<int64_t> left_;
  const Clock::time_point end_;
};

// One request in flight: its memory, the position of its sequence, its results so far.
class Sequence {
 public:
  Sequence(const LoadPlan& plan, int64_t index) : tokens_(plan.tokens) {
    position_ = index * kPositionsApart % kPositions;
    request_.rope = plan.rope;
  }

  // Allocates the tensors; if the plan shares memory, as arena slots that are rotated in place.
  Status Allocate(const LoadPlan& plan, const Arena& arena) {
    Status status = Add(plan, Role::kQ, plan.heads, arena);
    if (!status.ok() || plan.kv_heads == 0) return status;
    return Add(plan, Role::kK, plan.kv_heads, arena);
  }

  // Returns the next request and advances the position.
  const RotateRequest& Begin() {
    request_.positions.start = position_;
    position_ = (position_ + tokens_) % kPositions;
    begin_ = Clock::now();
    return request_;
  }
  void End(const Status& status) {
    if (status.ok()) {
      const std::chrono::duration<float, std::micro> latency = Clock::now() - begin_;
      return result_.latencies_us.push_back(latency.count());
    }
    ++result_.errors[Name(status.code())];
    if (result_.first_error.empty()) result_.first_error = status.ToString();
  }
  const LoadResult& result() const { return result_; }

 private:
  Status Add(const LoadPlan& plan, Role role, int64_t heads, const Arena& arena) {
    const int64_t elements = plan.tokens * heads * plan.head_dim;
    const auto words = static_cast<size_t>(elements * ElementBytes(plan.dtype) / 2);
    uint16_t* data = nullptr;
    uint16_t* output = nullptr;
    if (plan.SharesMemory()) {
      Result<Slot> slot = arena.Allocate(static_cast<int64_t>(words * sizeof(uint16_t)));
      if (!slot.ok()) return slot.status();
      slots_.push_back(*std::move(slot));
      data = output = static_cast<uint16_t*>(slots_.back().data());
      // In place, the factor would be applied again with every call.
      request_.skip_attention_factor = true;
    } else {
      memory_.emplace_back(words);
      data = memory_.back().data();
      memory_.emplace_back(words);
      output = memory_.back().data();
    }
    std::fill_n(data, words, uint16_t{0x3f80});  // a value near 1 in each type
    request_.tensors.push_back({.role = role,
                                .layout = "SHD",
                                .dtype = plan.dtype,
                                .shape = {plan.tokens, heads, plan.head_dim},
                                .data = data,
                                .output = output});
    return {};
  }

  const int64_t tokens_;
  int64_t position_ = 0;
  std::vector<std::vector<uint16_t>> memory_;
  std::vector<Slot> slots_;
  RotateRequest request_;
  Clock::time_point begin_;
  LoadResult result_;
};

using Sequences = std::vector<std::unique_ptr<Sequence>>;

void RunUnary(const LoadPlan& plan, const std::vector<Client>& clients,
              const Sequences& sequences) {
  Budget budget(plan);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sequences.size(); ++i) {
    threads.emplace_back([&plan, &budget, &client = clients[i], &sequence = *sequences[i]] {
      while (budget.TryAcquire()) sequence.End(client.Rotate(sequence.Begin(), plan.call).status());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs all sequences on one stream.
class StreamRun {
 public:
  StreamRun(const LoadPlan& plan, RotateStream stream, const Sequences& sequences)
      : budget_(plan),
        stream_(std::move(stream)),
        running_(static_cast<ptrdiff_t>(sequences.size())) {}

  void Run(const Sequences& sequences) {
    for (const auto& sequence : sequences) SendNext(*sequence);
    running_.wait();
    // If the stream ended early, the sequences have counted the failures.
    static_cast<void>(stream_.Finish());
  }

 private:
  // Sends a request whose callback calls SendNext again.
  void SendNext(Sequence& sequence) {
    if (!budget_.TryAcquire()) return running_.count_down();
    const Status status =
        stream_.Rotate(sequence.Begin(), [this, &sequence](const Result<RotateReply>& reply) {
          sequence.End(reply.status());
          SendNext(sequence);
        });
    if (status.ok()) return;
    sequence.End(status);  // the stream has ended
    running_.count_down();
  }

  Budget budget_;
  RotateStream stream_;
  std::latch running_;
};

Status RunStream(const LoadPlan& plan, const Client& client, const Sequences& sequences) {
  // The number of sequences bounds the requests in flight.
  Result<RotateStream> stream =
      client.OpenStream({.requests_max = std::numeric_limits<int64_t>::max(),
                         .bytes_max = std::numeric_limits<int64_t>::max()});
  if (!stream.ok()) return stream.status();
  StreamRun(plan, *std::move(stream), sequences).Run(sequences);
  return {};
}

LoadResult Sum(const Sequences& sequences) {
  LoadResult sum;
  for (const auto& sequence : sequences) {
    const std::vector<float>& latencies = sequence->result().latencies_us;
    sum.latencies_us.insert(sum.latencies_us.end(), latencies.begin(), latencies.end());
    for (const auto& [code, count] : sequence->result().errors) sum.errors[code] += count;
    if (sum.first_error.empty()) sum.first_error = sequence->result().first_error;
  }
  std::sort(sum.latencies_us.begin(), sum.latencies_us.end());
  return sum;
}

// Sends one request that is not counted.
Result<RotateReply> RotateOnce(const LoadPlan& plan, const Client& client) {
  Sequence sequence(plan, 0);
  if (Status status = sequence.Allocate(plan, client.arena()); !status.ok()) return status;
  return client.Rotate(sequence.Begin(), plan.call);
}

// Creates the sequences: one per client, or all on the only client.
Result<Sequences> MakeSequences(const LoadPlan& plan, const std::vector<Client>& clients) {
  Sequences sequences;
  for (int64_t i = 0; i < plan.concurrency; ++i) {
    const Client& client = clients[clients.size() == 1 ? 0 : static_cast<size_t>(i)];
    sequences.push_back(std::make_unique<Sequence>(plan, i));
    if (Status status = sequences.back()->Allocate(plan, client.arena()); !status.ok()) {
      return status;
    }
  }
  return sequences;
}

std::vector<Transport> TransportsOf(LoadTransport transport) {
  switch (transport) {
    case LoadTransport::kInline:
    case LoadTransport::kStream:
      break;
    case LoadTransport::kStaged:
      return {Transport::kRing, Transport::kMemfd};
    case LoadTransport::kRing:
      return {Transport::kRing};
    case LoadTransport::kMemfd:
      return {Transport::kMemfd};
  }
  return {Transport::kInline};
}

ConnectOptions OptionsOf(const LoadPlan& plan) {
  constexpr int64_t kAlignmentMax = 2 * 4096;  // most that the alignment of q and k adds
  ConnectOptions options;
  options.attempts_max = 1;
  options.transports = TransportsOf(plan.transport);
  if (plan.SharesMemory()) options.arena_bytes = plan.RequestBytes() + kAlignmentMax;
  if (plan.transport == LoadTransport::kStaged) {
    options.staged_bytes = plan.RequestBytes() + kAlignmentMax;
  }
  return options;
}

}  // namespace

const char* Name(LoadTransport transport) {
  switch (transport) {
    case LoadTransport::kInline:
      return "inline";
    case LoadTransport::kStream:
      return "stream";
    case LoadTransport::kStaged:
      return "staged";
    case LoadTransport::kRing:
      return "ring";
    case LoadTransport::kMemfd:
      return "memfd";
  }
  return "unknown";
}

double Percentile(const std::vector<float>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(static_cast<double>(sorted.size()) * percent / 100);
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Result<LoadResult> RunLoad(const LoadPlan& plan,
                           const std::function<Result<Client>(const ConnectOptions&)>& connect) {
  const bool is_stream = plan.transport == LoadTransport::kStream;
  std::vector<Client> clients;
  for (int64_t i = 0; i < (is_stream ? 1 : plan.concurrency); ++i) {
    Result<Client> client = connect(OptionsOf(plan));
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  const Result<RotateReply> first = RotateOnce(plan, clients.front());
  if (!first.ok()) return first.status();
  const Result<Sequences> sequences = MakeSequences(plan, clients);
  if (!sequences.ok()) return sequences.status();

  const auto begin = Clock::now();
  if (is_stream) {
    if (Status status = RunStream(plan, clients.front(), *sequences); !status.ok()) return status;
  } else {
    RunUnary(plan, clients, *sequences);
  }
  LoadResult result = Sum(*sequences);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result.device = first->device;
  return result;
}

}  // namespace rope::client
