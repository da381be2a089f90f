#include "proto/wire/message_split.h"

#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <random>

#include "rope/v1/admin.pb.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

const Schema& RequestSchema() {
  return Schema::Of(v1::RotateRequest::descriptor());
}

v1::RotateRequest SampleRequest() {
  v1::RotateRequest request;
  request.set_request_id("sample");
  request.mutable_rope()->mutable_config()->set_rope_theta(10000);
  request.mutable_rope()->mutable_config()->add_short_factor(1.5);
  request.mutable_rope()->mutable_config()->add_short_factor(2.5);
  request.mutable_positions()->add_seq_lens(7);
  request.mutable_positions()->add_seq_lens(-1);
  request.mutable_positions()->mutable_position_ids()->add_numbers(3);
  for (const char* raw : {"first payload", "second"}) {
    v1::Tensor* tensor = request.add_tensors();
    tensor->set_layout("THD");
    tensor->mutable_array()->add_shape(1);
    tensor->mutable_array()->set_raw(raw);
  }
  return request;
}

// Cuts `bytes` into fragments of `size`.
std::vector<std::string_view> Cut(std::string_view bytes, size_t size) {
  std::vector<std::string_view> fragments;
  for (size_t i = 0; i < bytes.size(); i += size) fragments.push_back(bytes.substr(i, size));
  return fragments;
}

absl::StatusOr<SplitMessage> SplitWhole(const std::string& bytes,
                                        const SplitOptions& options = {}) {
  const std::string_view fragments[] = {bytes};
  return Split(RequestSchema(), fragments, options);
}

// The original message: the skeleton with its payloads put back.
v1::RotateRequest Restore(const SplitMessage& split) {
  v1::RotateRequest request;
  EXPECT_TRUE(request.ParseFromString(split.skeleton));
  for (v1::Tensor& tensor : *request.mutable_tensors()) {
    if (!HasPayload(tensor.array())) continue;
    const FragmentedBytes& payload = PayloadOf(tensor.array(), split);
    std::string raw(static_cast<size_t>(payload.bytes), '\0');
    payload.CopyTo(raw.data());
    tensor.mutable_array()->set_raw(raw);
  }
  return request;
}

TEST(MessageSplitTest, AnyFragmentSizeGivesTheMessageThatTheGeneratedParserGives) {
  const v1::RotateRequest request = SampleRequest();
  const std::string bytes = request.SerializeAsString();
  for (size_t size = 1; size <= bytes.size(); ++size) {
    const auto split = Split(RequestSchema(), Cut(bytes, size));
    ASSERT_THAT(split, IsOk()) << size;
    EXPECT_EQ(split->payloads.size(), 2u);
    EXPECT_EQ(Restore(*split).SerializeAsString(), bytes) << size;
  }
}

TEST(MessageSplitTest, PayloadsStayWhereTheyWereReceived) {
  const std::string bytes = SampleRequest().SerializeAsString();
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

TEST(MessageSplitTest, SingularFieldTwiceIsInvalidArgumentByPath) {
  v1::RotateRequest request;
  request.set_request_id("a");
  const std::string bytes = request.SerializeAsString();
  EXPECT_THAT(SplitWhole(bytes + bytes), IsInvalid("request_id: got it more"));
  v1::Tensor tensor;
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  const std::string once = tensor.SerializeAsString();
  v1::RotateRequest outer;
  std::string nested = once + once;
  std::string wire = std::string("\x7a") + static_cast<char>(nested.size()) + nested;
  EXPECT_THAT(SplitWhole(wire), IsInvalid("tensors[0].array: got it"));
}

TEST(MessageSplitTest, TwoMembersOfAOneofAreInvalidArgumentByPath) {
  v1::RotateRequest model;
  model.mutable_rope()->set_model("m");
  v1::RotateRequest id;
  id.mutable_rope()->set_config_id("i");
  const std::string nested = model.rope().SerializeAsString() + id.rope().SerializeAsString();
  const std::string wire = std::string("\x12") + static_cast<char>(nested.size()) + nested;
  EXPECT_THAT(SplitWhole(wire),
              IsInvalid("rope: got model and config_id, want exactly one of model, "
                        "config_id, config, config_json"));
  // An empty string is a member as well.
  const std::string empty = std::string("\x0a\0\x12\0", 4);
  EXPECT_THAT(SplitWhole(std::string("\x12\x04") + empty), IsInvalid("got model and config_id"));
}

TEST(MessageSplitTest, RepeatedFieldsMayRepeatPackedOrNot) {
  v1::RotateRequest request;
  request.mutable_positions()->add_seq_lens(300);
  std::string packed = request.positions().SerializeAsString();
  packed += std::string("\x28\x07", 2);  // seq_lens: 7, unpacked
  const std::string wire = std::string("\x1a") + static_cast<char>(packed.size()) + packed;
  ASSERT_OK(split, SplitWhole(wire));
  ASSERT_TRUE(request.ParseFromString(split->skeleton));
  EXPECT_THAT(request.positions().seq_lens(), ::testing::ElementsAre(300, 7));
}

TEST(MessageSplitTest, UnknownFieldNumberIsUnimplementedByPath) {
  v1::RotateRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(99, 1);
  EXPECT_THAT(SplitWhole(request.SerializeAsString()), IsUnimplemented("unknown field number 99"));
  request.Clear();
  v1::RopeConfig* config = request.mutable_rope()->mutable_config();
  config->GetReflection()->MutableUnknownFields(config)->AddFixed64(77, 1);
  EXPECT_THAT(SplitWhole(request.SerializeAsString()),
              IsUnimplemented("rope.config: got unknown field number 77"));
}

TEST(MessageSplitTest, UnknownFieldsOfAnAnswerAreSkipped) {
  v1::RotateRequest request = SampleRequest();
  auto* unknown = request.GetReflection()->MutableUnknownFields(&request);
  unknown->AddVarint(99, 1);
  unknown->AddFixed32(100, 1);
  unknown->AddFixed64(101, 1);
  unknown->AddLengthDelimited(102, "text");
  const std::string bytes = request.SerializeAsString();  // the payloads of `split` refer to it
  ASSERT_OK(split, SplitWhole(bytes, {.unknown_fields = UnknownFields::kSkip}));
  EXPECT_EQ(Restore(*split).SerializeAsString(), SampleRequest().SerializeAsString());
}

TEST(MessageSplitTest, PlannedFieldIsUnimplementedByPath) {
  v1::RegisterRegionRequest request;
  request.set_cuda_handle("handle");
  const std::string bytes = request.SerializeAsString();
  const std::string_view fragments[] = {bytes};
  EXPECT_THAT(Split(Schema::Of(v1::RegisterRegionRequest::descriptor()), fragments),
              IsUnimplemented("cuda_handle: got"));
}

TEST(MessageSplitTest, WrongWireTypeIsInvalidArgument) {
  EXPECT_THAT(SplitWhole(std::string("\x08\x01", 2)),
              IsInvalid("request_id: got wire type varint, want length-delimited"));
  EXPECT_THAT(SplitWhole(std::string("\x0b\x0c", 2)), IsInvalid("start-group"));
  EXPECT_THAT(SplitWhole(std::string("\x00\x01", 2)), IsInvalid("field number 0"));
}

TEST(MessageSplitTest, LengthsPastTheirMessageAreInvalidArgument) {
  EXPECT_THAT(SplitWhole(std::string("\x0a\x05", 2)), IsInvalid("a length of 5 bytes"));
  // A nested field that ends past its own message, but not past the request.
  EXPECT_THAT(SplitWhole(std::string("\x12\x02\x0a\x05VWXYZ", 9)), IsInvalid("rope.model"));
  EXPECT_THAT(SplitWhole(std::string("\x12\x01\x38\x01", 4)), IsInvalid("rope: got a field"));
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

TEST(MessageSplitTest, MutatedBytesNeverCrashAndAcceptedOnesMatchTheGeneratedParser) {
  const std::string sample = SampleRequest().SerializeAsString();
  std::mt19937 random(20260101);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = sample;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto split = Split(RequestSchema(), Cut(bytes, 1 + random() % 40));
    if (!split.ok()) continue;
    v1::RotateRequest parsed;
    v1::RotateRequest skeleton;
    const bool parses = parsed.ParseFromString(bytes);
    ASSERT_EQ(skeleton.ParseFromString(split->skeleton), parses);
    if (!parses) continue;
    EXPECT_EQ(Restore(*split).SerializeAsString(), parsed.SerializeAsString());
    ++accepted;
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace rope::proto
