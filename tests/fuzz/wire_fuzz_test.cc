// proto::Split compared with the generated parser, over messages in every legal form and over
// damaged messages. Both must accept and reject the same bytes and read the same values. Where
// proto/wire/message_split.h is stricter, its error must name the field.
//
// ROPE_FUZZ_ROUNDS=N sets the number of messages of each kind, ROPE_FUZZ_SEED=N the seed.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "proto/wire/message_split.h"
#include "proto/wire/stream_message.h"
#include "rope/v1/describe.pb.h"
#include "rope/v1/rotate.pb.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/matchers.h"

namespace rope::proto {
namespace {

using google::protobuf::Message;
using rope::testing::FuzzRounds;
using rope::testing::FuzzSeed;
using rope::testing::ReasonToRefuse;
using rope::testing::WireWriter;

constexpr uint64_t kRounds = 60000;
constexpr uint64_t kSeed = 20260101;

// Restores the payload of every array below `message`.
void Restore(const SplitMessage& split, Message& message) {
  std::vector<v1::Array*> arrays;
  rope::testing::CollectArrays(message, arrays);
  for (v1::Array* array : arrays) {
    if (!HasPayload(*array)) continue;
    const FragmentedBytes& payload = PayloadOf(*array, split);
    std::string raw(static_cast<size_t>(payload.bytes), '\0');
    payload.CopyTo(raw.data());
    array->set_raw(raw);
  }
}

// The bytes of a message, with the entries of maps in order.
std::string Deterministic(const Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  EXPECT_TRUE(message.SerializeToCodedStream(&coded));
  coded.Trim();
  return bytes;
}

struct Counts {
  int64_t same = 0;      // both accepted
  int64_t stricter = 0;  // rejected by name, but the generated parser accepts
  int64_t refused = 0;   // both rejected
};

class WireFuzzTest : public ::testing::Test {
 protected:
  // Compares both decoders over messages of the type of `prototype`.
  void Compare(const Message& prototype, UnknownFields unknown_fields) {
    const uint64_t rounds = FuzzRounds(kRounds);
    for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
      const std::unique_ptr<Message> message = writer_.RandomMessage(prototype);
      const bool flawed = writer_.OneIn(3);
      std::string bytes = writer_.Write(*message, flawed);
      if (!flawed && writer_.OneIn(2)) writer_.Damage(bytes);
      SCOPED_TRACE(absl::BytesToHexString(bytes));
      CompareOne(prototype, bytes, unknown_fields);
    }
    std::printf("measured: %s: %lld read alike, %lld refused by name, %lld refused by both\n",
                prototype.GetTypeName().c_str(), static_cast<long long>(counts_.same),
                static_cast<long long>(counts_.stricter), static_cast<long long>(counts_.refused));
    EXPECT_GT(counts_.same, 0);
    EXPECT_GT(counts_.stricter, 0);
    EXPECT_GT(counts_.refused, 0);
  }

 private:
  void CompareOne(const Message& prototype, const std::string& bytes,
                  UnknownFields unknown_fields) {
    const std::unique_ptr<Message> want(prototype.New());
    const bool parses = want->ParseFromString(bytes);
    const auto split = Split(Schema::Of(prototype.GetDescriptor()), writer_.Cut(bytes),
                             {.unknown_fields = unknown_fields});
    const std::unique_ptr<Message> got(prototype.New());
    const bool taken = split.ok() && got->ParseFromString(split->skeleton);
    if (!parses) {
      EXPECT_FALSE(taken) << "the generated parser refuses it";
      ++counts_.refused;
      return;
    }
    const bool skips = unknown_fields == UnknownFields::kSkip;
    const std::string reason = ReasonToRefuse(*prototype.GetDescriptor(), bytes, skips);
    if (!reason.empty()) {
      EXPECT_THAT(std::string(split.status().message()), StartsWith(reason));
      ++counts_.stricter;
      return;
    }
    ASSERT_TRUE(taken) << "the generated parser takes it; " << split.status();
    Restore(*split, *got);
    want->DiscardUnknownFields();  // Split skips them
    EXPECT_EQ(Deterministic(*got), Deterministic(*want));
    ++counts_.same;
  }

  const google::protobuf::LogSilencer silencer_;  // of broken UTF-8
  WireWriter writer_{FuzzSeed(kSeed)};
  Counts counts_;
};

// Both readers know the same schema: one by hand and without the request inside, one whole.
TEST_F(WireFuzzTest, StreamMessageIsReadAsTheWholeMessageIs) {
  const google::protobuf::LogSilencer silencer;
  WireWriter writer(FuzzSeed(kSeed));
  const Schema& outer = Schema::Of(v1::RotateStreamRequest::descriptor());
  const Schema& inner = Schema::Of(v1::RotateRequest::descriptor());
  int64_t taken = 0;
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const std::unique_ptr<Message> message = writer.RandomMessage(v1::RotateStreamRequest());
    const bool flawed = writer.OneIn(3);
    std::string bytes = writer.Write(*message, flawed);
    if (!flawed && writer.OneIn(2)) writer.Damage(bytes);
    SCOPED_TRACE(absl::BytesToHexString(bytes));
    const auto fragments = writer.Cut(bytes);
    const auto whole = Split(outer, fragments);
    StreamMessage read;
    absl::Status status = ReadStreamMessage(fragments, read);
    if (status.ok() && read.rotate.has_value()) {
      status = Split(inner, read.rotate->fragments).status();
    }
    ASSERT_EQ(status.ok(), whole.ok()) << status << "; " << whole.status();
    v1::RotateStreamRequest parsed;
    if (!whole.ok() || !parsed.ParseFromString(whole->skeleton)) continue;
    EXPECT_EQ(read.sequence, parsed.sequence());
    EXPECT_EQ(read.cancel, parsed.has_cancel());
    EXPECT_EQ(read.rotate.has_value(), parsed.has_rotate());
    ++taken;
  }
  EXPECT_GT(taken, 0);
}

TEST_F(WireFuzzTest, RotateRequestIsReadAsTheGeneratedParserReadsIt) {
  Compare(v1::RotateRequest(), UnknownFields::kRefuse);
}

TEST_F(WireFuzzTest, DescribeRequestIsReadAsTheGeneratedParserReadsIt) {
  Compare(v1::DescribeRequest(), UnknownFields::kRefuse);
}

TEST_F(WireFuzzTest, RotateResponseIsReadAsTheGeneratedParserReadsItButForUnknownFields) {
  Compare(v1::RotateResponse(), UnknownFields::kSkip);
}

}  // namespace
}  // namespace rope::proto
