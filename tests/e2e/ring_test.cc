// Calls through a ring, against a real server: all slots at once, wrong ones, and clients that mean
// no good or die.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/process.h"
#include "tests/support/ring_client.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

const Sample kToken = {.tokens = 1, .heads = 4, .start = 1000};

std::string RandomBytes(size_t bytes, std::mt19937& random) {
  std::string result(bytes, '\0');
  for (char& byte : result) byte = static_cast<char>(random());
  return result;
}

class RingTest : public ::testing::Test {
 protected:
  double Value(const char* metric) { return Scrape(MetricsPort(server_)).Value(metric); }
  // Returns once the server has heard of those that went.
  void AwaitRings(double rings) {
    while (Value("rope_rings") != rings) {
    }
  }

  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{{"--enable_shared_memory", "--listen=unix:" + path_,
                      "--metrics_listen=127.0.0.1:0", "--log_level=error"}};
};

TEST_F(RingTest, AllSlotsAtOnceAreAnsweredEachWithItsOwn) {
  const RingClient client(path_, proto::kRingSlots * kToken.bytes());
  const auto sample = [](uint32_t slot) {
    Sample token = kToken;
    token.start = 7 * slot;
    return token;
  };
  for (int round = 0; round < 20; ++round) {
    for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) {
      const uint64_t offset = slot * kToken.bytes();
      sample(slot).Fill(client.memory().As<float>(offset));
      v1::RotateRequest request = sample(slot).InPlace(client.id(), offset);
      request.set_request_id(absl::StrCat("slot ", slot));
      client.ring().Send(slot, request.SerializeAsString());
    }
    for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) {
      v1::RotateResponse response;
      ASSERT_EQ(client.Await(slot, &response), "OK");
      EXPECT_EQ(response.request_id(), absl::StrCat("slot ", slot));
      EXPECT_LT(sample(slot).Error(client.memory().As<float>(slot * kToken.bytes())), 2e-6);
    }
  }
}

TEST_F(RingTest, SmallResultComesInTheReply) {
  const RingClient client(path_);
  kToken.Fill(client.memory().As<float>());
  v1::RotateResponse response;
  ASSERT_EQ(client.Rotate(kToken.Request(client.id(), 0), 0, &response), "OK");
  const std::string& raw = response.tensors(0).array().raw();
  ASSERT_EQ(raw.size(), kToken.bytes());
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  EXPECT_LT(kToken.Error(values.data()), 2e-6);
}

TEST_F(RingTest, GarbageInASlotIsAnErrorAndTheRingGoesOn) {
  const RingClient client(path_);
  std::mt19937 random(11);  // seeded: the same bytes each time
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{40}, size_t{700}, proto::kRingMessageBytes}) {
    EXPECT_THAT(client.Call(RandomBytes(bytes, random), 3),
                AnyOf(StartsWith("3 "), StartsWith("12 request: got unknown field")))
        << bytes;
    ASSERT_TRUE(client.RotatesRight(kToken, 0, 3));
  }
  EXPECT_FALSE(client.ring().IsClosed());
}

TEST_F(RingTest, RequestWhoseTimeIsUpIsNotRun) {
  const RingClient client(path_);
  kToken.Fill(client.memory().As<float>());
  client.ring().Write(0, kToken.InPlace(client.id(), 0).SerializeAsString(), /*timeout_us=*/-5);
  client.ring().Submit(0);
  EXPECT_THAT(client.Await(0), StartsWith("4 "));
  EXPECT_EQ(std::memcmp(client.memory().data(), kToken.Input().data(), kToken.bytes()), 0);
  EXPECT_TRUE(client.RotatesRight(kToken));
}

TEST_F(RingTest, ReplyTooLargeForItsSlotIsRefusedBeforeItRunsAndTheRingGoesOn) {
  const RingClient client(path_);
  const Sample large = {.tokens = 64, .heads = 8};
  large.Fill(client.memory().As<float>());
  v1::RotateResponse response;
  EXPECT_THAT(client.Rotate(large.Request(client.id(), 0), 5, &response),
              AllOf(StartsWith("8 reply: got"), HasSubstr("in a ring")));
  EXPECT_FALSE(response.error().may_have_executed());
  EXPECT_EQ(client.ring().slot(6).state.load(), ValueOf(proto::RingState::kFree));
  EXPECT_TRUE(client.RotatesRight(large, 0, 5)) << "in place there is nothing to send back";
}

TEST_F(RingTest, AsManyTensorsAsTheRequestHasRoomForFitTheReply) {
  const RingClient client(path_);
  v1::RotateRequest request = kToken.InPlace(client.id(), 0);
  const v1::Tensor first = request.tensors(0);
  while (request.tensors_size() < 64) {
    const auto offset = static_cast<uint64_t>(request.tensors_size()) * kToken.bytes();
    *request.add_tensors() = first;
    request.mutable_tensors()->rbegin()->mutable_array()->mutable_region()->set_offset(offset);
    if (request.ByteSizeLong() <= proto::kRingRequestBytes) continue;
    request.mutable_tensors()->RemoveLast();
    break;
  }
  ASSERT_GT(request.tensors_size(), 40);
  EXPECT_EQ(client.Rotate(request, 5), "OK");
}

TEST_F(RingTest, EachBrokenRuleClosesThatRingAndNothingElse) {
  constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();
  using Break = std::function<void(const RawRing&)>;
  const std::vector<std::pair<const char*, Break>> breaks = {
      {"index past the end", [](const RawRing& ring) { ring.Submit(proto::kRingSlots); }},
      {"huge index", [](const RawRing& ring) { ring.Submit(kHuge); }},
      {"length past the end",
       [](const RawRing& ring) {
         ring.Write(0, "");
         ring.slot(0).message_bytes.store(kHuge);
         ring.Submit(0);
       }},
      {"count that jumps",
       [](const RawRing& ring) {
         ring.shared().submitted.fetch_add(proto::kRingSlots + 1);
         ring.RingDoorbell();
       }},
      {"count that goes back",
       [](const RawRing& ring) {
         ring.shared().submitted.fetch_sub(1);
         ring.RingDoorbell();
       }},
  };
  const RingClient bystander(path_);
  for (const auto& [rule, break_it] : breaks) {
    SCOPED_TRACE(rule);
    RingClient client(path_);
    ASSERT_TRUE(client.RotatesRight(kToken));
    break_it(client.ring());
    client.ring().AwaitClosed();
    AwaitRings(1);
    EXPECT_TRUE(Serves(client.stub()));
    kToken.Fill(client.memory().As<float>());
    EXPECT_EQ(Text(Rotate(client.stub(), kToken.InPlace(client.id(), 0))), "OK");
    EXPECT_LT(kToken.Error(client.memory().As<float>()), 2e-6) << "its region is still there";
    EXPECT_TRUE(bystander.RotatesRight(kToken));
  }
}

TEST_F(RingTest, SlotThatIsSubmittedTwiceHurtsNobody) {
  const Sample large = {.tokens = 20'000, .heads = 64};
  RingClient client(path_, large.bytes());
  client.ring().Send(0, large.InPlace(client.id(), 0).SerializeAsString());
  client.ring().Submit(0);
  // It was answered in between, or it was not.
  while (!client.ring().IsClosed() && !client.ring().IsDone(0)) std::this_thread::yield();
  EXPECT_TRUE(Serves(client.stub()));
  EXPECT_TRUE(RingClient(path_).RotatesRight(kToken));
}

TEST_F(RingTest, KilledClientLosesItsRingAndHurtsNobody) {
  const RingClient bystander(path_);
  for (int i = 0; i < 10; ++i) {
    Process victim({VictimProgram(), "ring", path_});
    std::string line = victim.ReadLine();
    while (!line.empty() && line != "rotating") line = victim.ReadLine();
    ASSERT_EQ(line, "rotating");
    for (int j = 0; j < i; ++j) EXPECT_TRUE(bystander.RotatesRight(kToken));  // ever later
    EXPECT_EQ(Value("rope_rings"), 2);
    victim.Signal(SIGKILL);
    EXPECT_EQ(victim.Wait(), -SIGKILL);
    EXPECT_TRUE(bystander.RotatesRight(kToken));
    AwaitRings(1);
  }
  EXPECT_TRUE(bystander.RotatesRight(kToken));
  while (Value("rope_requests_in_flight") != 0) {
  }
}

TEST_F(RingTest, SigtermAnswersRefusesOrClosesButNeverForgets) {
  constexpr size_t kClients = 3;
  std::atomic<int> answered = 0;
  std::vector<std::vector<std::string>> wrong(kClients);
  std::deque<RingClient> connected;
  for (size_t i = 0; i < kClients; ++i) connected.emplace_back(path_);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const RingClient& client = connected[i];
      while (true) {
        kToken.Fill(client.memory().As<float>());
        const std::string answer = client.Rotate(kToken.InPlace(client.id(), 0));
        if (answer == "closed") return;
        const bool right = answer == "OK" && kToken.Error(client.memory().As<float>()) < 2e-6;
        if (!right && !answer.starts_with("14 ")) wrong[i].push_back(answer);
        answered.fetch_add(1);
      }
    });
  }
  while (answered.load() < 100) std::this_thread::yield();
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
  for (std::thread& client : clients) client.join();  // which end with `closed` alone
  for (const auto& answers : wrong) EXPECT_THAT(answers, ::testing::IsEmpty());
}

// Writes what it likes, where it likes, while its ring is served.
void Vandalise(const std::string& path, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](size_t bound) { return static_cast<uint32_t>(random() % bound); };
  const RingClient client(path, 1 << 16);
  const RawRing& ring = client.ring();
  const std::string message = kToken.InPlace(client.id(), 0).SerializeAsString();
  const size_t spoiled = below(2) == 0 ? sizeof(proto::Ring) : 4096;  // all of it, or its head
  // Some keep to the rules for a while: what they spoil is under way.
  const uint32_t polite = below(4);
  for (int i = 0; i < 500; ++i) {
    const uint32_t slot = below(proto::kRingSlots);
    if (below(20) < 6 * polite + 1) {
      ring.Send(slot, message);
      const std::string bytes = RandomBytes(below(64), random);
      std::memcpy(ring.slot(slot).message.data() + below(200), bytes.data(), bytes.size());
      ring.slot(below(proto::kRingSlots)).state.store(below(5));
    } else {
      const std::string bytes = RandomBytes(1 + below(300), random);
      std::memcpy(ring.memory().data() + below(spoiled - bytes.size()), bytes.data(), bytes.size());
      ring.RingDoorbell();
    }
  }
}

TEST_F(RingTest, ClientThatWritesAllOverItsRingHurtsNobody) {
  const RingClient bystander(path_);
  std::atomic<bool> stop = false;
  std::thread vandal([&] {
    for (uint32_t seed = 1; seed <= 60; ++seed) Vandalise(path_, seed);
    stop = true;
  });
  int rounds = 0;
  while (!stop) {
    EXPECT_TRUE(bystander.RotatesRight(kToken, 0, static_cast<uint32_t>(++rounds) % 64));
  }
  vandal.join();
  RecordProperty("rounds", rounds);
  AwaitRings(1);
  EXPECT_TRUE(bystander.RotatesRight(kToken));
  EXPECT_FALSE(bystander.ring().IsClosed());
  while (Value("rope_requests_in_flight") != 0) {
  }
}

}  // namespace
}  // namespace rope::testing
