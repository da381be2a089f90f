#include "tests/support/watched_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/temporary_folder.h"

namespace rope::testing {
namespace {

constexpr int64_t kLimitBytes = 1024 * kMiB;
constexpr int64_t kKeptBytesMax = 64 * kMiB;
constexpr std::chrono::seconds kGivenBackWithin{10};
constexpr std::chrono::seconds kAnsweredWithin{10};
constexpr std::chrono::milliseconds kPause{3};  // of the bystander
constexpr int kFirstCalls = 20;  // memory that the first calls allocate stays allocated

}  // namespace

Bystander::Bystander(std::unique_ptr<v1::RopeService::Stub> stub)
    : stub_(std::move(stub)), thread_([this] {
        do CallOnce();
        while (!stop_.WaitForNotificationWithTimeout(kPause));
      }) {}

Bystander::~Bystander() {
  Stop();
}

Bystander::Counts Bystander::Stop() {
  if (thread_.joinable()) {
    stop_.Notify();
    thread_.join();
  }
  return counts_;
}

void Bystander::CallOnce() {
  const auto begin = std::chrono::steady_clock::now();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnsweredWithin);
  v1::RotateResponse response;
  const grpc::Status status = stub_->Rotate(&context, UnitRequest(1), &response);
  if (status.ok() && IsUnitAnswer(response)) {
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    counts_.slowest_ms = std::max(counts_.slowest_ms, took.count());
    ++counts_.right;
    return;
  }
  ++counts_.wrong;
  if (!counts_.first_wrong.empty()) return;
  counts_.first_wrong = status.ok()
                            ? response.ShortDebugString()
                            : absl::StrCat(status.error_code(), " ", status.error_message());
}

WatchedServer::WatchedServer(const Options& options)
    : options_(options),
      path_(TemporaryFolder() + "/s"),
      limit_(kLimitBytes),
      server_(Flags(), Process::Errors::kOurs, &limit_) {
  const auto stub = server_.NewStub();
  for (int i = 0; i < kFirstCalls; ++i) EXPECT_TRUE(Serves(*stub));
  instance_id_ = InstanceId();
  EXPECT_NE(instance_id_, "");
  memory_ = std::make_unique<MemoryWatch>(server_.process().pid());
  bystander_ = std::make_unique<Bystander>(StubOfAnotherOwner());
}

std::vector<std::string> WatchedServer::Flags() const {
  std::vector<std::string> flags = {absl::StrCat("--memory_bytes=", options_.memory_bytes),
                                    absl::StrCat("--max_message_bytes=", options_.message_bytes),
                                    "--enable_shared_memory",
                                    "--listen=unix:" + path_,
                                    "--shared_memory_bytes=4GiB",
                                    "--session_memory_bytes=2GiB",
                                    "--log_level=error"};
  flags.insert(flags.end(), options_.flags.begin(), options_.flags.end());
  return flags;
}

std::unique_ptr<v1::RopeService::Stub> WatchedServer::StubOfAnotherOwner() const {
  return v1::RopeService::NewStub(
      grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials()));
}

Http2Peer WatchedServer::NewPeer(uint32_t window) const {
  return Http2Peer(ConnectTcp(server_.address()), window);
}

std::string WatchedServer::InstanceId() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnsweredWithin);
  v1::GetServerInfoResponse info;
  const auto stub = server_.NewStub();
  return stub->GetServerInfo(&context, {}, &info).ok() ? info.instance_id() : std::string();
}

void WatchedServer::ExpectUnharmed(const std::string& what) {
  EXPECT_EQ(InstanceId(), instance_id_) << what << ": the process that was started serves";
  if (bystander_ != nullptr) {
    const Bystander::Counts seen = bystander_->Stop();
    EXPECT_EQ(seen.wrong, 0) << what << ": " << seen.first_wrong;
    EXPECT_GT(seen.right, 0) << what;
    std::printf("measured: %s: %d calls of others right, %d wrong, the slowest %.1f ms\n",
                what.c_str(), seen.right, seen.wrong, seen.slowest_ms);
    bystander_ = std::make_unique<Bystander>(StubOfAnotherOwner());
  }
  std::printf("measured: %s: RssAnon idle %.1f MiB, at most %.1f MiB of %.1f (%s)\n", what.c_str(),
              static_cast<double>(memory_->idle_bytes()) / kMiB,
              static_cast<double>(memory_->peak_bytes()) / kMiB,
              static_cast<double>(memory_bytes()) / kMiB, limit_.kind());
  if (!kMemoryIsMeasured) return;
  EXPECT_LE(memory_->peak_bytes(), memory_bytes() + memory_bytes() / 10) << what;
}

void WatchedServer::ExpectMemoryGivenBack(const std::string& what) {
  if (!kMemoryIsMeasured) return;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(memory_->AwaitAtMost(memory_->idle_bytes() + kKeptBytesMax, kGivenBackWithin))
      << what << ": RssAnon " << memory_->now_bytes() << ", idle " << memory_->idle_bytes();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("measured: %s: RssAnon %.1f MiB after %.1f s\n", what.c_str(),
              static_cast<double>(memory_->now_bytes()) / kMiB, took.count());
}

}  // namespace rope::testing
