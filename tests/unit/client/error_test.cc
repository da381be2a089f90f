#include "client/error.h"

#include <gtest/gtest.h>

#include <string>

#include "rope/v1/rotate.pb.h"

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
