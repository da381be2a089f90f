#include "proto/wire/request_outline.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"
#include "proto/wire/message_split.h"
#include "proto/wire/schema.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using Values = RequestOutline::Values;

std::string BytesOf(const FragmentedBytes& payload) {
  std::string bytes(static_cast<size_t>(payload.bytes), '\0');
  payload.CopyTo(bytes.data());
  return bytes;
}

std::vector<std::string> PayloadsOf(const Values& values) {
  std::vector<std::string> payloads;
  for (const FragmentedBytes& payload : values.payloads) payloads.push_back(BytesOf(payload));
  return payloads;
}

std::optional<RequestOutline> OutlineOf(std::string_view message) {
  return RequestOutline::Of({&message, 1});
}

bool Matches(const RequestOutline& outline, std::string_view message, Values& values) {
  return outline.Matches({&message, 1}, values);
}

bool Matches(const RequestOutline& outline, std::string_view message) {
  Values values;
  return Matches(outline, message, values);
}

void AddTensor(v1::RotateRequest& request, const std::string& raw) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  tensor.mutable_array()->add_shape(1);
  tensor.mutable_array()->add_shape(static_cast<int64_t>(raw.size()) / 4);
  tensor.mutable_array()->set_raw(raw);
}

v1::RotateRequest Sample(const std::string& id, int64_t start, const std::string& q,
                         const std::string& k) {
  v1::RotateRequest request;
  request.set_request_id(id);
  request.mutable_rope()->set_model("llama");
  request.mutable_positions()->set_start(start);
  AddTensor(request, q);
  AddTensor(request, k);
  return request;
}

v1::RotateRequest Sample() {
  return Sample("step-1", 300, "query 01", "key1");
}

// A length-delimited field.
std::string Field(int number, std::string_view value) {
  std::string field = {static_cast<char>(number << 3 | 2), static_cast<char>(value.size())};
  return field.append(value);
}

// `positions` with this varint as its start, and nothing else.
std::string WithStart(std::string_view varint) {
  std::string start = "\x08";
  start += varint;
  return Field(v1::RotateRequest::kPositionsFieldNumber, start);
}

// What an outline compares, of a message without payloads.
std::string OfTextBytes(size_t bytes) {
  v1::RotateRequest request;
  request.mutable_rope()->set_config_json("");
  std::string json;
  while (request.ByteSizeLong() < bytes) {
    json.append(bytes - request.ByteSizeLong(), ' ');
    request.mutable_rope()->set_config_json(json);
  }
  while (request.ByteSizeLong() > bytes) {
    json.pop_back();
    request.mutable_rope()->set_config_json(json);
  }
  EXPECT_EQ(request.ByteSizeLong(), bytes);
  return request.SerializeAsString();
}

TEST(RequestOutlineTest, MessageHasItsOwnOutline) {
  const std::string message = Sample().SerializeAsString();
  const auto outline = OutlineOf(message);
  ASSERT_TRUE(outline.has_value());
  EXPECT_EQ(outline->message_bytes(), static_cast<int64_t>(message.size()));
  EXPECT_EQ(outline->payloads(), 2);
  Values values;
  ASSERT_TRUE(Matches(*outline, message, values));
  EXPECT_EQ(values.request_id, "step-1");
  EXPECT_THAT(values.start, Optional(300));
  EXPECT_THAT(PayloadsOf(values), ElementsAre("query 01", "key1"));
}

TEST(RequestOutlineTest, OtherIdStartAndPayloadsAreReadFromTheMessage) {
  const auto outline = OutlineOf(Sample().SerializeAsString());
  ASSERT_TRUE(outline.has_value());
  Values values;
  values.request_id = "of a message before";
  values.payloads.emplace_back();
  const std::string other = Sample("step-2", 16383, "QUERY 02", "KEY2").SerializeAsString();
  ASSERT_TRUE(Matches(*outline, other, values));
  EXPECT_EQ(values.request_id, "step-2");
  EXPECT_THAT(values.start, Optional(16383));
  EXPECT_THAT(PayloadsOf(values), ElementsAre("QUERY 02", "KEY2"));
}

TEST(RequestOutlineTest, PayloadsStayWhereTheyAre) {
  const std::string message = Sample().SerializeAsString();
  const auto outline = OutlineOf(message);
  Values values;
  ASSERT_TRUE(Matches(*outline, message, values));
  EXPECT_EQ(values.payloads[0].fragments[0].data(), message.data() + message.find("query 01"));
}

TEST(RequestOutlineTest, FragmentsMakeNoDifference) {
  const std::string learnt = Sample().SerializeAsString();
  const std::string sent = Sample("step-9", 8191, "QUERY 09", "KEY9").SerializeAsString();
  for (size_t first = 0; first <= sent.size(); ++first) {
    for (size_t second = first; second <= sent.size(); ++second) {
      const std::vector<std::string_view> learnt_parts = {
          "",
          std::string_view(learnt).substr(0, first),
          std::string_view(learnt).substr(first, second - first),
          "",
          std::string_view(learnt).substr(second),
          ""};
      const auto outline = RequestOutline::Of(learnt_parts);
      ASSERT_TRUE(outline.has_value()) << first << " " << second;
      const std::vector<std::string_view> sent_parts = {
          std::string_view(sent).substr(0, sent.size() - second),
          "",
          std::string_view(sent).substr(sent.size() - second, second - first),
          "",
          "",
          std::string_view(sent).substr(sent.size() - first)};
      Values values;
      ASSERT_TRUE(outline->Matches(sent_parts, values)) << first << " " << second;
      ASSERT_EQ(values.request_id, "step-9");
      ASSERT_THAT(values.start, Optional(8191));
      ASSERT_THAT(PayloadsOf(values), ElementsAre("QUERY 09", "KEY9"));
    }
  }
}

// Sends the message with each of its bytes changed to each other value. Returns how many match.
template <typename Check>
int CountMatchesOfOneByteChanged(const std::string& message, const Check& check) {
  const auto outline = OutlineOf(message);
  int matched = 0;
  for (size_t i = 0; i < message.size(); ++i) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string other = message;
      other[i] = static_cast<char>(other[i] ^ flip);
      Values values;
      if (!Matches(*outline, other, values)) continue;
      ++matched;
      SCOPED_TRACE(absl::BytesToHexString(other));
      v1::RotateRequest parsed;
      EXPECT_TRUE(parsed.ParseFromString(other));
      check(parsed, values);
    }
  }
  return matched;
}

TEST(RequestOutlineTest, AnyOtherByteIsAnotherRequestAndWhatMatchesIsWhatTheParserReads) {
  const google::protobuf::LogSilencer silencer;  // of broken UTF-8
  const v1::RotateRequest sample = Sample();
  const std::string message = sample.SerializeAsString();
  const auto check = [&](v1::RotateRequest& parsed, const Values& values) {
    EXPECT_EQ(parsed.request_id(), values.request_id);
    EXPECT_THAT(values.start, Optional(parsed.positions().start()));
    EXPECT_THAT(PayloadsOf(values),
                ElementsAre(parsed.tensors(0).array().raw(), parsed.tensors(1).array().raw()));
    parsed.set_request_id(sample.request_id());
    parsed.mutable_positions()->set_start(sample.positions().start());
    for (const int tensor : {0, 1}) {
      parsed.mutable_tensors(tensor)->mutable_array()->set_raw(
          sample.tensors(tensor).array().raw());
    }
    EXPECT_EQ(parsed.SerializeAsString(), message);
  };
  // 6 characters of ASCII, a varint of two bytes, 12 bytes of any value.
  EXPECT_EQ(CountMatchesOfOneByteChanged(message, check), 6 * 127 + 2 * 127 + 12 * 255);
}

// The sample with k in a region and both results in one.
v1::RotateRequest WithSpans(uint64_t region_id, uint64_t offset) {
  v1::RotateRequest request = Sample();
  v1::Array& k = *request.mutable_tensors(1)->mutable_array();
  k.clear_raw();
  k.mutable_region()->set_region_id(region_id);
  k.mutable_region()->set_offset(offset);
  for (const uint64_t more : {1000, 2000}) {
    v1::RegionSpan& span = *request.mutable_output()->add_regions();
    span.set_region_id(region_id);
    span.set_offset(offset + more);
  }
  return request;
}

std::vector<std::tuple<bool, uint64_t, uint64_t>> SpansOf(const Values& values) {
  std::vector<std::tuple<bool, uint64_t, uint64_t>> spans;
  for (const auto& span : values.spans) {
    spans.emplace_back(span.is_output, span.region_id, span.offset);
  }
  return spans;
}

TEST(RequestOutlineTest, SpansAreReadFromTheMessage) {
  const std::string message = WithSpans(uint64_t{1} << 63, 300).SerializeAsString();
  const auto outline = OutlineOf(message);
  ASSERT_TRUE(outline.has_value());
  EXPECT_EQ(outline->payloads(), 1);
  Values values;
  constexpr uint64_t kOther = ~uint64_t{0};
  const std::string other = WithSpans(kOther, 9000).SerializeAsString();
  ASSERT_TRUE(Matches(*outline, other, values));
  // In the order of the wire: output's field number is below that of the tensors.
  EXPECT_THAT(SpansOf(values),
              ElementsAre(std::tuple(true, kOther, 10000U), std::tuple(true, kOther, 11000U),
                          std::tuple(false, kOther, 9000U)));
  EXPECT_FALSE(Matches(*outline, WithSpans(kOther, 100000).SerializeAsString()));
  EXPECT_FALSE(Matches(*outline, WithSpans(7, 300).SerializeAsString()));
  EXPECT_FALSE(Matches(*outline, Sample().SerializeAsString()));
}

TEST(RequestOutlineTest, AnyOtherByteBesideASpanIsAnotherRequest) {
  const auto check = [](const v1::RotateRequest& parsed, const Values& values) {
    const auto& k = parsed.tensors(1).array().region();
    const auto& outputs = parsed.output().regions();
    EXPECT_THAT(SpansOf(values),
                ElementsAre(std::tuple(true, outputs[0].region_id(), outputs[0].offset()),
                            std::tuple(true, outputs[1].region_id(), outputs[1].offset()),
                            std::tuple(false, k.region_id(), k.offset())));
  };
  // 6 characters of ASCII, 8 bytes of any value, 7 varints of two bytes.
  EXPECT_EQ(CountMatchesOfOneByteChanged(WithSpans(300, 400).SerializeAsString(), check),
            6 * 127 + 8 * 255 + 7 * 2 * 127);
}

TEST(RequestOutlineTest, SpanWithoutOffsetIsAtTheBeginning) {
  const auto outline = OutlineOf(WithSpans(300, 0).SerializeAsString());
  Values values;
  ASSERT_TRUE(Matches(*outline, WithSpans(301, 0).SerializeAsString(), values));
  EXPECT_EQ(SpansOf(values)[2], std::tuple(false, 301U, 0U));
}

// Positions that lie in a region decide more than where tensors are.
TEST(RequestOutlineTest, SpanOfPositionsIsCompared) {
  const auto in_region = [](uint64_t offset) {
    v1::RotateRequest request = Sample();
    v1::Array& starts = *request.mutable_positions()->mutable_starts();
    starts.mutable_region()->set_region_id(300);
    starts.mutable_region()->set_offset(offset);
    return request.SerializeAsString();
  };
  const auto outline = OutlineOf(in_region(400));
  EXPECT_TRUE(Matches(*outline, in_region(400)));
  EXPECT_FALSE(Matches(*outline, in_region(401)));
}

TEST(RequestOutlineTest, LongerOrShorterMessageIsAnother) {
  const std::string message = Sample().SerializeAsString();
  const auto outline = OutlineOf(message);
  EXPECT_FALSE(Matches(*outline, ""));
  EXPECT_FALSE(Matches(*outline, message.substr(0, message.size() - 1)));
  EXPECT_FALSE(Matches(*outline, message + '\0'));
  EXPECT_FALSE(Matches(*outline, Sample("step-10", 300, "query 01", "key1").SerializeAsString()));
  EXPECT_FALSE(Matches(*outline, Sample("step-1", 127, "query 01", "key1").SerializeAsString()));
  EXPECT_FALSE(Matches(*outline, Sample("step-1", 16384, "query 01", "key1").SerializeAsString()));
}

TEST(RequestOutlineTest, BytesThatMoveFromOneValueToAnotherAreAnother) {
  const auto outline = OutlineOf(Sample().SerializeAsString());
  EXPECT_FALSE(Matches(*outline, Sample("step-", 16384, "query 01", "key1").SerializeAsString()));
  EXPECT_FALSE(Matches(*outline, Sample("step-1", 300, "key1", "query 01").SerializeAsString()));
}

TEST(RequestOutlineTest, StartIsAVarintThatFillsItsPlace) {
  const auto outline = OutlineOf(WithStart("\xac\x02"));
  ASSERT_TRUE(outline.has_value());
  Values values;
  ASSERT_TRUE(Matches(*outline, WithStart("\xff\x7f"), values));
  EXPECT_THAT(values.start, Optional(16383));
  ASSERT_TRUE(Matches(*outline, WithStart(std::string_view("\x85\x00", 2)), values));
  EXPECT_THAT(values.start, Optional(5)) << "longer than it need be";
  EXPECT_FALSE(Matches(*outline, WithStart("\x05\x08"))) << "ends before";
  EXPECT_FALSE(Matches(*outline, WithStart("\xac\x82"))) << "does not end";
}

TEST(RequestOutlineTest, StartOfTenBytesMayBeNegative) {
  const auto outline =
      OutlineOf(WithStart(std::string_view("\x80\x80\x80\x80\x80"
                                           "\x80\x80\x80\x80\x00",
                                           10)));
  ASSERT_TRUE(outline.has_value());
  Values values;
  ASSERT_TRUE(Matches(*outline, WithStart("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), values));
  EXPECT_THAT(values.start, Optional(-1));
  ASSERT_TRUE(Matches(*outline, WithStart("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), values));
  EXPECT_THAT(values.start, Optional(-1)) << "bits above the 64th are dropped";
  EXPECT_FALSE(Matches(*outline, WithStart("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")));
}

TEST(RequestOutlineTest, MessageWithoutStartHasNone) {
  v1::RotateRequest request = Sample();
  request.mutable_positions()->clear_start();
  request.mutable_positions()->mutable_starts()->set_dtype(v1::DTYPE_INT32);
  request.mutable_positions()->mutable_starts()->add_shape(1);
  request.mutable_positions()->mutable_starts()->set_raw("1234");
  const std::string message = request.SerializeAsString();
  const auto outline = OutlineOf(message);
  Values values;
  values.start = 7;
  ASSERT_TRUE(Matches(*outline, message, values));
  EXPECT_EQ(values.start, std::nullopt);
  EXPECT_THAT(PayloadsOf(values), ElementsAre("1234", "query 01", "key1"));
}

TEST(RequestOutlineTest, IdIsAsciiOrTheMessageIsAnother) {
  const auto outline = OutlineOf(Field(1, "ab"));
  ASSERT_TRUE(outline.has_value());
  EXPECT_TRUE(Matches(*outline, Field(1, std::string_view("\0\x7f", 2))));
  EXPECT_FALSE(Matches(*outline, Field(1, "\u00e9")));  // two bytes of UTF-8
  EXPECT_FALSE(Matches(*outline, Field(1, "\xc3(")));   // broken
}

TEST(RequestOutlineTest, MessageWhoseIdIsNotAsciiHasNoOutline) {
  EXPECT_EQ(OutlineOf(Field(1, "\u00e9")), std::nullopt) << "it would not have its own";
}

TEST(RequestOutlineTest, EmptyIdIsNotTheSameAsNone) {
  const std::string rest = WithStart("\x05");
  const std::string with_id = Field(1, "") + rest;
  const auto outline = OutlineOf(with_id);
  Values values;
  ASSERT_TRUE(Matches(*outline, with_id, values));
  EXPECT_EQ(values.request_id, "");
  EXPECT_FALSE(Matches(*outline, rest));
  EXPECT_FALSE(Matches(*OutlineOf(rest), with_id));
}

TEST(RequestOutlineTest, FieldsMayStandInAnyOrder) {
  const std::string array = Field(15, "abcd") + "\x08\x01";
  const std::string tensor = Field(15, Field(15, array) + "\x08\x01");
  const std::string positions = Field(3, Field(4, Field(15, "efgh")) + "\x08\x07");
  const std::string message =
      tensor + positions + Field(15, Field(15, Field(15, "ij"))) + Field(1, "id");
  const auto outline = OutlineOf(message);
  ASSERT_TRUE(outline.has_value());
  Values values;
  ASSERT_TRUE(Matches(*outline, message, values));
  EXPECT_EQ(values.request_id, "id");
  EXPECT_THAT(values.start, Optional(7));
  EXPECT_THAT(PayloadsOf(values), ElementsAre("abcd", "efgh", "ij"));
  const auto split =
      Split(Schema::Of(v1::RotateRequest::descriptor()), std::vector<std::string_view>{message});
  ASSERT_TRUE(split.ok()) << split.status();
  std::vector<std::string> as_split;
  for (const FragmentedBytes& payload : split->payloads) as_split.push_back(BytesOf(payload));
  EXPECT_EQ(as_split, PayloadsOf(values));
}

TEST(RequestOutlineTest, TagsAndLengthsLongerThanTheyNeedBeAreOutlinedAsTheyStand) {
  std::string longer("\x8a\x80\x00\x82\x00", 5);
  longer.append("ab").append("\x9a\x00\x83\x00\x88\x00\x07", 7);
  const auto outline = OutlineOf(longer);
  ASSERT_TRUE(outline.has_value());
  Values values;
  ASSERT_TRUE(Matches(*outline, longer, values));
  EXPECT_EQ(values.request_id, "ab");
  EXPECT_THAT(values.start, Optional(7));
  EXPECT_FALSE(Matches(*outline, Field(1, "ab") + WithStart("\x07")));
  EXPECT_FALSE(Matches(*OutlineOf(Field(1, "ab") + WithStart("\x07")), longer));
}

TEST(RequestOutlineTest, EmptyPayloadIsOne) {
  v1::RotateRequest request = Sample();
  std::string message = request.SerializeAsString() + Field(15, Field(15, Field(15, "")));
  const auto outline = OutlineOf(message);
  ASSERT_TRUE(outline.has_value());
  EXPECT_EQ(outline->payloads(), 3);
  Values values;
  ASSERT_TRUE(Matches(*outline, message, values));
  EXPECT_THAT(PayloadsOf(values), ElementsAre("query 01", "key1", ""));
}

TEST(RequestOutlineTest, PayloadsOfOtherArraysAreCompared) {
  const auto compared = [](auto&& array_of) {
    v1::RotateRequest request = Sample();
    array_of(request).set_raw("ONE!");
    const std::string message = request.SerializeAsString();
    std::string other = message;
    other.replace(other.find("ONE!"), 4, "TWO!");
    const auto outline = OutlineOf(message);
    ASSERT_TRUE(outline.has_value());
    EXPECT_TRUE(Matches(*outline, message));
    EXPECT_FALSE(Matches(*outline, other)) << request.ShortDebugString();
    EXPECT_EQ(outline->payloads(), 2);
  };
  compared([](v1::RotateRequest& r) -> v1::Array& {
    return *r.mutable_rope()->mutable_config()->mutable_inv_freq();
  });
  compared([](v1::RotateRequest& r) -> v1::Array& {
    return *r.mutable_tensors(1)->mutable_norm()->mutable_weight();
  });
  compared([](v1::RotateRequest& r) -> v1::Array& {
    return *r.mutable_reposition()->mutable_from()->mutable_starts();
  });
  compared([](v1::RotateRequest& r) -> v1::Array& { return *r.mutable_rows()->mutable_cos(); });
}

TEST(RequestOutlineTest, StartOfAnotherPositionsIsCompared) {
  v1::RotateRequest request = Sample();
  request.mutable_reposition()->mutable_from()->set_start(5);
  const auto outline = OutlineOf(request.SerializeAsString());
  request.mutable_reposition()->mutable_from()->set_start(6);
  EXPECT_FALSE(Matches(*outline, request.SerializeAsString()));
}

TEST(RequestOutlineTest, NumbersAreCompared) {
  v1::RotateRequest request = Sample();
  request.mutable_positions()->add_seq_lens(5);
  request.mutable_tensors(0)->set_scale(0.5);
  const auto outline = OutlineOf(request.SerializeAsString());
  ASSERT_TRUE(outline.has_value());
  EXPECT_TRUE(Matches(*outline, request.SerializeAsString()));
  v1::RotateRequest other = request;
  other.mutable_positions()->set_seq_lens(0, 6);
  EXPECT_FALSE(Matches(*outline, other.SerializeAsString()));
  other = request;
  other.mutable_tensors(0)->set_scale(0.25);
  EXPECT_FALSE(Matches(*outline, other.SerializeAsString()));
}

TEST(RequestOutlineTest, MessageOfTooManyBytesBesideItsPayloadsHasNone) {
  constexpr auto kMost = static_cast<size_t>(RequestOutline::kBytesMax);
  EXPECT_TRUE(OutlineOf(OfTextBytes(kMost - 1)).has_value());
  EXPECT_TRUE(OutlineOf(OfTextBytes(kMost)).has_value());
  EXPECT_FALSE(OutlineOf(OfTextBytes(kMost + 1)).has_value());
}

TEST(RequestOutlineTest, PayloadsAndIdsCountForNothing) {
  v1::RotateRequest request = Sample();
  request.set_request_id(std::string(5000, 'i'));
  request.mutable_tensors(0)->mutable_array()->set_raw(std::string(100000, 'q'));
  const auto outline = OutlineOf(request.SerializeAsString());
  ASSERT_TRUE(outline.has_value());
  EXPECT_TRUE(Matches(*outline, request.SerializeAsString()));
}

TEST(RequestOutlineTest, EmptyMessageHasOne) {
  const auto outline = OutlineOf("");
  ASSERT_TRUE(outline.has_value());
  Values values;
  EXPECT_TRUE(outline->Matches({}, values));
  EXPECT_TRUE(Matches(*outline, ""));
  EXPECT_FALSE(Matches(*outline, "x"));
  EXPECT_THAT(values.payloads, IsEmpty());
}

TEST(RequestOutlineTest, WhatIsNoMessageHasNone) {
  const std::string message = Sample().SerializeAsString();
  const google::protobuf::LogSilencer silencer;
  for (size_t size = 0; size < message.size(); ++size) {
    const std::string cut = message.substr(0, size);
    v1::RotateRequest parsed;
    EXPECT_EQ(OutlineOf(cut).has_value(), parsed.ParseFromString(cut)) << size;
  }
  EXPECT_FALSE(OutlineOf("\x0b\x0c").has_value()) << "a group";
  EXPECT_FALSE(OutlineOf("\x0a\xff\xff\xff\xff\x07").has_value()) << "a length past the end";
}

}  // namespace
}  // namespace rope::proto
