#include "client/error.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/error.h"

namespace rope::client {
namespace {

TEST(ClientErrorTest, ReasonsHaveTheValuesAndNamesOfTheSchema) {
  const google::protobuf::EnumDescriptor& schema = *v1::Reason_descriptor();
  for (int i = 0; i < schema.value_count(); ++i) {
    EXPECT_EQ("REASON_" + std::string(Name(static_cast<Reason>(schema.value(i)->number()))),
              schema.value(i)->name());
  }
  EXPECT_STREQ(Name(static_cast<Reason>(schema.value(schema.value_count() - 1)->number() + 1)),
               "UNSPECIFIED");
}

TEST(ClientErrorTest, MadeErrorHasCodeTextAndParts) {
  const Status status = MakeError(Reason::kLimitExceeded, "arena_bytes", 7, "at most 5");
  EXPECT_EQ(status.ToString(), "RESOURCE_EXHAUSTED: arena_bytes: got 7, want at most 5");
  EXPECT_EQ(status.detail().reason, Reason::kLimitExceeded);
  EXPECT_EQ(status.detail().field, "arena_bytes");
  EXPECT_EQ(status.detail().got, "7");
  EXPECT_EQ(status.detail().want, "at most 5");
}

TEST(ClientErrorTest, FieldWithinAnotherChangesTextAndFieldTogether) {
  const Status status = Within("tensors[0]", InvalidField("shape[1]", -1, "a length >= 0"));
  EXPECT_EQ(status.message(), "tensors[0].shape[1]: got -1, want a length >= 0");
  EXPECT_EQ(status.detail().field, "tensors[0].shape[1]");
}

TEST(ClientErrorTest, ErrorsOfTheServerKeepEveryPart) {
  const absl::Status queue_full = proto::MakeError({.reason = proto::Reason::kQueueFull,
                                                    .field = "queue",
                                                    .got = "9",
                                                    .want = "8",
                                                    .retry_delay_ms = 20,
                                                    .may_have_executed = true});
  const Status status = ToStatus(queue_full);
  EXPECT_EQ(status.ToString(), "RESOURCE_EXHAUSTED: queue: got 9, want 8");
  EXPECT_EQ(status.detail().reason, Reason::kQueueFull);
  EXPECT_EQ(status.detail().retry_delay_ms, 20);
  EXPECT_TRUE(status.detail().may_have_executed);
}

TEST(ClientErrorTest, ReasonOfALaterServerIsUnspecified) {
  v1::Error error;
  error.set_reason(static_cast<v1::Reason>(1000));
  EXPECT_EQ(DetailOf(error).reason, Reason::kUnspecified);
  error.set_reason(v1::REASON_DEVICE_FAULT);
  EXPECT_EQ(DetailOf(error).reason, Reason::kDeviceFault);
}

TEST(ClientErrorTest, ErrorsOfGrpcGetTheReasonOfTheirCode) {
  EXPECT_EQ(ReasonOf(StatusCode::kUnavailable), Reason::kConnectionLost);
  EXPECT_EQ(ReasonOf(StatusCode::kDeadlineExceeded), Reason::kDeadline);
  EXPECT_EQ(ReasonOf(StatusCode::kDataLoss), Reason::kUnspecified);
}

}  // namespace
}  // namespace rope::client
