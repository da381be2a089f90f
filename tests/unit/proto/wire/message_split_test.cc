// What is read and what is refused: tests/fuzz/wire_fuzz_test.cc, against the generated parser.
#include "proto/wire/message_split.h"

#include <gtest/gtest.h>

#include "rope/v1/admin.pb.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

absl::StatusOr<SplitMessage> SplitWhole(const std::string& bytes,
                                        const SplitOptions& options = {}) {
  const std::string_view fragments[] = {bytes};
  return Split(Schema::Of(v1::RotateRequest::descriptor()), fragments, options);
}

TEST(MessageSplitTest, PayloadsStayWhereTheyWereReceived) {
  v1::RotateRequest request;
  request.add_tensors()->mutable_array()->set_raw("first payload");
  const std::string bytes = request.SerializeAsString();
  ASSERT_OK(split, SplitWhole(bytes));
  EXPECT_EQ(split->payloads[0].fragments[0].data(), bytes.data() + bytes.find("first payload"));
}

TEST(MessageSplitTest, EmptyMessageAndEmptyRawAreLegal) {
  EXPECT_THAT(SplitWhole(""), IsOk());
  v1::RotateRequest request;
  std::string bytes = request.SerializeAsString();
  // tensors { array { raw: "" } }; the serializer would omit the empty field.
  bytes += std::string("\x7a\x04\x7a\x02\x7a\x00", 6);
  ASSERT_OK(split, SplitWhole(bytes));
  ASSERT_TRUE(request.ParseFromString(split->skeleton));
  ASSERT_TRUE(HasPayload(request.tensors(0).array()));
  EXPECT_EQ(PayloadOf(request.tensors(0).array(), *split).bytes, 0);
}

TEST(MessageSplitTest, PlannedFieldIsUnimplementedByPath) {
  v1::RegisterRegionRequest request;
  request.set_cuda_handle("handle");
  const std::string bytes = request.SerializeAsString();
  const std::string_view fragments[] = {bytes};
  EXPECT_THAT(Split(Schema::Of(v1::RegisterRegionRequest::descriptor()), fragments),
              IsUnimplemented("cuda_handle: got"));
}

TEST(MessageSplitTest, SkeletonLargerThanItsLimitIsResourceExhausted) {
  v1::RotateRequest request;
  request.set_request_id(std::string(1000, 'x'));
  EXPECT_THAT(SplitWhole(request.SerializeAsString(), {.skeleton_bytes_max = 999}),
              IsExhausted("send arrays as raw"));
}

TEST(MessageSplitTest, MoreElementsThanTheLimitAreResourceExhausted) {
  v1::RotateRequest request;
  for (int i = 0; i < 5; ++i) request.add_tensors();
  const std::string bytes = request.SerializeAsString();
  EXPECT_THAT(SplitWhole(bytes, {.repeated_messages_max = 5}), IsOk());
  EXPECT_THAT(SplitWhole(bytes, {.repeated_messages_max = 4}),
              IsExhausted("tensors: got more than 4"));
}

TEST(MessageSplitTest, MoreFieldsThanTheLimitAreResourceExhausted) {
  v1::RotateRequest request;
  for (int i = 0; i < 5; ++i) request.add_tensors()->set_layout("SHD");
  request.mutable_positions()->add_seq_lens(1);
  request.mutable_positions()->add_seq_lens(2);
  const std::string bytes = request.SerializeAsString();
  EXPECT_THAT(SplitWhole(bytes, {.fields_max = 12}), IsOk()) << "packed numbers are one field";
  EXPECT_THAT(SplitWhole(bytes, {.fields_max = 11}),
              IsExhausted("request: got more than 11 fields"));
}

}  // namespace
}  // namespace rope::proto
