#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/error.h"
#include "proto/wire/error_details.h"
#include "proto/wire/message_join.h"
#include "proto/wire/message_split.h"
#include "proto/wire/rope_config.h"
#include "proto/wire/stream_message.h"
#include "proto/wire/wire_cursor.h"
#include "rope/v1/admin.pb.h"
#include "rope/v1/rotate.pb.h"
#include "rope/v1/status_details.pb.h"
#include "tests/support/filled_message.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

v1::Error QueueFull() {
  return ErrorMessageOf(MakeError({.field = "queue",
                                   .got = "10",
                                   .want = "at most 5",
                                   .retry_delay_ms = 1020,
                                   .reason = Reason::kQueueFull}));
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

v1::Tensor MakeTensor(int64_t tokens) {
  v1::Tensor tensor;
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("THD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_BF16);
  tensor.mutable_array()->add_shape(tokens);
  return tensor;
}

std::string Flatten(const v1::RotateRequest& head, absl::Span<const TensorPart> tensors) {
  std::string bytes;
  for (const MessagePart& part : Join(head, tensors)) {
    bytes += part.header;
    bytes += part.payload;
  }
  return bytes;
}

TEST(MessageJoinTest, IsByteForByteWhatTheGeneratedSerializerWrites) {
  for (const size_t payload_bytes : {size_t{1}, size_t{127}, size_t{128}, size_t{70000}}) {
    v1::RotateRequest expected;
    expected.set_request_id("r1");
    expected.mutable_rope()->set_model("llama-3.1-8b");
    expected.mutable_positions()->set_start(5);
    const v1::RotateRequest head = expected;
    const v1::Tensor q = MakeTensor(1);
    const v1::Tensor k = MakeTensor(300);
    const std::string q_raw(payload_bytes, 'q');
    const std::string k_raw(payload_bytes + 1, 'k');
    for (const auto& [tensor, raw] : {std::pair(q, q_raw), std::pair(k, k_raw)}) {
      v1::Tensor* added = expected.add_tensors();
      *added = tensor;
      added->mutable_array()->set_raw(raw);
    }
    const TensorPart parts[] = {{&q, q_raw}, {&k, k_raw}};
    EXPECT_EQ(Flatten(head, parts), expected.SerializeAsString()) << payload_bytes;
  }
}

TEST(MessageJoinTest, TensorsWithNumbersAndWithoutArraysKeepThem) {
  v1::RotateRequest head;
  head.set_request_id("r1");
  v1::Tensor numbers = MakeTensor(1);
  numbers.mutable_array()->add_numbers(0.5);
  v1::Tensor bare;
  bare.set_role(v1::ROLE_K);
  v1::RotateRequest expected = head;
  *expected.add_tensors() = numbers;
  *expected.add_tensors() = bare;
  const TensorPart parts[] = {{&numbers, {}}, {&bare, {}}};
  EXPECT_EQ(Flatten(head, parts), expected.SerializeAsString());
}

// What is read and what is refused: tests/fuzz/wire_fuzz_test.cc, against the generated parser.
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

// A value in every field but mrope_axes, which excludes mrope_section.
v1::RopeConfig FullConfig() {
  v1::RopeConfig config;
  rope::testing::Fill(config);
  config.set_rope_type("yarn");
  config.clear_mrope_axes();
  config.add_mrope_section(4);
  config.set_mrope_layout(v1::MROPE_LAYOUT_INTERLEAVED);
  v1::Array& inv_freq = *config.mutable_inv_freq();
  inv_freq.Clear();
  inv_freq.set_dtype(v1::DTYPE_FP64);
  inv_freq.add_shape(1);
  inv_freq.add_numbers(0.5);
  return config;
}

TEST(RopeConfigTest, EveryFieldSurvivesReadingAndWriting) {
  const v1::RopeConfig config = FullConfig();
  ASSERT_OK(read, ReadRopeConfig(config));
  EXPECT_EQ(WriteRopeConfig(*read).DebugString(), config.DebugString());
  for (int i = 0; i < config.GetDescriptor()->field_count(); ++i) {
    const auto* field = config.GetDescriptor()->field(i);
    if (field->name().rfind("mrope", 0) == 0) continue;  // their rules are cases
    v1::RopeConfig without = config;
    without.GetReflection()->ClearField(&without, field);
    EXPECT_FALSE(*ReadRopeConfig(without) == *read) << field->name();
  }
}

TEST(RopeConfigTest, AxesOfFrequenciesTakeThePlaceOfSections) {
  v1::RopeConfig config;
  config.set_rope_type("default");
  config.set_rope_theta(10000);
  for (const int axis : {2, 1, 0, 2}) config.add_mrope_axes(axis);
  ASSERT_OK(read, ReadRopeConfig(config));
  EXPECT_EQ(read->mrope->axes, (std::vector<int8_t>{2, 1, 0, 2}));
  EXPECT_EQ(WriteRopeConfig(*read).DebugString(), config.DebugString());
  EXPECT_FALSE(*read == RopeConfig());
}

TEST(RopeConfigTest, CompatAndPrecisionAreRead) {
  EXPECT_EQ(*ReadCompat(v1::COMPAT_UNSPECIFIED), Compat::kDefault);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_HF), Compat::kHf);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_VLLM), Compat::kVllm);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_LLAMACPP), Compat::kLlamacpp);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_DEEPSEEK), Compat::kDeepseek);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_UNSPECIFIED), Precision::kExact);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_EXACT), Precision::kExact);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_HF), Precision::kHf);
}

absl::Status Read(const std::string& bytes, StreamMessage& message) {
  const std::string_view fragments[] = {bytes};
  return ReadStreamMessage(fragments, message);
}

TEST(StreamPrefixTest, PrefixAndRequestAreWhatTheGeneratedSerializerWrites) {
  v1::RotateStreamRequest message;
  message.mutable_rotate()->set_request_id(std::string(300, 'x'));
  const std::string rotate = message.rotate().SerializeAsString();
  for (const uint64_t sequence :
       {uint64_t{1}, uint64_t{128}, std::numeric_limits<uint64_t>::max()}) {
    message.set_sequence(sequence);
    EXPECT_EQ(StreamPrefix(sequence, static_cast<int64_t>(rotate.size())) + rotate,
              message.SerializeAsString());
  }
}

TEST(ReadStreamMessageTest, ErrorNamesTheFieldAndKeepsTheNumber) {
  struct Case {
    std::string bytes;
    std::string error;
    uint64_t sequence;
  };
  const std::string sequence("\x08\x07", 2);
  const std::string rotate("\x7a\0", 2);
  const std::string cancel("\x12\0", 2);
  const Case cases[] = {
      {sequence + sequence, "sequence: got it more than once", 7},
      {sequence + rotate + rotate, "rotate: got it more than once", 7},
      {sequence + cancel + cancel, "cancel: got it more than once", 7},
      {sequence + cancel + rotate, "request: got cancel and rotate", 7},
      {sequence + rotate + cancel, "request: got cancel and rotate", 7},
      {sequence + std::string("\x12\x01x"), "cancel: got fields", 7},
      {sequence + std::string("\x10\x01"), "cancel: got another wire type", 7},
      {sequence + std::string("\x78\x01"), "rotate: got another wire type", 7},
      {std::string("\x0a\0", 2), "sequence: got another wire type", 0},
      {sequence + std::string("\x7a\x05"), "message: got ", 7},
      {std::string("\0", 1), "request: got field number 0", 0},
  };
  for (const Case& c : cases) {
    StreamMessage message;
    EXPECT_THAT(Read(c.bytes, message),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(c.error)));
    EXPECT_EQ(message.sequence, c.sequence) << c.error;
  }
}

TEST(WireCursorTest, TagHasThirtyTwoBitsInAtMostFiveBytes) {
  const std::vector<std::string_view> fragments = {"\x8a\x80\x80", "\x80\x70",
                                                   "\x8a\x80\x80\x80\x80"};
  WireCursor cursor(fragments);
  ASSERT_OK(tag, cursor.ReadTag());
  EXPECT_EQ(*tag, 10u);  // bits that do not fit are dropped
  EXPECT_THAT(cursor.ReadTag(), IsInvalid("a tag of more than 5"));
}

TEST(WireCursorTest, LengthIsBelowTwoGibibytesInAtMostFiveBytes) {
  const auto read = [](std::string_view bytes) { return WireCursor({&bytes, 1}).ReadLength(); };
  ASSERT_OK(largest, read("\xef\xff\xff\xff\x07"));
  EXPECT_EQ(*largest, (int64_t{1} << 31) - 17);
  EXPECT_THAT(read("\xf0\xff\xff\xff\x07"), IsInvalid("got a length of 2147483632"));
  EXPECT_THAT(read("\x81\x80\x80\x80\x80"), IsInvalid("a length of more than 5"));
}

}  // namespace
}  // namespace rope::proto
