// Random histories of the engine, one for each seed. Requests and calls arrive, are cancelled and
// pass their deadlines, while a device holds batches, ends slices early and fails. In each history:
//
//   1. What is taken is answered once, with a status that its history explains.
//   2. Places and bytes return.
//   3. Sessions take turns.
//   4. What waits in one session, or gathers, runs in the order in which it came.
//   5. A result has the bits of the same request alone.
//
// The engine's threads stop in what the test controls: the batch thread in the device, the side
// thread in a work that ends with the history. They report what they do. The test's thread goes on
// when they have stopped, and compares the reports with what it knows. Until the engine drains, a
// history depends on its seed alone. A thread that does not stop, and batches without end, fail it.
// ROPE_FUZZ_ROUNDS=N sets the number of histories, ROPE_FUZZ_SEED=N the first seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "kernels/backends.h"
#include "kernels/tables/page_builder.h"
#include "proto/mutex.h"
#include "server/engine/engine.h"
#include "server/error.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/local_engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::EmptyRequest;
using ::rope::testing::FuzzRandom;
using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::ReceivedRequest;

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
constexpr int64_t kBatchesMax = 10000;  // of a history: each request a token at a time, and more
constexpr uint64_t kHistories = 4000;   // see every status
constexpr int64_t kBrokenPosition = 1 << 23;  // rows from here on cannot be built

v1::RotateRequest Message(const std::string& layout, const std::vector<int64_t>& shape,
                          int64_t start) {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(shape.back());
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(start);
  v1::Array& array = *AddFloatTensor(request, v1::ROLE_Q, layout, shape).mutable_array();
  std::vector<float> elements(array.raw().size() / sizeof(float));
  std::iota(elements.begin(), elements.end(), -7.0F);
  if (!elements.empty()) array.set_raw(RawBytes(elements));
  return request;
}

std::string ResultOf(const Request& request) {
  std::string result;
  for (const PooledBuffer& output : request.run.outputs) {
    result.append(output.data(), static_cast<size_t>(output.size()));
  }
  return result;
}

// What a client may send, and what it is answered.
struct Offer {
  std::optional<ReceivedRequest> received;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool takes_long = false;  // the side thread plans it
  std::string result = {};  // of all tensors
  int64_t tokens = 0;
  int64_t bytes_per_token = 0;
  JobBounds jobs = {};

  int64_t bytes() const { return tokens * bytes_per_token; }
};

// What the histories share.
class World {
 public:
  World() {
    Add(Message("SHD", {3, 2, 8}, 0));
    Add(Message("SHD", {64, 4, 8}, 9));
    for (const int64_t tokens : {0, 3}) Add(Message("SHD", {tokens, 3 - tokens, 8}, 0));
    Add(Message("BHSD", {2, 3, 7, 8}, 12));
    v1::RotateRequest interleaved = Message("SD", {40, 8}, 77);
    interleaved.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
    Add(interleaved);
    v1::RotateRequest two = Message("SHD", {3, 2, 32}, 100);
    AddFloatTensor(two, v1::ROLE_K, "HSD", {1, 3, 32});
    Add(two);
    v1::RotateRequest layers = Message("LSHD", {2, 3, 1, 128}, 5);
    layers.mutable_rope()->set_config_json(
        R"({"model_type": "gemma3_text", "head_dim": 128, "rope_theta": 1e6,
            "rope_local_base_freq": 1e4, "num_hidden_layers": 4, "sliding_window_pattern": 2})");
    layers.mutable_rope()->set_first_layer(0);
    Add(layers);
    Add(Message("SD", {3, 8}, kBrokenPosition), absl::StatusCode::kInternal);
    for (v1::RotateRequest bad : {Message("SD", {3, 8}, 0), layers}) {
      bad.clear_positions();
      Add(bad, absl::StatusCode::kInvalidArgument);
    }
  }

  const std::shared_ptr<LocalEngine::State> state = std::make_shared<LocalEngine::State>();
  const std::unique_ptr<kernels::Backend> reference =
      kernels::CreateBackend("reference", {}).value();
  kernels::TableCache tables{limits::kTableCacheBytes, &BuildPage};
  PreparedRotations prepared{{}};
  const Offer nothing;  // without tokens and tensors
  std::vector<Offer> offers;
  std::map<absl::StatusCode, int64_t> answers;  // in all histories

 private:
  static absl::StatusOr<std::shared_ptr<kernels::TablePage>> BuildPage(
      const kernels::Frequencies& frequencies, int64_t first) {
    if (first >= kBrokenPosition) return absl::InternalError("page: broken");
    return kernels::BuildPage(frequencies, first);
  }

  void Add(const v1::RotateRequest& message, absl::StatusCode code = absl::StatusCode::kOk) {
    Offer& offer = offers.emplace_back();
    offer.received.emplace(message, /*piece=*/31);
    offer.code = code;
    offer.takes_long = message.rope().has_first_layer();
    const auto finished = alone_.Run(message);
    if (!finished.ok()) {
      EXPECT_EQ(finished.status().code(), code) << finished.status().ToString();
      return;
    }
    offer.result = ResultOf(**finished);
    offer.tokens = (*finished)->plan.tokens;
    offer.bytes_per_token = (*finished)->plan.bytes_per_token;
    offer.jobs = (*finished)->plan.jobs;
  }

  LocalEngine alone_{kernels::CreateBackend("reference", {}).value(), {}, state};
};

// Rotates as the reference does unless it fails. One batch runs at a time.
class Device final : public kernels::Backend {
 public:
  explicit Device(kernels::Backend& reference) : reference_(reference) {}

  std::string_view name() const override { return "simulated"; }
  std::string detail() const override { return ""; }
  absl::Status Rotate(absl::Span<const kernels::RotateJob> jobs) override {
    ++calls;
    return fails ? absl::InternalError("device: broken") : reference_.Rotate(jobs);
  }

  bool fails = false;
  int calls = 0;

 private:
  kernels::Backend& reference_;
};

// What happens to the batch that runs next.
struct Fault {
  enum Kind { kNone, kDeviceFails, kSliceFails, kSliceEnds } kind = kNone;
  uint64_t at = 0;  // the slice
};

// A request of a history.
struct Sent {
  enum Place { kPlanning, kGathered, kQueued, kRunning, kAnswered };

  const Offer* offer;
  uint64_t session;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  absl::Time deadline = absl::InfiniteFuture();
  Place place = kPlanning;
  int64_t ticket = 0;  // grows in the order in which requests gather and queue
  int64_t taken = 0;   // tokens that have run
  bool failed = false;
  absl::Time started = {};
};

// A call of the control plane.
struct Called {
  int steps;
  absl::StatusCode code;  // after the last step
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  int due = 0;  // turns that it should have had
  int stepped = 0;
  int ended = 0;
  absl::Status status = {};
};

// What waits for the side thread: one of the two.
struct Waiting {
  Sent* sent;
  Called* called;
};

// A slice as its batch gets it, or as it has run.
struct Part {
  const Request* request;
  int64_t begin;
  int64_t end;
  bool given_up;
  bool failed;
};

class History {
 public:
  History(World& world, uint64_t seed) : world_(world), random_(seed) {
    // Stops the side thread until the next round. Every session has had a turn then.
    auto anchor = std::make_unique<Work>();
    anchor->step = [this] { return AwaitRound(); };
    anchor->end = [](const absl::Status&) {};
    engine_.side_thread().StartRequest(0, std::move(anchor));
    proto::MutexLock lock(&mutex_);
    while (rounds_ == rounds_released_ && HasNews()) continue;
  }
  ~History() { LetGo(); }

  void Run() {
    for (uint64_t acts = random_.Below(40); acts > 0 && !::testing::Test::HasFailure(); --acts) {
      Act();
      EXPECT_EQ(clients_.accounts.held(Resource::kRequests), unanswered_ + std::ssize(kept_));
    }
    Drain();
  }

 private:
  // What the side thread does.
  struct Work final : SideThread::Work {
    absl::StatusOr<bool> Step() override { return step(); }
    void End(const absl::Status& status) override { end(status); }
    std::function<absl::StatusOr<bool>()> step;
    std::function<void(const absl::Status&)> end;
  };

  // On any thread.
  bool IsHere() const { return std::this_thread::get_id() == thread_; }

  // Reports what happens; the test's thread looks at it later.
  void Log(std::function<void()> event) {
    proto::MutexLock lock(&mutex_);
    events_.push_back({IsHere(), std::move(event)});
    changed_.SignalAll();
  }

  std::vector<Part> PartsOf(absl::Span<const Slice> slices) const {
    std::vector<Part> parts;
    for (const Slice& slice : slices) {
      const Arrival& arrival = slice.request->arrival;
      const bool given_up = arrival.IsCancelled() || arrival.deadline <= clock_.Now();
      parts.push_back({slice.request, slice.begin, slice.end, given_up, !slice.status.ok()});
    }
    return parts;
  }

  void RunBatch(absl::Span<Slice> slices) {
    Log([this, parts = PartsOf(slices), here = IsHere(), now = clock_.Now()] {
      Started(parts, here, now);
    });
    Fault fault = IsHere() ? DrawFault() : AwaitRelease();
    if (++batches_run_ > kBatchesMax) fault = {.kind = Fault::kSliceFails};
    Slice& at = slices[fault.at % slices.size()];
    if (fault.kind == Fault::kSliceFails) at.status = absl::InternalError("slice: broken");
    if (fault.kind == Fault::kSliceEnds && at.end - at.begin > 1) {
      at.end = at.begin + 1;
      for (Slice* later = &at + 1; later < slices.end(); ++later) later->end = later->begin;
    }
    device_.fails = fault.kind == Fault::kDeviceFails;
    device_.calls = 0;
    executor_.Run(slices);
    EXPECT_LE(device_.calls, 1);
    Log([this, parts = PartsOf(slices), now = clock_.Now()] { Ran(parts, now); });
  }

  Fault AwaitRelease() {
    proto::MutexLock lock(&mutex_);
    const int64_t number = ++batches_;
    changed_.SignalAll();
    while (batches_released_ < number) changed_.Wait(&mutex_);
    return std::exchange(fault_, Fault());
  }

  // Waits for another thread. False: it has done nothing for long.
  bool HasNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::chrono::seconds limit(::testing::Test::HasFailure() ? 1 : 60);
    const bool has_news = changed_.WaitFor(&mutex_, limit);
    EXPECT_TRUE(has_news) << "a thread of the engine hangs";
    return has_news;
  }

  bool AwaitRound() {
    proto::MutexLock lock(&mutex_);
    const int64_t number = ++rounds_;
    changed_.SignalAll();
    while (rounds_released_ < number) changed_.Wait(&mutex_);
    return rounds_released_ == kForEver;
  }

  // What happens next, on the test's thread from here on.
  void Act() {
    const uint64_t act = random_.Below(16);
    if (act < 7) return Arrive();
    if (act < 9) return Poll();
    if (act < 12) return Release();
    if (act == 12) return TakeRound();
    if (act == 13) return Call();
    if (act == 14) return Cancel();
    if (random_.OneIn(2)) return kept_.clear();  // replies are read
    clock_.Advance(absl::Microseconds(random_.Below(60)));
  }

  Sent& Add(const Offer& offer, uint64_t session, Request& request) {
    Sent& sent = sent_.emplace_back(Sent{.offer = &offer, .session = session});
    sent.ticket = ++tickets_;
    if (random_.OneIn(8)) sent.deadline = clock_.Now() + absl::Microseconds(random_.Below(60));
    request.arrival.session = session;
    clients_.Fill(request.arrival);
    request.arrival.cancelled = sent.cancelled;
    request.arrival.deadline = sent.deadline;
    request.arrival.transport = random_.OneIn(2) ? Transport::kStream : Transport::kInline;
    request.done = [this, &sent](std::unique_ptr<Request> finished, const absl::Status& status) {
      Log([this, &sent, request = std::shared_ptr<Request>(std::move(finished)), status] {
        Answered(sent, request, status);
      });
    };
    by_request_[&request] = &sent;
    return sent;
  }

  void Arrive() {
    const Offer& offer = random_.OneOf(world_.offers);
    std::unique_ptr<Request> request = offer.received->MakeRequest();
    Sent& sent = Add(offer, 1 + random_.Below(4), *request);
    sent.place = offer.takes_long ? Sent::kPlanning : Sent::kGathered;
    const bool is_free = IsFree();
    const absl::Status status = engine_.Submit(request);
    if (!status.ok()) {
      EXPECT_TRUE(request != nullptr && !request->permit.admitted());
      sent.place = Sent::kAnswered;
      return ExpectRefused(offer, status);
    }
    ++unanswered_;
    if (offer.takes_long) return side_[sent.session].push_back({&sent, nullptr});
    Replay(/*only_here=*/true);
    const bool is_burst = offer.bytes() > options_.gathered_bytes_max &&
                          std::ranges::any_of(sent_, [&sent](const Sent& other) {
                            return other.place == Sent::kGathered && &other != &sent;
                          });
    if (!is_free || offer.bytes() > options_.direct_bytes_max || is_burst) {
      sent.ticket = ++tickets_;  // behind what has gathered
      QueueGathered();
    }
    Settle();
  }

  void Poll() {
    const bool is_free = IsFree();
    const bool ran = batcher_.RunGathered();
    if (!is_free) QueueGathered();
    Settle();
    EXPECT_TRUE(!is_free || ran || CountOf(Sent::kGathered) == 0);
  }

  // Lets the batch go on that the device holds.
  void Release() {
    if (!IsHeld()) return;
    {
      proto::MutexLock lock(&mutex_);
      fault_ = DrawFault();
      ++batches_released_;
      changed_.SignalAll();
    }
    Settle();
  }

  // Makes the device hold a batch.
  void Occupy() {
    if (IsHeld()) return;
    std::unique_ptr<Request> request = EmptyRequest();
    Sent& sent = Add(world_.nothing, 0, *request);
    request->arrival.deadline = sent.deadline = absl::InfiniteFuture();
    sent.place = Sent::kQueued;
    request->run.enqueued = clock_.Now();
    EXPECT_THAT(batcher_.Queue(request), IsOk());
    Settle();
  }

  // Every session that waits for the side thread has a turn.
  void TakeRound() {
    Occupy();  // what is planned queues behind it
    {
      proto::MutexLock lock(&mutex_);
      ++rounds_released_;
      changed_.SignalAll();
      while (rounds_ == rounds_released_ && HasNews()) continue;
    }
    Settle();
    for (auto& [session, waiting] : side_) {
      if (waiting.empty()) continue;
      const Waiting first = waiting.front();
      waiting.pop_front();
      if (first.called != nullptr) {
        if (StillWaits(*first.called)) waiting.push_back(first);
      } else if (first.sent->place == Sent::kPlanning) {
        first.sent->place = Sent::kQueued;
        first.sent->ticket = ++tickets_;
      }
    }
  }

  // After a turn of the call.
  static bool StillWaits(Called& called) {
    const bool cancelled = called.cancelled->load();
    called.due += cancelled ? 0 : 1;
    EXPECT_EQ(called.stepped, called.due);
    const bool is_over = cancelled || called.due == called.steps;
    EXPECT_EQ(called.ended, is_over ? 1 : 0);
    const absl::StatusCode code = cancelled ? absl::StatusCode::kCancelled : called.code;
    EXPECT_TRUE(!is_over || called.status.code() == code);
    return !is_over;
  }

  void Call() {
    const uint64_t session = 1 + random_.Below(4);
    Called& called = called_.emplace_back(
        Called{.steps = 1 + static_cast<int>(random_.Below(3)),
               .code = random_.OneOf({absl::StatusCode::kOk, absl::StatusCode::kInternal,
                                      absl::StatusCode::kResourceExhausted})});
    auto work = std::make_unique<Work>();
    work->step = [this, &called, left = called.steps,
                  code = called.code]() mutable -> absl::StatusOr<bool> {
      Log([&called] { ++called.stepped; });
      if (--left > 0) return false;
      if (code == absl::StatusCode::kInternal) return absl::InternalError("call: broken");
      if (code == absl::StatusCode::kOk) return true;
      std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
    };
    work->end = [this, &called](const absl::Status& status) {
      Log([&called, status] {
        ++called.ended;
        called.status = status;
      });
    };
    engine_.side_thread().StartCall(session, clients_.Of(session).account(), std::move(work),
                                    called.cancelled);
    side_[session].push_back({nullptr, &called});
  }

  void Cancel() {
    if (!called_.empty() && random_.OneIn(4)) {
      called_[random_.Below(called_.size())].cancelled->store(true);
    } else if (!sent_.empty()) {
      Sent& sent = sent_[random_.Below(sent_.size())];
      if (sent.offer != &world_.nothing) sent.cancelled->store(true);
    }
  }

  Fault DrawFault() {
    const uint64_t kind = random_.Below(12);
    if (draining_ || kind > Fault::kSliceEnds) return {};
    return {static_cast<Fault::Kind>(kind), random_.Next()};
  }

  // The engine's threads go on by themselves.
  void LetGo() {
    proto::MutexLock lock(&mutex_);
    batches_released_ = rounds_released_ = kForEver;
    changed_.SignalAll();
  }

  void Drain() {
    draining_ = true;
    if (random_.OneIn(4)) {
      abandoned_ = true;
      engine_.side_thread().StopWaiting();
      batcher_.StopWaiting();
    }
    LetGo();
    engine_.side_thread().Drain();
    batcher_.Drain();
    Replay();
    EXPECT_LE(batches_run_.load(), kBatchesMax) << "batches did not end";
    EXPECT_EQ(CountOf(Sent::kAnswered), std::ssize(sent_));
    for (const Called& called : called_) EXPECT_EQ(called.ended, 1);
    kept_.clear();
    std::unique_ptr<Request> late = world_.offers.front().received->MakeRequest();
    clients_.Fill(late->arrival);
    EXPECT_THAT(engine_.Submit(late), IsUnavailable("draining"));
    EXPECT_NE(late, nullptr);
    EXPECT_EQ(clients_.accounts.held(Resource::kRequests), 0);
    EXPECT_EQ(clients_.accounts.held(Resource::kRequestBytes), 0);
  }

  // Looks at all reports, or at those of this thread that come first.
  void Replay(bool only_here = false) {
    while (true) {
      Event event;
      {
        proto::MutexLock lock(&mutex_);
        if (events_.empty() || (only_here && !events_.front().here)) return;
        event = std::move(events_.front());
        events_.pop_front();
      }
      event.play();
    }
  }

  // Waits until the batch thread holds a batch or has nothing left, and looks at what it reports.
  void Settle() {
    for (bool has_stopped = false; !has_stopped;) {
      Replay();
      const bool runs = CountOf(Sent::kQueued) + CountOf(Sent::kRunning) > 0;
      proto::MutexLock lock(&mutex_);
      while (events_.empty() && batches_ == batches_released_ && runs && HasNews()) continue;
      has_stopped = events_.empty();
    }
    // The thread may be about to say that it is idle: it is, once a batch has run.
    if (!std::exchange(is_certain_, true)) {
      Occupy();
      Release();
    }
  }

  // A batch has started: nothing that has been given up, within its caps, in order, by turns.
  void Started(const std::vector<Part>& parts, bool here, absl::Time now) {
    is_certain_ = true;
    running_ = {};
    is_here_ = here;
    is_reported_ = false;
    int64_t bytes = 0;
    int64_t tokens = 0;
    int64_t jobs = 0;
    int64_t count = 0;
    const auto closed_by = [&] {
      return bytes >= options_.bytes_max      ? ClosedBy::kBytes
             : tokens >= options_.tokens_max  ? ClosedBy::kTokens
             : count >= options_.requests_max ? ClosedBy::kRequests
             : jobs >= options_.jobs_max      ? ClosedBy::kJobs
                                              : ClosedBy::kDrained;
    };
    for (const Part& part : parts) {
      Sent& sent = *by_request_.at(part.request);
      EXPECT_FALSE(part.given_up);
      EXPECT_EQ(part.begin, sent.taken);
      if (!draining_) ExpectIsNext(sent, here);
      sent.place = Sent::kRunning;
      EXPECT_EQ(closed_by(), ClosedBy::kDrained);
      const int64_t taken = part.end - part.begin;
      const int64_t of_batch = std::min(options_.slice_bytes_max, options_.bytes_max - bytes);
      const int64_t most = here && !options_.slices_direct ? options_.direct_bytes_max : of_batch;
      const int64_t slice_bytes = taken * sent.offer->bytes_per_token;
      bytes += slice_bytes;
      tokens += taken;
      jobs += sent.offer->jobs.Of(taken);
      ++count;
      EXPECT_GE(taken, std::min<int64_t>(sent.offer->tokens, 1));
      EXPECT_TRUE(taken <= 1 || (slice_bytes <= most && tokens <= options_.tokens_max &&
                                 jobs <= options_.jobs_max));
    }
    running_.started = now;
    running_.closed_by = here ? ClosedBy::kDirect : closed_by();
    if (here || draining_) return;
    EXPECT_TRUE(closed_by() != ClosedBy::kDrained || CountOf(Sent::kQueued) == 0);
    for (const uint64_t session : expired_) passed_.erase(session);
    expired_.clear();
  }

  // The request takes its turn, in the order of what gathered or of its session.
  void ExpectIsNext(const Sent& sent, bool here) {
    EXPECT_EQ(sent.place, here ? Sent::kGathered : Sent::kQueued);
    std::set<uint64_t> others;  // sessions that wait
    for (const Sent& other : sent_) {
      if (&other == &sent || other.place != sent.place) continue;
      const bool is_behind = other.ticket > sent.ticket;
      EXPECT_TRUE(is_behind || (!here && other.session != sent.session));
      if (other.session != sent.session) others.insert(other.session);
    }
    if (here) return;
    passed_.erase(sent.session);
    for (const uint64_t other : others) {
      if (expired_.contains(other)) continue;  // it may have had a turn that nothing shows
      EXPECT_LE(++passed_[other][sent.session], 1);
    }
  }

  // The batch has run. What it left out waits again, then what has tokens left.
  void Ran(const std::vector<Part>& parts, absl::Time now) {
    std::vector<Sent*> left_out;
    std::vector<Sent*> unfinished;
    BatchReport& want = running_;
    for (const Part& part : parts) {
      Sent& sent = *by_request_.at(part.request);
      const bool is_last = part.end == sent.offer->tokens;
      sent.failed = part.failed;
      if (part.begin == part.end && !is_last) {
        left_out.push_back(&sent);
        continue;
      }
      if (part.begin == 0) sent.started = want.started;
      ++want.requests;
      want.bytes += (part.end - part.begin) * sent.offer->bytes_per_token;
      sent.taken = part.end;
      if (!is_last && !part.failed) unfinished.push_back(&sent);
    }
    if (!is_here_ && !left_out.empty()) want.closed_by = ClosedBy::kRows;
    want.finished = now;
    for (const auto* waiting : {&left_out, &unfinished}) {
      for (Sent* sent : *waiting) {
        sent->place = is_here_ ? Sent::kGathered : Sent::kQueued;
        sent->ticket = ++tickets_;
      }
    }
  }

  void Reported(const BatchReport& report) {
    if (draining_) return;  // batches of two threads may be under way
    const BatchReport& want = running_;
    EXPECT_FALSE(std::exchange(is_reported_, true));
    EXPECT_EQ(report.device, "simulated");
    EXPECT_EQ(report.requests, want.requests);
    EXPECT_EQ(report.bytes, want.bytes);
    EXPECT_EQ(report.started, want.started);
    EXPECT_EQ(report.finished, want.finished);
    EXPECT_EQ(report.closed_by, want.closed_by);
  }

  void Answered(Sent& sent, const std::shared_ptr<Request>& request, const absl::Status& status) {
    EXPECT_NE(sent.place, Sent::kAnswered) << "it is answered twice";
    if (sent.place == Sent::kQueued) {
      expired_.insert(sent.session);
      is_certain_ = false;
    }
    EXPECT_TRUE(sent.place != Sent::kRunning || draining_ || is_reported_);
    sent.place = Sent::kAnswered;
    unanswered_ -= request->permit.admitted() ? 1 : 0;
    EXPECT_EQ(sent.failed, status.code() == absl::StatusCode::kInternal);
    switch (status.code()) {
      case absl::StatusCode::kOk:
        ExpectResult(sent, *request);
        break;
      case absl::StatusCode::kCancelled:
        EXPECT_TRUE(sent.cancelled->load());
        break;
      case absl::StatusCode::kDeadlineExceeded:
        EXPECT_LE(sent.deadline, clock_.Now());
        break;
      case absl::StatusCode::kUnavailable:
        EXPECT_TRUE(abandoned_);
        break;
      case absl::StatusCode::kInternal:
        break;
      default:
        EXPECT_TRUE(sent.offer->takes_long);
        return ExpectRefused(*sent.offer, status);
    }
    ++world_.answers[status.code()];
    if (request->permit.admitted() && !draining_ && random_.OneIn(4)) kept_.push_back(request);
  }

  void ExpectResult(const Sent& sent, const Request& request) {
    EXPECT_EQ(sent.offer->code, absl::StatusCode::kOk);
    EXPECT_EQ(sent.taken, sent.offer->tokens);
    EXPECT_TRUE(ResultOf(request) == sent.offer->result);
    EXPECT_EQ(request.stages.queue, Microseconds(sent.started - request.run.enqueued));
    if (!request.permit.admitted()) return;
    EXPECT_EQ(request.permit.bytes(),
              DecodedBytes(request) + PlannedBytes(request.plan) +
                  RunningBytes(request.fixed(), request.call(), request.plan));
  }

  void ExpectRefused(const Offer& offer, const absl::Status& status) {
    ++world_.answers[status.code()];
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      EXPECT_GT(proto::PartsOf(status).retry_delay_ms, 0);
      EXPECT_GT(clients_.accounts.held(Resource::kRequests), 0);
    } else {
      EXPECT_EQ(status.code(), offer.code) << status.ToString();
    }
  }

  // What gathered queues, in its order.
  void QueueGathered() {
    std::vector<Sent*> gathered;
    for (Sent& sent : sent_) {
      if (sent.place == Sent::kGathered) gathered.push_back(&sent);
    }
    std::ranges::sort(gathered, {}, &Sent::ticket);
    for (Sent* sent : gathered) {
      sent->place = Sent::kQueued;
      sent->ticket = ++tickets_;
    }
  }

  int64_t CountOf(Sent::Place place) const {
    return std::ranges::count(sent_, place, &Sent::place);
  }
  bool IsHeld() {
    proto::MutexLock lock(&mutex_);
    return batches_ > batches_released_;
  }
  bool IsFree() { return options_.direct_slots > 0 && !IsHeld(); }

  static Batcher::Options Draw(FuzzRandom& random) {
    Batcher::Options options;
    options.direct_bytes_max = random.OneOf<int64_t>({300, 3000, 100000});
    options.slices_direct = !random.OneIn(4);
    options.gathered_requests_max = random.OneOf<int64_t>({1, 3, 8});
    options.gathered_bytes_max = random.OneOf<int64_t>({200, 2000});
    options.bytes_max = random.OneOf<int64_t>({1000, 20000});
    options.tokens_max = random.OneOf<int64_t>({10, 1000});
    options.requests_max = random.OneOf<int64_t>({1, 3, 100});
    options.slice_bytes_max = random.OneOf<int64_t>({500, 5000});
    options.jobs_max = random.OneOf<int64_t>({4, 1000});
    options.direct_slots = random.OneIn(4) ? 0 : 1;
    return options;
  }

  struct Event {
    bool here = false;
    std::function<void()> play;
  };

  World& world_;
  FuzzRandom random_;
  const std::thread::id thread_ = std::this_thread::get_id();
  const Batcher::Options options_ = Draw(random_);
  const bool is_narrow_ = random_.OneIn(4);  // refuses requests, but none too large for it
  testing::TestClients clients_{{.requests = is_narrow_ ? 6 : 1000,
                                 .request_bytes = (is_narrow_ ? 256 : 65536) * limits::kKiB}};
  testing::FakeClock& clock_ = clients_.clock;

  proto::Mutex mutex_;
  proto::CondVar changed_;  // signals changes of the members below
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  // The batches and rounds that have begun, and those of them that may continue.
  int64_t batches_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t batches_released_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t rounds_released_ ABSL_GUARDED_BY(mutex_) = 0;
  Fault fault_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> batches_run_ = 0;

  std::deque<Sent> sent_;
  std::map<const Request*, Sent*> by_request_;
  std::deque<Called> called_;
  std::map<uint64_t, std::deque<Waiting>> side_;  // by session
  std::vector<std::shared_ptr<Request>> kept_;    // replies that are not read yet
  int64_t tickets_ = 0;
  int64_t unanswered_ = 0;
  BatchReport running_;  // what the batch should report
  bool is_here_ = false;
  bool is_reported_ = false;
  std::map<uint64_t, std::map<uint64_t, int>> passed_;  // turns of others while a session waited
  std::set<uint64_t> expired_;  // sessions whose requests the next batch has answered
  bool is_certain_ = true;      // the batch thread is idle if nothing queues
  bool draining_ = false;
  bool abandoned_ = false;

  Device& device_ = *new Device(*world_.reference);  // owned by devices_
  DeviceRouter devices_{std::unique_ptr<kernels::Backend>(&device_)};
  Executor executor_{devices_, world_.tables, world_.state->pool};
  Batcher batcher_{
      options_, clock_, [this](absl::Span<Slice> slices) { RunBatch(slices); },
      [this](const BatchReport& report) { Log([this, report] { Reported(report); }); }};
  Engine engine_{*world_.state->registry, world_.prepared, batcher_, clock_, {}};
};

TEST(EngineSimulationTest, InvariantsHoldInEveryHistory) {
  World world;
  const uint64_t first = testing::FuzzSeed(1);
  const uint64_t end = first + testing::FuzzRounds(kHistories);
  for (uint64_t seed = first; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("ROPE_FUZZ_ROUNDS=1 ROPE_FUZZ_SEED=", seed));
    History(world, seed).Run();
  }
  EXPECT_TRUE(end - first < kHistories || world.answers.size() == 7) << "not every status was seen";
}

}  // namespace
}  // namespace rope::server
