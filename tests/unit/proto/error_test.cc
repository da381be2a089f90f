#include "proto/error.h"

#include <gtest/gtest.h>

#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

TEST(ReasonTest, ValuesAreThoseOfTheSchemaAndEachHasACode) {
  const google::protobuf::EnumDescriptor& schema = *v1::Reason_descriptor();
  EXPECT_EQ(static_cast<int>(Reason::kUnspecified), v1::REASON_UNSPECIFIED);
  EXPECT_EQ(static_cast<int>(Reason::kInternal), v1::REASON_INTERNAL);
  EXPECT_EQ(static_cast<int>(Reason::kPreparedNotFound), v1::REASON_PREPARED_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(Reason::kCredentials), v1::REASON_CREDENTIALS);
  EXPECT_EQ(schema.value_count() + 2, static_cast<int>(v1::REASON_CREDENTIALS) + 1);
  EXPECT_EQ(static_cast<int>(Reason::kInvalidField), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(static_cast<int>(Reason::kUnknownField), v1::REASON_UNKNOWN_FIELD);
  EXPECT_EQ(static_cast<int>(Reason::kNotBuilt), v1::REASON_NOT_BUILT);
  EXPECT_EQ(static_cast<int>(Reason::kPositionOutOfRange), v1::REASON_POSITION_OUT_OF_RANGE);
  EXPECT_EQ(static_cast<int>(Reason::kRegionOutOfRange), v1::REASON_REGION_OUT_OF_RANGE);
  EXPECT_EQ(static_cast<int>(Reason::kModelNotFound), v1::REASON_MODEL_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(Reason::kConfigIdNotFound), v1::REASON_CONFIG_ID_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(Reason::kRegionNotFound), v1::REASON_REGION_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(Reason::kServiceNotFound), v1::REASON_SERVICE_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(Reason::kWrongState), v1::REASON_WRONG_STATE);
  EXPECT_EQ(static_cast<int>(Reason::kSharedMemoryOff), v1::REASON_SHARED_MEMORY_OFF);
  EXPECT_EQ(static_cast<int>(Reason::kPermission), v1::REASON_PERMISSION);
  EXPECT_EQ(static_cast<int>(Reason::kQueueFull), v1::REASON_QUEUE_FULL);
  EXPECT_EQ(static_cast<int>(Reason::kBudgetFull), v1::REASON_BUDGET_FULL);
  EXPECT_EQ(static_cast<int>(Reason::kLimitExceeded), v1::REASON_LIMIT_EXCEEDED);
  EXPECT_EQ(static_cast<int>(Reason::kDraining), v1::REASON_DRAINING);
  EXPECT_EQ(static_cast<int>(Reason::kConnectionLost), v1::REASON_CONNECTION_LOST);
  EXPECT_EQ(static_cast<int>(Reason::kDeadline), v1::REASON_DEADLINE);
  EXPECT_EQ(static_cast<int>(Reason::kCancelled), v1::REASON_CANCELLED);
  EXPECT_EQ(static_cast<int>(Reason::kDeviceFault), v1::REASON_DEVICE_FAULT);
  for (int i = 0; i < schema.value_count(); ++i) {
    const int number = schema.value(i)->number();
    EXPECT_EQ(number, i < 10 ? i : i + 2) << "without gaps but 10 and 11, which are reserved";
    EXPECT_EQ(CodeOf(static_cast<Reason>(number)) == absl::StatusCode::kUnknown, number == 0)
        << schema.value(i)->name();
  }
}

TEST(MakeErrorTest, ComposesTheTextAndKeepsTheParts) {
  const absl::Status status = MakeError(Reason::kPositionOutOfRange, "positions", 7, "at most 5");
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kOutOfRange, Eq("positions: got 7, want at most 5")));
  const ErrorParts parts = PartsOf(status);
  EXPECT_EQ(parts.reason, Reason::kPositionOutOfRange);
  EXPECT_EQ(parts.field, "positions");
  EXPECT_EQ(parts.got, "7");
  EXPECT_EQ(parts.want, "at most 5");
  EXPECT_EQ(parts.retry_delay_ms, 0);
  EXPECT_FALSE(parts.may_have_executed);
}

TEST(MakeErrorTest, PartsMayHoldTheWordsOfTheText) {
  const ErrorParts parts = PartsOf(InvalidField("a: got b", "x, want y", ", want z: got "));
  EXPECT_EQ(parts.field, "a: got b");
  EXPECT_EQ(parts.got, "x, want y");
  EXPECT_EQ(parts.want, ", want z: got ");
}

TEST(MakeErrorTest, WithoutAWantOrWithATextOfItsOwn) {
  EXPECT_EQ(MakeError(Reason::kLimitExceeded, "ring", "one file more", "").message(),
            "ring: got one file more");
  const absl::Status status = MakeError({.reason = Reason::kDraining}, "server: draining");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, Eq("server: draining")));
  EXPECT_EQ(PartsOf(status).reason, Reason::kDraining);
  EXPECT_EQ(PartsOf(status).field, "");
}

TEST(PartsOfTest, StatusOfAnotherMakerHasNone) {
  EXPECT_EQ(PartsOf(absl::InternalError("a: got b, want c")).reason, Reason::kUnspecified);
  EXPECT_EQ(PartsOf(absl::InternalError("a: got b, want c")).field, "");
  EXPECT_EQ(PartsOf(absl::OkStatus()).retry_delay_ms, 0);
}

TEST(PrefixedTest, ChangesFieldAndTextTogether) {
  const absl::Status prefixed = Prefixed("rope.config.", InvalidField("factor", 0, "more"));
  EXPECT_THAT(prefixed, StatusIs(absl::StatusCode::kInvalidArgument,
                                 Eq("rope.config.factor: got 0, want more")));
  EXPECT_EQ(PartsOf(prefixed).field, "rope.config.factor");
  EXPECT_EQ(PartsOf(WithField("b", prefixed)).field, "b");
  EXPECT_EQ(WithField("b", prefixed).message(), "b: got 0, want more");
}

TEST(PrefixedTest, KeepsTheOtherParts) {
  const absl::Status prefixed = Prefixed("x.", MakeError({.reason = Reason::kQueueFull,
                                                          .field = "queue",
                                                          .got = "9",
                                                          .want = "8",
                                                          .retry_delay_ms = 30,
                                                          .may_have_executed = true}));
  EXPECT_THAT(prefixed,
              StatusIs(absl::StatusCode::kResourceExhausted, Eq("x.queue: got 9, want 8")));
  EXPECT_EQ(PartsOf(prefixed).reason, Reason::kQueueFull);
  EXPECT_EQ(PartsOf(prefixed).retry_delay_ms, 30);
  EXPECT_TRUE(PartsOf(prefixed).may_have_executed);
}

TEST(PrefixedTest, StatusWithoutFieldsGetsATextAndOkStaysOk) {
  EXPECT_THAT(Prefixed("--device: ", absl::UnavailableError("none")),
              StatusIs(absl::StatusCode::kUnavailable, Eq("--device: none")));
  EXPECT_EQ(PartsOf(Prefixed("x: ", MakeError({.reason = Reason::kDeviceFault}, "gone"))).reason,
            Reason::kDeviceFault);
  EXPECT_TRUE(Prefixed("x", absl::OkStatus()).ok());
}

TEST(MarkMayHaveExecutedTest, IsSaidBesideWhatWasWrong) {
  const absl::Status status = absl::InternalError("device: gone");
  EXPECT_FALSE(PartsOf(status).may_have_executed);
  EXPECT_TRUE(PartsOf(MarkMayHaveExecuted(status)).may_have_executed);
  EXPECT_THAT(MarkMayHaveExecuted(status),
              StatusIs(absl::StatusCode::kInternal, Eq("device: gone")));
}

}  // namespace
}  // namespace rope::proto
