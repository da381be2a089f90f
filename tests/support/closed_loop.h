// Clients that call again as soon as they are answered, and a record of every call's outcome.
//
// Threading:  Payload is thread-safe once made. A StubCaller is confined to one thread at a time;
//             a ClosedLoop to the thread that made it, and has one thread for each client.
#ifndef ROPE_TESTS_SUPPORT_CLOSED_LOOP_H_
#define ROPE_TESTS_SUPPORT_CLOSED_LOOP_H_

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/mutex.h"
#include "tests/support/region_client.h"

namespace rope::testing {

// A request with its tensor in the message, and the right answer to it.
class Payload {
 public:
  explicit Payload(const Sample& sample);

  const Sample& sample() const { return sample_; }
  const grpc::ByteBuffer& request() const { return request_; }
  // True when `count` bytes at `data` are the rotated tensor.
  bool IsRight(const void* data, size_t count) const;
  // True when the answer's message holds the rotated tensor.
  bool IsRight(const grpc::ByteBuffer& response) const;

 private:
  const Sample sample_;
  grpc::ByteBuffer request_;
  std::vector<float> want_;
};

// How one call ended.
struct CallOutcome {
  enum class Kind {
    kAnswered,  // the answer is right
    kWrong,     // OK, with a wrong answer
    kRefused,   // RESOURCE_EXHAUSTED with a retry delay
    kFailed,    // UNAVAILABLE or CANCELLED: the server drains, or the connection is lost
    kHung,      // not answered within its deadline of 20 seconds
    kOther,     // any other code
  };
  Kind kind = Kind::kOther;
  std::chrono::milliseconds delay{0};  // the retry delay of kRefused
  std::string text;                    // what was wrong, or the code and message
};

// Calls Rotate on a channel, one call at a time.
class StubCaller {
 public:
  // `waits`: a call waits for a connection; otherwise it fails without one.
  StubCaller(std::shared_ptr<grpc::Channel> channel, bool waits)
      : stub_(std::move(channel)), waits_(waits) {}

  CallOutcome Call(const Payload& payload);

 private:
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  const bool waits_;
};

// Sums over all clients; `sent` is the sum of the other counts.
struct CallTally {
  int64_t sent = 0;
  int64_t answered = 0;
  int64_t wrong = 0;
  int64_t refused = 0;
  int64_t failed = 0;
  int64_t hung = 0;
  int64_t other = 0;
  std::string first_trouble;        // of wrong, hung and other calls
  std::string first_failure;        // of failed calls
  std::vector<double> answered_ms;  // latencies of answered calls, in ascending order

  // "120 sent = 90 answered + ...; p99 of the answered 12.3 ms".
  std::string ToString() const;
};

class ClosedLoop {
 public:
  using Client = std::function<CallOutcome()>;  // one call; the client's own thread runs it

  // Starts a thread for each client. After a refusal a client pauses for the retry delay, after a
  // failure for a moment.
  explicit ClosedLoop(std::vector<Client> clients);
  ~ClosedLoop();
  ClosedLoop(const ClosedLoop&) = delete;
  ClosedLoop& operator=(const ClosedLoop&) = delete;

  // Returns once all clients together have `count` more right answers, or every client has `each`
  // more. False: not within `bound`.
  bool AwaitAnswers(int64_t count, std::chrono::seconds bound);
  bool AwaitAnswersOfEach(int64_t each, std::chrono::seconds bound);

  // Stops calling and waits for the calls in flight.
  CallTally Stop();

 private:
  void Run(size_t index, const Client& client);
  void Record(size_t index, const CallOutcome& outcome, double milliseconds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a change until `end`. False: `end` has passed.
  bool AwaitChange(std::chrono::steady_clock::time_point end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

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
