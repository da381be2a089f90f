// Which works the side thread takes. What holds in every history (answers, turns, cancellation,
// drain) is proved by engine_simulation_test.cc.
#include "server/engine/side_thread.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "server/clients/limits.h"
#include "server/error.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

class SideThreadTest : public ::testing::Test {
 protected:
  // A work of one step, which waits until the test lets it go on.
  class Held final : public SideThread::Work {
   public:
    Held(SideThreadTest& test, std::string name) : test_(test), name_(std::move(name)) {}

    absl::StatusOr<bool> Step() override {
      test_.let_go_.WaitForNotification();
      return true;
    }
    void End(const absl::Status& status) override {
      proto::MutexLock lock(&test_.mutex_);
      test_.answers_.emplace_back(name_, status);
    }

   private:
    SideThreadTest& test_;
    const std::string name_;
  };
  using Answers = std::vector<std::pair<std::string, absl::Status>>;

  void StartRequest(const std::string& name) {
    thread_.StartRequest(1, std::make_unique<Held>(*this, name));
  }
  void StartCall(const std::string& owner, const std::string& name) {
    thread_.StartCall(2, clients_.accounts.Of(owner), std::make_unique<Held>(*this, name), nullptr);
  }
  Answers TakeAnswers() {
    proto::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }
  // The only answer is that of `name`, which was refused with `text`.
  void ExpectRefused(const std::string& name, const std::string& text) {
    const Answers answers = TakeAnswers();
    ASSERT_THAT(answers, ElementsAre(Pair(name, IsExhausted(text))));
    EXPECT_GT(proto::PartsOf(answers[0].second).retry_delay_ms, 0);
  }

  testing::TestClients clients_;
  proto::Notification let_go_;
  proto::Mutex mutex_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
  SideThread thread_{clients_.clock};
};

TEST_F(SideThreadTest, CallsAreBoundedByOwnersAndRequestsAreNot) {
  constexpr int64_t kHalf = limits::kControlCallsMax / 2;
  for (int64_t i = 0; i < kHalf; ++i) {
    StartRequest("request");
    StartCall("uid:1", "call");
  }
  StartCall("uid:1", "too many");
  ExpectRefused("too many",
                "queue: got call that takes long, number 129 of uid:1, want at most 128");
  for (int64_t i = 0; i < kHalf; ++i) StartCall("uid:2", "call");
  StartCall("uid:3", "too many");
  ExpectRefused("too many",
                "queue: got call that takes long, number 257 of all clients, want at most 256");
  StartRequest("request");
  let_go_.Notify();
  thread_.Drain();
  const Answers answers = TakeAnswers();
  EXPECT_THAT(answers, SizeIs(3 * kHalf + 1));
  EXPECT_THAT(answers, Each(Pair(::testing::_, IsOk())));
}

}  // namespace
}  // namespace rope::server
