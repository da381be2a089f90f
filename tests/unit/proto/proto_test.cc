#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>

#include "proto/error.h"
#include "proto/flags/flags.h"
#include "proto/ipc/hello.h"
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
  const absl::Status prefixed = Prefixed("x.", MakeError({.field = "queue",
                                                          .got = "9",
                                                          .want = "8",
                                                          .retry_delay_ms = 30,
                                                          .may_have_executed = true,
                                                          .reason = Reason::kQueueFull}));
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

// Whole exchanges over sockets: tests/fuzz/hello_fuzz_test.cc, tests/e2e/region_session_test.cc.
TEST(HelloTest, ClientBytesAreAsDocumented) {
  const HelloBytes bytes = Encode(ClientHello{0x0102030405060708, 0x1112131415161718});
  constexpr char kWant[] =
      "RoPEmem1\x02\0\0\0\0\0\0\0"
      "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11";
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), std::string(kWant, sizeof(kWant) - 1));
  EXPECT_EQ(bytes[0], kHelloFirstByte);
}

TEST(HelloTest, BothComeBackAsTheyWere) {
  ASSERT_OK(client, DecodeClientHello(Encode(ClientHello{1ULL << 63, 0x8000000000000003})));
  EXPECT_EQ(client->bytes, 1ULL << 63);
  EXPECT_EQ(client->ring_bytes, 0x8000000000000003);
  ASSERT_OK(server, DecodeServerHello(Encode(ServerHello{absl::StatusCode::kFailedPrecondition,
                                                         ~0ULL, 0x8000000000000001})));
  EXPECT_EQ(server->code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(server->session, ~0ULL);
  EXPECT_EQ(server->region_id, 0x8000000000000001);
}

TEST(FlagsTest, SizesHaveBinaryUnits) {
  EXPECT_EQ(ParseSize("0"), 0);
  EXPECT_EQ(ParseSize("77"), 77);
  EXPECT_EQ(ParseSize("5KiB"), 5 << 10);
  EXPECT_EQ(ParseSize("64MiB"), 64 << 20);
  EXPECT_EQ(ParseSize("3GiB"), int64_t{3} << 30);
  EXPECT_EQ(ParseSize("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* text : {"", "MiB", "1MB", "1.5GiB", "-1", "-1KiB", "+1", " 1", "64 MiB", "1mib",
                           "9223372036854775808", "8589934592GiB"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
}

TEST(FlagsTest, DurationsHaveUnits) {
  EXPECT_EQ(ParseDuration("5s"), absl::Seconds(5));
  EXPECT_EQ(ParseDuration("200ms"), absl::Milliseconds(200));
  EXPECT_EQ(ParseDuration("1m30s"), absl::Seconds(90));
  EXPECT_EQ(ParseDuration("0"), absl::ZeroDuration());
  for (const char* text : {"", "5", "soon", "-1s", "inf", "5 s"}) {
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
  }
}

TEST(FlagsTest, BoundsAreIncludedAndErrorsNameFlagValueAndRange) {
  const auto parse = [](const std::string& argument) {
    int64_t number = 0;
    std::string size;
    std::string duration;
    const auto app = NewApp("program", "A program.");
    app->add_option("--number", number)->check(IntegerBetween(1, 9));
    app->add_option("--size", size)->check(SizeBetween(1024, 2048));
    app->add_option("--duration", duration)
        ->check(DurationBetween(absl::Seconds(1), absl::Seconds(2)));
    return std::string(ParseFlags(*app, {argument}).message());
  };
  for (const char* good : {"--number=1", "--number=9", "--size=1KiB", "--size=2048",
                           "--duration=1s", "--duration=2s"}) {
    EXPECT_EQ(parse(good), "") << good;
  }
  EXPECT_THAT(parse("--number=10"),
              HasSubstr("--number: got \"10\", want a whole number from 1 to 9"));
  EXPECT_THAT(parse("--size=3KiB"), HasSubstr("--size: got \"3KiB\", want bytes from 1024"));
  EXPECT_THAT(parse("--duration=3s"), HasSubstr("--duration: got \"3s\", want a duration from 1s"));
  EXPECT_THAT(parse("--nubmer=1"), HasSubstr("did you mean --number?"));
}

TEST(FlagsTest, EnvironmentNamesEveryFlagButHelpAndVersion) {
  const auto app = NewApp("program", "A program.");
  std::string lead;
  app->add_option("--drain_lead", lead);
  ReadEnvironment(*app);
  EXPECT_THAT(app->help(), HasSubstr("ROPE_DRAIN_LEAD"));
  EXPECT_EQ(app->help().find("ROPE_HELP"), std::string::npos);
  EXPECT_EQ(app->help().find("ROPE_VERSION"), std::string::npos);
}

TEST(FlagsTest, AVariableThatIsNearlyAFlagsIsNamed) {
  const auto app = NewApp("program", "A program.");
  std::string lead;
  app->add_option("--drain_lead", lead);
  ReadEnvironment(*app);
  for (const char* name : {"ROPE_DRAIN_LEED", "ROPE_DRAIN_LEAD", "ROPE_OTHER", "DRAIN_LEED"}) {
    setenv(name, "7s", 1);
  }
  EXPECT_THAT(MisspeltVariables(*app),
              ElementsAre("ROPE_DRAIN_LEED: is not read; did you mean ROPE_DRAIN_LEAD?"));
  for (const char* name : {"ROPE_DRAIN_LEED", "ROPE_DRAIN_LEAD", "ROPE_OTHER", "DRAIN_LEED"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace rope::proto
