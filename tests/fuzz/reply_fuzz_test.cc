// The decoder of the client: replies with changed fields, damaged replies, and bytes that are no
// reply. Each must give the requested tensors, the error in the reply, or INTERNAL; after an error
// nothing may be written. Memory outside of the requested outputs must never change.
//
// ROPE_FUZZ_ROUNDS=N sets the number of replies, ROPE_FUZZ_SEED=N the seed.
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/codec/codec.h"
#include "rope/v1/rotate.pb.h"
#include "tests/fuzz/wire_messages.h"

namespace rope::client {
namespace {

using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;
using ::rope::testing::WireWriter;

constexpr uint64_t kRounds = 60000;
constexpr uint64_t kSeed = 20260106;
constexpr size_t kGuardBytes = 64;  // on each side of an output
constexpr char kGuard = '\x5a';

// Memory for one tensor, with guards around it.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : memory_(static_cast<size_t>(bytes) + 2 * kGuardBytes, kGuard) {}

  char* data() { return memory_.data() + kGuardBytes; }
  std::string_view contents() const {
    return std::string_view(memory_).substr(kGuardBytes, memory_.size() - 2 * kGuardBytes);
  }
  bool GuardsStand() const {
    const std::string guard(kGuardBytes, kGuard);
    return memory_.starts_with(guard) && memory_.ends_with(guard);
  }
  bool IsUntouched() const { return memory_.find_first_not_of(kGuard) == std::string::npos; }

 private:
  std::string memory_;
};

grpc::ByteBuffer BufferOf(const std::vector<std::string_view>& fragments) {
  std::vector<grpc::Slice> slices;
  for (const std::string_view fragment : fragments) {
    slices.emplace_back(fragment.data(), fragment.size());
  }
  return {slices.data(), slices.size()};
}

struct Counts {
  int64_t taken = 0;
  int64_t errors = 0;  // errors that the reply carries
  int64_t unreadable = 0;
};

class ReplyFuzzTest : public ::testing::Test {
 protected:
  // The outputs that one request asks for, and the right reply.
  void Ask() {
    wanted_.clear();
    memory_.clear();
    response_.Clear();
    response_.set_request_id("fuzz");
    response_.set_device("cpu");
    for (uint64_t n = 1 + writer_.Below(3); n > 0; --n) AddTensor();
  }

  void AddTensor() {
    WantedTensor wanted;
    wanted.dtype = writer_.OneOf({DType::kFloat32, DType::kFloat16, DType::kFloat8E4M3});
    wanted.layout = "TD";
    wanted.shape = {static_cast<int64_t>(writer_.Below(4)), 2};
    wanted.bytes = wanted.shape[0] * wanted.shape[1] * ElementBytes(wanted.dtype);
    wanted.in_region = writer_.OneIn(6);
    v1::Array& array = *response_.add_tensors()->mutable_array();
    array.set_dtype(wanted.dtype == DType::kFloat32   ? v1::DTYPE_FP32
                    : wanted.dtype == DType::kFloat16 ? v1::DTYPE_FP16
                                                      : v1::DTYPE_FP8_E4M3);
    for (const int64_t length : wanted.shape) array.add_shape(length);
    if (!wanted.in_region) array.set_raw(writer_.RandomBytes(wanted.bytes));
    memory_.push_back(std::make_unique<Guarded>(wanted.bytes));
    if (!writer_.OneIn(4)) wanted.output = memory_.back()->data();
    wanted_.push_back(std::move(wanted));
  }

  // Changes one part of the reply.
  void Change() {
    const int at = static_cast<int>(writer_.Below(static_cast<uint64_t>(response_.tensors_size())));
    v1::Array& array = *response_.mutable_tensors(at)->mutable_array();
    switch (writer_.Below(8)) {
      case 0:
        return response_.mutable_tensors()->RemoveLast();
      case 1:
        *response_.add_tensors() = response_.tensors(at);
        return;
      case 2:
        return array.set_shape(0, writer_.EdgeInteger());
      case 3:
        return array.set_dtype(static_cast<v1::DType>(writer_.Below(12)));
      case 4:
        return array.set_raw(writer_.RandomBytes(writer_.Below(80)));
      case 5:
        return array.clear_raw();
      case 6:
        return array.add_shape(writer_.EdgeInteger());
      default:
        response_.mutable_error()->set_code(static_cast<int32_t>(writer_.EdgeInteger()));
        response_.mutable_error()->set_message("got");
    }
  }

  std::string Bytes() {
    if (writer_.OneIn(32)) return writer_.RandomBytes(writer_.Below(200));
    if (writer_.OneIn(8)) return writer_.Write(*writer_.RandomMessage(response_), false);
    if (writer_.OneIn(3)) Change();
    const bool flawed = writer_.OneIn(4);
    std::string bytes = writer_.Write(response_, flawed);
    if (!flawed && writer_.OneIn(2)) writer_.Damage(bytes);
    return bytes;
  }

  // Decodes it as an RPC delivers it, or as a ring does.
  Result<RotateReply> Read(const std::string& bytes) {
    const rope::testing::ExactFragments exact({bytes});
    const Result<ReceivedReply> reply = writer_.OneIn(4)
                                            ? ReceivedReply::ParseSmall(exact.views().front())
                                            : ReceivedReply::Parse(BufferOf(writer_.Cut(bytes)));
    if (!reply.ok()) return reply.status();
    return reply->ToReply(wanted_, *pool_);
  }

  void Check(const Result<RotateReply>& reply) {
    for (const auto& memory : memory_) EXPECT_TRUE(memory->GuardsStand());
    if (reply.ok()) return CheckTaken(*reply);
    for (const auto& memory : memory_) EXPECT_TRUE(memory->IsUntouched());
    if (reply.status().message().starts_with("reply: ")) {
      EXPECT_EQ(reply.status().code(), StatusCode::kInternal);
      ++counts_.unreadable;
    } else {
      ++counts_.errors;
    }
  }

  void CheckTaken(const RotateReply& reply) {
    ASSERT_EQ(reply.tensors.size(), wanted_.size());
    for (size_t i = 0; i < wanted_.size(); ++i) {
      EXPECT_EQ(reply.tensors[i].shape, wanted_[i].shape);
      EXPECT_EQ(reply.tensors[i].bytes, wanted_[i].bytes);
      EXPECT_TRUE(!wanted_[i].in_region || memory_[i]->IsUntouched());
    }
    ++counts_.taken;
  }

  const google::protobuf::LogSilencer silencer_;  // of broken UTF-8
  WireWriter writer_{FuzzSeed(kSeed)};
  const std::shared_ptr<OutputPool> pool_ = std::make_shared<OutputPool>(1 << 20);
  std::vector<WantedTensor> wanted_;
  std::vector<std::unique_ptr<Guarded>> memory_;
  v1::RotateResponse response_;
  Counts counts_;
};

TEST_F(ReplyFuzzTest, AnswersAreWhatWasAskedForOrWriteNothing) {
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    Ask();
    const std::string bytes = Bytes();
    SCOPED_TRACE(absl::BytesToHexString(bytes));
    Check(Read(bytes));
  }
  std::printf("measured: %lld answers taken, %lld errors of the server, %lld unreadable\n",
              static_cast<long long>(counts_.taken), static_cast<long long>(counts_.errors),
              static_cast<long long>(counts_.unreadable));
  EXPECT_GT(counts_.taken, 0);
  EXPECT_GT(counts_.errors, 0);
  EXPECT_GT(counts_.unreadable, 0);
}

}  // namespace
}  // namespace rope::client
