// The decoder of the server. Requests of every method in legal, flawed and damaged forms, and bytes
// that are no message. Each must decode to a message that the generated parser also accepts, or
// fail with a status that names the error.
//
// ROPE_FUZZ_ROUNDS=N sets the number of messages for each test, ROPE_FUZZ_SEED=N the seed.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "grpc/health/v1/health.pb.h"
#include "rope/v1/rope_service.pb.h"
#include "rope/v1/rotate.pb.h"
#include "server/grpc/rope_codec.h"
#include "server/limits.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::server {
namespace {

using google::protobuf::Message;
using google::protobuf::ServiceDescriptor;
using ::rope::testing::BufferOf;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;
using ::rope::testing::WireWriter;

constexpr uint64_t kRounds = 120000;
constexpr uint64_t kSeed = 20260104;

// The request type of every method of the services.
std::vector<const Message*> RequestTypes() {
  std::vector<const Message*> types;
  for (const ServiceDescriptor* service :
       {v1::GetServerInfoRequest::descriptor()->file()->service(0),
        grpc::health::v1::HealthCheckRequest::descriptor()->file()->service(0)}) {
    for (int i = 0; i < service->method_count(); ++i) {
      types.push_back(google::protobuf::MessageFactory::generated_factory()->GetPrototype(
          service->method(i)->input_type()));
    }
  }
  return types;
}

void ExpectSaysWhatIsWrong(const absl::Status& status) {
  EXPECT_THAT(status.code(),
              ::testing::AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented,
                               absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(": got "), HasSubstr(", want ")));
}

class DecodeFuzzTest : public ::testing::Test {
 protected:
  std::string Bytes(const Message& type) {
    if (writer_.OneIn(32)) return writer_.RandomBytes(writer_.Below(200));
    const bool flawed = writer_.OneIn(4);
    std::string bytes = writer_.Write(*writer_.RandomMessage(type), flawed);
    if (!flawed && writer_.OneIn(2)) writer_.Damage(bytes);
    return bytes;
  }

  void Count(const absl::Status& status) {
    ++(status.ok() ? taken_ : refused_);
    if (!status.ok()) ExpectSaysWhatIsWrong(status);
  }
  void ExpectBothWereSeen() const {
    std::printf("measured: %lld messages taken, %lld refused\n", static_cast<long long>(taken_),
                static_cast<long long>(refused_));
    EXPECT_GT(taken_, 0);
    EXPECT_GT(refused_, 0);
  }

  const google::protobuf::LogSilencer silencer_;  // broken UTF-8 is logged
  WireWriter writer_{FuzzSeed(kSeed)};
  int64_t taken_ = 0;
  int64_t refused_ = 0;
};

TEST_F(DecodeFuzzTest, RequestsOfEveryMethodAreTakenOrRefusedByName) {
  const std::vector<const Message*> types = RequestTypes();
  ASSERT_GE(types.size(), 12u);
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const Message& type = *types[round % types.size()];
    const std::string bytes = Bytes(type);
    SCOPED_TRACE(type.GetTypeName() + " " + absl::BytesToHexString(bytes));
    const std::unique_ptr<Message> decoded(type.New());
    grpc::ByteBuffer buffer = BufferOf(writer_.Cut(bytes));
    const absl::Status status = DecodeMessage(buffer, *decoded);
    Count(status);
    const std::unique_ptr<Message> parsed(type.New());
    EXPECT_TRUE(!status.ok() || parsed->ParseFromString(bytes));
  }
  ExpectBothWereSeen();
}

class DecodeRotateFuzzTest : public DecodeFuzzTest {
 protected:
  struct Read {
    Arrival arrival;
    absl::StatusOr<Decoded> decoded;
  };

  // Decodes the message in fragments, as gRPC delivers it, and in one piece, as a ring does.
  Read ReadWhole(const std::string& bytes, int64_t bytes_max) {
    Read read;
    grpc::ByteBuffer buffer = BufferOf(writer_.Cut(bytes));
    read.decoded = DecodeRequest(buffer, bytes_max, read.arrival);
    return read;
  }
  Read ReadSmall(const std::string& bytes, int64_t bytes_max) {
    Read read;
    read.decoded = DecodeSmallRequest(bytes, bytes_max, read.arrival);
    return read;
  }

  static std::vector<std::string> Payloads(const Decoded& decoded) {
    std::vector<std::string> payloads;
    for (const proto::FragmentedBytes& payload : decoded.split.payloads) {
      payloads.emplace_back(static_cast<size_t>(payload.bytes), '\0');
      payload.CopyTo(payloads.back().data());
    }
    return payloads;
  }
};

TEST_F(DecodeRotateFuzzTest, RotateReadsTheSameFromARingAsFromGrpc) {
  const v1::RotateRequest type;
  const uint64_t rounds = FuzzRounds(kRounds / 4);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const std::string bytes = Bytes(type);
    const int64_t bytes_max =
        writer_.OneIn(8) ? static_cast<int64_t>(writer_.Below(1000)) : limits::kMessageBytesMax;
    SCOPED_TRACE(absl::BytesToHexString(bytes));
    const Read whole = ReadWhole(bytes, bytes_max);
    const Read small = ReadSmall(bytes, bytes_max);
    Count(whole.decoded.status());
    EXPECT_EQ(small.decoded.status(), whole.decoded.status());
    EXPECT_EQ(small.arrival.id, whole.arrival.id);
    if (small.decoded.ok() && whole.decoded.ok()) {
      EXPECT_EQ(small.decoded->split.skeleton, whole.decoded->split.skeleton);
      EXPECT_EQ(Payloads(*small.decoded), Payloads(*whole.decoded));
    }
    if (static_cast<int64_t>(bytes.size()) > bytes_max) {
      EXPECT_THAT(whole.decoded.status(), IsExhausted("--max_message_bytes"));
    }
  }
  ExpectBothWereSeen();
}

}  // namespace
}  // namespace rope::server
