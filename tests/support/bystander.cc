#include "tests/support/bystander.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

constexpr std::chrono::milliseconds kPause{3};
constexpr std::chrono::seconds kTimeout{10};

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
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
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

}  // namespace rope::testing
