#include "tests/support/closed_loop.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "rope/v1/rotate.pb.h"

namespace rope::testing {
namespace {

using Kind = CallOutcome::Kind;

constexpr std::chrono::seconds kTimeout{20};
constexpr std::chrono::milliseconds kPauseAfterFailure{10};
constexpr double kErrorMax = 2e-6;

// What the server's trailers tell to wait; 0: nothing.
std::chrono::milliseconds PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  int64_t delay_ms = 0;
  if (found == trailers.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &delay_ms)) {
    return {};
  }
  return std::chrono::milliseconds(delay_ms);
}

CallOutcome OutcomeOf(const grpc::Status& status, const grpc::ClientContext& context) {
  const std::chrono::milliseconds pushback = PushbackOf(context);
  CallOutcome outcome;
  outcome.text = Text(status);
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      outcome.kind = Kind::kFailed;
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      outcome.kind = Kind::kHung;
      break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (pushback.count() > 0) outcome.kind = Kind::kRefused;
      outcome.delay = pushback;
      break;
    default:
      break;
  }
  return outcome;
}

}  // namespace

Payload::Payload(const Sample& sample) : sample_(sample), want_(sample.Rotated()) {
  const grpc::Slice bytes(sample.Inline().SerializeAsString());
  request_ = grpc::ByteBuffer(&bytes, 1);
}

bool Payload::IsRight(const void* data, size_t count) const {
  if (count != sample_.bytes()) return false;
  const auto* const bytes = static_cast<const char*>(data);
  for (size_t i = 0; i < want_.size(); ++i) {
    float value = 0;
    std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    if (!(std::fabs(value - want_[i]) <= kErrorMax)) return false;
  }
  return true;
}

bool Payload::IsRight(const grpc::ByteBuffer& response) const {
  grpc::ByteBuffer bytes = response;  // reading takes them
  v1::RotateResponse message;
  if (!grpc::SerializationTraits<v1::RotateResponse>::Deserialize(&bytes, &message).ok()) {
    return false;
  }
  if (message.tensors_size() != 1) return false;
  const std::string& raw = message.tensors(0).array().raw();
  return IsRight(raw.data(), raw.size());
}

CallOutcome StubCaller::Call(const Payload& payload) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  context.set_wait_for_ready(waits_);
  const auto call =
      stub_.PrepareUnaryCall(&context, "/rope.v1.RopeService/Rotate", payload.request(), &queue_);
  grpc::ByteBuffer response;
  grpc::Status status;
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue_.Next(&tag, &ok);
  if (!status.ok()) return OutcomeOf(status, context);
  const bool right = payload.IsRight(response);
  return {.kind = right ? Kind::kAnswered : Kind::kWrong, .text = right ? "" : "a wrong answer"};
}

std::string CallTally::ToString() const {
  std::string text =
      absl::StrCat(sent, " sent = ", answered, " answered + ", refused, " refused with a delay + ",
                   failed, " failed + ", wrong, " wrong + ", hung, " hung + ", other, " other");
  if (answered_ms.empty()) return text;
  const auto quantile = [this](size_t percent) {
    return answered_ms[std::min(answered_ms.size() - 1, answered_ms.size() * percent / 100)];
  };
  absl::StrAppendFormat(&text, "; of the answered p50 %.1f, p99 %.1f, max %.1f ms", quantile(50),
                        quantile(99), answered_ms.back());
  return text;
}

ClosedLoop::ClosedLoop(std::vector<Client> clients) : answered_(clients.size()) {
  for (size_t i = 0; i < clients.size(); ++i) {
    threads_.emplace_back([this, i, client = std::move(clients[i])] { Run(i, client); });
  }
}

ClosedLoop::~ClosedLoop() {
  Stop();
}

void ClosedLoop::Run(size_t index, const Client& client) {
  while (!stop_.HasBeenNotified()) {
    ++sent_;
    const auto begin = std::chrono::steady_clock::now();
    const CallOutcome outcome = client();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    {
      const proto::MutexLock lock(&mu_);
      Record(index, outcome, took.count());
      changed_.SignalAll();
    }
    if (outcome.kind == Kind::kAnswered) continue;
    stop_.WaitForNotificationWithTimeout(std::max(outcome.delay, kPauseAfterFailure));
  }
}

bool ClosedLoop::AwaitChange(std::chrono::steady_clock::time_point end) {
  const auto left = end - std::chrono::steady_clock::now();
  if (left.count() <= 0) return false;
  changed_.WaitFor(&mu_, left);
  return true;
}

void ClosedLoop::Record(size_t index, const CallOutcome& outcome, double milliseconds) {
  const bool trouble =
      outcome.kind == Kind::kWrong || outcome.kind == Kind::kHung || outcome.kind == Kind::kOther;
  if (trouble && tally_.first_trouble.empty()) tally_.first_trouble = outcome.text;
  switch (outcome.kind) {
    case Kind::kAnswered:
      ++tally_.answered;
      ++answered_[index];
      tally_.answered_ms.push_back(milliseconds);
      break;
    case Kind::kWrong:
      ++tally_.wrong;
      break;
    case Kind::kRefused:
      ++tally_.refused;
      break;
    case Kind::kFailed:
      ++tally_.failed;
      if (tally_.first_failure.empty()) tally_.first_failure = outcome.text;
      break;
    case Kind::kHung:
      ++tally_.hung;
      break;
    case Kind::kOther:
      ++tally_.other;
      break;
  }
}

bool ClosedLoop::AwaitAnswers(int64_t count, std::chrono::seconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  const proto::MutexLock lock(&mu_);
  const int64_t want = tally_.answered + count;
  while (tally_.answered < want) {
    if (!AwaitChange(end)) return false;
  }
  return true;
}

bool ClosedLoop::AwaitAnswersOfEach(int64_t each, std::chrono::seconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  const proto::MutexLock lock(&mu_);
  std::vector<int64_t> want = answered_;
  for (int64_t& count : want) count += each;
  while (!std::equal(answered_.begin(), answered_.end(), want.begin(), std::greater_equal<>())) {
    if (!AwaitChange(end)) return false;
  }
  return true;
}

CallTally ClosedLoop::Stop() {
  if (!stop_.HasBeenNotified()) stop_.Notify();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  const proto::MutexLock lock(&mu_);
  tally_.sent = sent_;
  std::sort(tally_.answered_ms.begin(), tally_.answered_ms.end());
  return tally_;
}

}  // namespace rope::testing
