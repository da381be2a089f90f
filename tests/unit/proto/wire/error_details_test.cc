#include "proto/wire/error_details.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "proto/error.h"
#include "rope/v1/status_details.pb.h"

namespace rope::proto {
namespace {

v1::Error QueueFull() {
  return ErrorMessageOf(MakeError({.reason = Reason::kQueueFull,
                                   .field = "queue",
                                   .got = "10",
                                   .want = "at most 5",
                                   .retry_delay_ms = 1020}));
}

// The bytes of each detail, by type URL.
std::map<std::string, std::string> DetailsOf(const v1::Error& error) {
  v1::StatusDetails details;
  EXPECT_TRUE(details.ParseFromString(EncodeStatusDetails(error)));
  EXPECT_EQ(details.code(), error.code());
  EXPECT_EQ(details.message(), error.message());
  std::map<std::string, std::string> found;
  for (const auto& detail : details.details()) found[detail.type_url()] = detail.value();
  EXPECT_EQ(found.size(), static_cast<size_t>(details.details_size()));
  return found;
}

TEST(ErrorDetailsTest, TextOfAnotherMakerIsNotReadBack) {
  const v1::Error error = ErrorMessageOf(absl::InternalError("a: got b, want c"));
  EXPECT_EQ(error.message(), "a: got b, want c");
  EXPECT_EQ(error.field() + error.got() + error.want(), "");
}

TEST(ErrorDetailsTest, ErrorSurvivesTheTrailer) {
  const auto decoded = DecodeStatusDetails(EncodeStatusDetails(QueueFull()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->SerializeAsString(), QueueFull().SerializeAsString());
}

TEST(ErrorDetailsTest, MessagesOfGoogleRpcStandBesideIt) {
  v1::Error error = QueueFull();
  error.set_may_have_executed(true);
  auto details = DetailsOf(error);
  ASSERT_EQ(details.size(), 4U);
  v1::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(details["type.googleapis.com/google.rpc.ErrorInfo"]));
  EXPECT_EQ(info.reason(), "QUEUE_FULL");
  EXPECT_EQ(info.domain(), "rope.v1");
  EXPECT_EQ(info.metadata().at("got"), "10");
  EXPECT_EQ(info.metadata().at("want"), "at most 5");
  EXPECT_EQ(info.metadata().at("may_have_executed"), "true");
  v1::BadRequest request;
  ASSERT_TRUE(request.ParseFromString(details["type.googleapis.com/google.rpc.BadRequest"]));
  EXPECT_EQ(request.field_violations(0).field(), "queue");
  EXPECT_EQ(request.field_violations(0).description(), "got 10, want at most 5");
  v1::RetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(details["type.googleapis.com/google.rpc.RetryInfo"]));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 20'000'000);
}

TEST(ErrorDetailsTest, WhatAnErrorLacksHasNoMessage) {
  EXPECT_EQ(DetailsOf(ErrorMessageOf(MakeError({.reason = Reason::kDraining}, "draining"))).size(),
            2U)
      << "the Error and ErrorInfo";
  EXPECT_EQ(DetailsOf(ErrorMessageOf(absl::InternalError("x"))).size(), 1U) << "the Error";
}

TEST(ErrorDetailsTest, GarbageHasNoError) {
  EXPECT_FALSE(DecodeStatusDetails("\xff\xff").has_value());
  EXPECT_FALSE(DecodeStatusDetails("").has_value());
}

}  // namespace
}  // namespace rope::proto
