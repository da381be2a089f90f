// A ring whose client rewrites its half at random: indices, counts, lengths, states, timeouts and
// messages, between and during Serve, on the same thread and on another one. What is handed on
// keeps to the rules and stays as it was copied, what breaks them ends the ring, and the server
// writes what it answers and nothing else.
//
// ROPE_FUZZ_ROUNDS=N and ROPE_FUZZ_SEED=N: another number of rewrites (the first test) and of rings
// (the second), others.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "proto/ipc/ring.h"
#include "server/ipc/ring.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/shared_memory.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using proto::kRingMessageBytes;
using proto::kRingSlots;
using proto::RingState;
using ::rope::testing::FuzzRandom;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;
using ::rope::testing::SharedMemory;
using ::rope::testing::TestClients;

constexpr uint64_t kRounds = 40000;
constexpr uint64_t kRings = 400;
constexpr uint64_t kSeed = 20260108;

// A client that writes into its half of a ring what it likes.
class HostileClient {
 public:
  explicit HostileClient(uint64_t seed) : random_(seed) {}

  proto::Ring& shared() const { return *memory_.As<proto::Ring>(); }
  std::shared_ptr<Ring> NewRing() {
    constexpr uint64_t kSession = 1;
    return std::make_shared<Ring>(clients_.Of(kSession).shared_from_this(),
                                  Ring::MapMemory(memory_.Dup(), memory_.bytes()).value());
  }

  // A request as the rules say, except that its slot may be in use.
  void Send() {
    const uint32_t index = Index();
    const std::string message = random_.RandomBytes(random_.Below(40));
    proto::RingSlot& slot = shared().slots[index];
    std::memcpy(slot.message.data(), message.data(), message.size());
    slot.message_bytes.store(static_cast<uint32_t>(message.size()));
    slot.timeout_us.store(static_cast<int64_t>(random_.Below(1000)));
    slot.state.store(ValueOf(random_.OneIn(4) ? RingState::kQueued : RingState::kSubmitted));
    const uint32_t submitted = shared().submitted.load();
    shared().queue[submitted % kRingSlots].store(index);
    shared().submitted.store(submitted + 1);
  }

  // Rewrites one thing.
  void Rewrite() {
    proto::Ring& ring = shared();
    proto::RingSlot& slot = ring.slots[Index()];
    switch (random_.Below(24)) {
      case 0:
        return ring.submitted.store(Number(ring.submitted.load()));
      case 1:
        return Submitted().store(Number(random_.OneIn(2) ? kRingSlots : Index()));
      case 2:
        return slot.message_bytes.store(Number(kRingMessageBytes));
      case 3:
        return slot.state.store(Number(static_cast<uint32_t>(random_.Below(5))));
      case 4:
        return slot.timeout_us.store(random_.EdgeInteger());
      case 5:
        return slot.code.store(static_cast<uint32_t>(random_.Next()));
      case 6:
        return ring.completed.store(static_cast<uint32_t>(random_.Next()));
      case 7:
        return ring.completions[Index()].store(static_cast<uint32_t>(random_.Next()));
      case 8:
        return ring.reader_asleep.store(static_cast<uint32_t>(random_.Below(3)));
      case 9:
        return (random_.OneIn(2) ? ring.asleep : ring.closed).store(Number(1));
      case 10:
        return Submitted().store(Index());
      default: {
        const size_t at = random_.Below(kRingMessageBytes);
        const std::string bytes = random_.RandomBytes(random_.Below(kRingMessageBytes - at) % 64);
        std::memcpy(slot.message.data() + at, bytes.data(), bytes.size());
      }
    }
  }

 private:
  uint32_t Index() { return static_cast<uint32_t>(random_.Below(kRingSlots)); }
  // The place of one of the requests that were submitted last.
  std::atomic<uint32_t>& Submitted() {
    const auto back = static_cast<uint32_t>(1 + random_.Below(4));
    return shared().queue[(shared().submitted.load() - back) % kRingSlots];
  }
  // Now and then far from `near`.
  uint32_t Number(uint32_t near) {
    if (random_.OneIn(4)) return static_cast<uint32_t>(random_.EdgeInteger());
    if (random_.OneIn(8)) return near + static_cast<uint32_t>(random_.Below(300));
    return near + static_cast<uint32_t>(random_.Below(3)) - 1;
  }

  TestClients clients_;
  const SharedMemory memory_ = SharedMemory::Memfd(sizeof(proto::Ring));
  FuzzRandom random_;
};

void ExpectWithinADay(const RingCall& call) {
  EXPECT_GE(call.time_left(), absl::ZeroDuration());
  EXPECT_LE(call.time_left(), absl::Hours(24));
}

struct Counts {
  int64_t rings = 0;
  int64_t broken = 0;
  int64_t handed_on = 0;
};

void Print(const char* what, const Counts& counts) {
  std::printf("measured: %s: %lld rings, %lld of them broken, %lld requests handed on\n", what,
              static_cast<long long>(counts.rings), static_cast<long long>(counts.broken),
              static_cast<long long>(counts.handed_on));
}

// One thread: what the server must do follows from what the memory holds.
class RingFuzzTest : public ::testing::Test {
 protected:
  ~RingFuzzTest() override { Drop(); }

  void Start() {
    Drop();
    client_ = std::make_unique<HostileClient>(random_.Next());
    ring_ = client_->NewRing();
    taken_ = 0;
    ++counts_.rings;
  }
  // Calls may be answered after their ring has closed.
  void Drop() {
    if (ring_ == nullptr) return;
    ring_->Close();
    while (!under_way_.empty()) AnswerOne();
    ring_.reset();
  }

  struct UnderWay {
    RingCall* call = nullptr;
    uint32_t index = 0;
  };

  uint32_t NextIndex() const { return client_->shared().queue[taken_ % kRingSlots].load(); }
  bool IsUnderWay(uint32_t index) const {
    return std::any_of(under_way_.begin(), under_way_.end(),
                       [index](const UnderWay& call) { return call.index == index; });
  }
  bool NextBreaksTheRules() const {
    const uint32_t index = NextIndex();
    return index >= kRingSlots || IsUnderWay(index) ||
           client_->shared().slots[index].message_bytes.load() > kRingMessageBytes;
  }

  void AnswerOne() {
    const UnderWay one = under_way_.back();
    under_way_.pop_back();
    answered_[one.index] = true;
    const std::string reply =
        random_.RandomBytes(random_.OneIn(32) ? kRingMessageBytes : random_.Below(60));
    one.call->Answer(absl::StatusCode::kNotFound, reply);
    const proto::RingSlot& slot = client_->shared().slots[one.index];
    EXPECT_EQ(slot.state.load(), ValueOf(RingState::kDone));
    EXPECT_EQ(slot.code.load(), 5u);
    EXPECT_EQ(std::string_view(slot.message.data(), slot.message_bytes.load()), reply);
  }

  void Handle(RingCall& call, bool rewrites) {
    ASSERT_FALSE(NextBreaksTheRules());
    const uint32_t index = NextIndex();
    ++taken_;
    ++counts_.handed_on;
    under_way_.push_back({&call, index});
    const proto::RingSlot& slot = client_->shared().slots[index];
    const std::string sent(slot.message.data(), slot.message_bytes.load());
    EXPECT_EQ(call.CopyMessage(), sent);
    ExpectWithinADay(call);
    for (uint64_t n = rewrites ? random_.Below(3) : 0; n > 0; --n) client_->Rewrite();
    EXPECT_EQ(call.CopyMessage().size(), sent.size());
    if (!random_.OneIn(4)) AnswerOne();
  }

  // False: the ring is broken.
  bool Serve(bool rewrites) {
    const uint32_t waiting = client_->shared().submitted.load() - taken_;
    const uint32_t first = taken_;
    answered_.fill(false);
    const Ring::ServeResult served = ring_->Serve([&](RingCall& call) { Handle(call, rewrites); });
    const uint32_t handed_on = taken_ - first;
    switch (served) {
      case Ring::ServeResult::kNothing:
        EXPECT_EQ(waiting, 0u);
        break;
      case Ring::ServeResult::kSome:
        EXPECT_LE(waiting, kRingSlots);
        EXPECT_EQ(handed_on, std::min(waiting, Ring::kServedAtOnce));
        break;
      case Ring::ServeResult::kBroken:
        EXPECT_TRUE(waiting > kRingSlots || NextBreaksTheRules());
        ++counts_.broken;
    }
    return served != Ring::ServeResult::kBroken;
  }

  // The same, and nothing but answers is written.
  bool ServeObserved() {
    const proto::Ring& shared = client_->shared();
    std::vector<char> before(sizeof(shared));
    std::memcpy(before.data(), &shared, sizeof(shared));
    const bool serves = Serve(/*rewrites=*/false);
    const auto same = [&](const auto& part) {
      const auto offset =
          reinterpret_cast<const char*>(&part) - reinterpret_cast<const char*>(&shared);
      return std::memcmp(before.data() + offset, &part, sizeof(part)) == 0;
    };
    EXPECT_TRUE(same(shared.submitted) && same(shared.queue) && same(shared.closed));
    for (uint32_t i = 0; i < kRingSlots; ++i) EXPECT_TRUE(answered_[i] || same(shared.slots[i]));
    return serves;
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  std::unique_ptr<HostileClient> client_;
  std::shared_ptr<Ring> ring_;
  uint32_t taken_ = 0;  // of what was submitted
  std::vector<UnderWay> under_way_;
  std::array<bool, kRingSlots> answered_ = {};  // since Serve was called
  Counts counts_;
};

TEST_F(RingFuzzTest, RewrittenRingIsServedByTheRulesOrBroken) {
  Start();
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    for (uint64_t n = random_.Below(4); n > 0; --n) client_->Send();
    client_->Rewrite();
    if (random_.OneIn(3)) continue;
    while (!under_way_.empty() && !random_.OneIn(8)) AnswerOne();
    const bool serves = random_.OneIn(32) ? ServeObserved() : Serve(/*rewrites=*/random_.OneIn(2));
    if (!serves) Start();
  }
  Print("one thread", counts_);
  EXPECT_GT(counts_.broken, 0);
  EXPECT_GT(counts_.handed_on, static_cast<int64_t>(rounds / 2));
}

// Another thread rewrites while Serve runs, and answers some of the calls.
class RingRaceFuzzTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kServesMax = 200;  // of one ring

  // Rewrites until it is told to stop.
  class Rewriter {
   public:
    Rewriter(HostileClient& client, uint64_t seed)
        : random_(seed), thread_([this, &client] { Run(client); }) {}
    ~Rewriter() {
      stop_.store(true);
      thread_.join();
      if (RingCall* const left = handed_.exchange(nullptr)) Answer(*left);
    }

    // False: it has one already.
    bool Take(RingCall& call) {
      RingCall* none = nullptr;
      return handed_.compare_exchange_strong(none, &call);
    }

   private:
    static void Answer(RingCall& call) { call.Answer(absl::StatusCode::kOk, "late"); }

    void Run(HostileClient& client) {
      while (!stop_.load(std::memory_order_relaxed)) {
        client.Send();
        if (random_.OneIn(8)) client.Rewrite();
        if (RingCall* const call = handed_.exchange(nullptr)) Answer(*call);
      }
    }

    FuzzRandom random_;
    std::atomic<bool> stop_ = false;
    std::atomic<RingCall*> handed_ = nullptr;
    std::thread thread_;
  };

  void Handle(RingCall& call, Rewriter& rewriter) {
    const std::string message = call.CopyMessage();
    EXPECT_LE(message.size(), kRingMessageBytes);
    ExpectWithinADay(call);
    ++counts_.handed_on;
    const std::string reply = random_.RandomBytes(random_.Below(60));
    EXPECT_EQ(call.CopyMessage().size(), message.size());
    if (random_.OneIn(4) && rewriter.Take(call)) return;
    call.Answer(absl::StatusCode::kOk, reply);
  }

  // Serves one ring until it breaks, or there was something to serve often enough.
  void ServeOne() {
    HostileClient client(random_.Next());
    const std::shared_ptr<Ring> ring = client.NewRing();
    Rewriter rewriter(client, random_.Next());
    ++counts_.rings;
    for (uint64_t serves = 0; serves < kServesMax;) {
      const Ring::ServeResult served = ring->Serve([&](RingCall& call) { Handle(call, rewriter); });
      if (served == Ring::ServeResult::kNothing) {
        std::this_thread::yield();  // until something is submitted
        continue;
      }
      ++serves;
      if (served == Ring::ServeResult::kSome) continue;
      ++counts_.broken;
      break;
    }
    ring->Close();
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  Counts counts_;
};

TEST_F(RingRaceFuzzTest, RingThatIsRewrittenWhileItIsServedIsServedOrBroken) {
  const uint64_t rings = FuzzRounds(kRings);
  for (uint64_t ring = 0; ring < rings && !HasFailure(); ++ring) ServeOne();
  Print("two threads", counts_);
  EXPECT_GT(counts_.broken, 0);
  EXPECT_GT(counts_.handed_on, static_cast<int64_t>(rings));
}

}  // namespace
}  // namespace rope::server
