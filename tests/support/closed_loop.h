// Clients that call again as soon as they are answered, and a record of every call's outcome.
#ifndef ROPE_TESTS_SUPPORT_CLOSED_LOOP_H_
#define ROPE_TESTS_SUPPORT_CLOSED_LOOP_H_

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "proto/mutex.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/region_client.h"

namespace rope::testing {

inline constexpr std::chrono::seconds kCallTimeout{20};

// How one call ended.
struct CallOutcome {
  enum Kind {
    kAnswered,  // the answer is right
    kWrong,     // OK, with a wrong answer
    kRefused,   // RESOURCE_EXHAUSTED with a retry delay
    kFailed,    // UNAVAILABLE or CANCELLED: the server drains, or the connection is lost
    kHung,      // not answered within its deadline
    kOther,     // any other code
    kKinds
  };
  static constexpr std::array<const char*, kKinds> kNames = {"answered", "wrong", "refused",
                                                             "failed",   "hung",  "other"};
  // Of a call that ended with this code, and perhaps a retry delay.
  static Kind Of(int code, bool has_delay) {
    switch (code) {
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
        return kFailed;
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return kHung;
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        return has_delay ? kRefused : kOther;
      default:
        return kOther;
    }
  }

  Kind kind = kOther;
  std::string text = {};               // the code and message
  std::chrono::milliseconds delay{0};  // the retry delay of kRefused
};

// A request with its tensor in the message, and the right answer to it.
//
// Threading:  Thread-safe once made.
class Payload {
 public:
  explicit Payload(const Sample& sample) : sample_(sample), want_(sample.Rotated()) {
    const grpc::Slice bytes(sample.Inline().SerializeAsString());
    request_ = grpc::ByteBuffer(&bytes, 1);
  }

  const Sample& sample() const { return sample_; }
  const grpc::ByteBuffer& request() const { return request_; }
  // The outcome of a call that was answered with these bytes.
  CallOutcome Check(const void* data, size_t count) const {
    return {.kind = IsRight(data, count) ? CallOutcome::kAnswered : CallOutcome::kWrong,
            .text = "a wrong answer"};
  }

 private:
  bool IsRight(const void* data, size_t count) const {
    constexpr double kErrorMax = 2e-6;
    if (count != sample_.bytes()) return false;
    const auto* const bytes = static_cast<const char*>(data);
    for (size_t i = 0; i < want_.size(); ++i) {
      float value = 0;
      std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
      if (!(std::fabs(value - want_[i]) <= kErrorMax)) return false;
    }
    return true;
  }

  const Sample sample_;
  const std::vector<float> want_;
  grpc::ByteBuffer request_;
};

// What the server's trailers tell to wait; 0: nothing.
inline std::chrono::milliseconds PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  int64_t delay_ms = 0;
  if (found == trailers.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &delay_ms)) {
    return {};
  }
  return std::chrono::milliseconds(delay_ms);
}

// Calls Rotate on a channel, one call at a time.
//
// Threading:  Confined to one thread at a time.
class StubCaller {
 public:
  // `waits`: a call waits for a connection; otherwise it fails without one.
  StubCaller(std::shared_ptr<grpc::Channel> channel, bool waits)
      : stub_(std::move(channel)), waits_(waits) {}

  CallOutcome Call(const Payload& payload) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    context.set_wait_for_ready(waits_);
    const auto call =
        stub_.PrepareUnaryCall(&context, "/rope.v1.RopeService/Rotate", payload.request(), &queue_);
    grpc::ByteBuffer bytes;
    grpc::Status status;
    call->StartCall();
    call->Finish(&bytes, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    if (!status.ok()) {
      const std::chrono::milliseconds delay = PushbackOf(context);
      return {CallOutcome::Of(status.error_code(), delay.count() > 0), Text(status), delay};
    }
    v1::RotateResponse message;
    if (!grpc::SerializationTraits<v1::RotateResponse>::Deserialize(&bytes, &message).ok() ||
        message.tensors_size() != 1) {
      return {.kind = CallOutcome::kWrong, .text = "no answer of one tensor"};
    }
    const std::string& raw = message.tensors(0).array().raw();
    return payload.Check(raw.data(), raw.size());
  }

 private:
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  const bool waits_;
};

// Sums over all clients.
struct CallTally {
  std::array<int64_t, CallOutcome::kKinds> counts = {};
  std::array<std::string, CallOutcome::kKinds> first = {};  // text of the first call of each kind
  int64_t sent = 0;
  std::vector<double> answered_ms = {};  // latencies of answered calls, in ascending order

  int64_t operator[](CallOutcome::Kind kind) const { return counts[kind]; }
  // "120 sent = 90 answered 0 wrong ...; of the answered p50 1.2, p99 3.4, max 5.6 ms".
  std::string ToString() const {
    std::string text = absl::StrCat(sent, " sent =");
    for (size_t kind = 0; kind < counts.size(); ++kind) {
      absl::StrAppend(&text, " ", counts[kind], " ", CallOutcome::kNames[kind]);
    }
    const auto quantile = [this](size_t percent) {
      const size_t count = answered_ms.size();
      return count == 0 ? 0 : answered_ms[std::min(count - 1, count * percent / 100)];
    };
    return absl::StrFormat("%s; of the answered p50 %.1f, p99 %.1f, max %.1f ms", text,
                           quantile(50), quantile(99), quantile(100));
  }
};

// Clients that call again as soon as they are answered, each on a thread of its own. After a
// refusal a client pauses for the retry delay, after a failure for a moment.
//
// Threading:  Confined to the thread that made it.
class ClosedLoop {
 public:
  using Client = std::function<CallOutcome()>;  // one call

  explicit ClosedLoop(std::vector<Client> clients) : answered_(clients.size()) {
    for (size_t i = 0; i < clients.size(); ++i) {
      threads_.emplace_back([this, i, client = std::move(clients[i])] { Run(i, client); });
    }
  }
  ~ClosedLoop() { Stop(); }

  // Returns once all clients together have `all` more right answers, and each of them `each` more.
  // False: not within `bound`.
  bool AwaitAnswers(int64_t all, int64_t each, std::chrono::seconds bound) {
    const auto end = std::chrono::steady_clock::now() + bound;
    const proto::MutexLock lock(&mu_);
    all += tally_.counts[CallOutcome::kAnswered];
    std::vector<int64_t> want = answered_;
    for (int64_t& count : want) count += each;
    while (tally_.counts[CallOutcome::kAnswered] < all ||
           !std::equal(answered_.begin(), answered_.end(), want.begin(), std::greater_equal<>())) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left.count() <= 0) return false;
      changed_.WaitFor(&mu_, left);
    }
    return true;
  }

  // Stops calling and waits for the calls in flight.
  CallTally Stop() {
    if (!stop_.HasBeenNotified()) stop_.Notify();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    const proto::MutexLock lock(&mu_);
    tally_.sent = sent_;
    std::sort(tally_.answered_ms.begin(), tally_.answered_ms.end());
    return tally_;
  }

 private:
  void Run(size_t index, const Client& client) {
    while (!stop_.HasBeenNotified()) {
      ++sent_;
      const auto begin = std::chrono::steady_clock::now();
      const CallOutcome outcome = client();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      {
        const proto::MutexLock lock(&mu_);
        ++tally_.counts[outcome.kind];
        if (tally_.first[outcome.kind].empty()) tally_.first[outcome.kind] = outcome.text;
        if (outcome.kind == CallOutcome::kAnswered) {
          ++answered_[index];
          tally_.answered_ms.push_back(took.count());
        }
        changed_.SignalAll();
      }
      if (outcome.kind == CallOutcome::kAnswered) continue;
      stop_.WaitForNotificationWithTimeout(std::max(outcome.delay, std::chrono::milliseconds(10)));
    }
  }

  proto::Mutex mu_;
  proto::CondVar changed_;
  std::vector<int64_t> answered_ ABSL_GUARDED_BY(mu_);  // of each client
  CallTally tally_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> sent_ = 0;
  proto::Notification stop_;
  std::vector<std::thread> threads_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_CLOSED_LOOP_H_
