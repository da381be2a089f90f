#include "server/request/prepared_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::Answer;
using ::rope::testing::AnswerAsNew;
using ::rope::testing::BufferOf;
using ::rope::testing::IsOk;
using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::SetShape;
using ::rope::testing::StatusIs;
using ::rope::testing::WireAnswer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

std::string Floats(size_t count, float first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i) / 16;
  return RawBytes(values);
}

v1::Tensor& AddTensor(v1::RotateRequest& request, v1::Role role, const std::string& layout,
                      const std::vector<int64_t>& shape, float first) {
  v1::Tensor& tensor = AddFloatTensor(request, role, layout, shape);
  std::string& raw = *tensor.mutable_array()->mutable_raw();
  raw = Floats(raw.size() / sizeof(float), first);
  return tensor;
}

// q and k of 3 tokens, heads of 8 channels.
v1::RotateRequest Sample(const std::string& id = "id-1", int64_t start = 200, float first = 1) {
  v1::RotateRequest request;
  request.set_request_id(id);
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(start);
  AddTensor(request, v1::ROLE_Q, "SHD", {3, 2, 8}, first);
  AddTensor(request, v1::ROLE_K, "SD", {3, 8}, first + 1);
  return request;
}

void SetInts(v1::Array& array, const std::vector<int64_t>& shape,
             const std::vector<int32_t>& values) {
  array.set_dtype(v1::DTYPE_INT32);
  SetShape(array, shape);
  array.set_raw(RawBytes(values));
}

// The sample with other positions.
v1::RotateRequest With(const std::function<void(v1::Positions&)>& set) {
  v1::RotateRequest request = Sample();
  set(*request.mutable_positions());
  return request;
}

// The sample's bytes with positions.start as this varint.
std::string WithStart(std::string_view varint) {
  v1::RotateRequest request = Sample();
  request.clear_positions();
  std::string bytes = request.SerializeAsString();
  bytes.push_back('\x1a');
  bytes.push_back(static_cast<char>(varint.size() + 1));
  bytes.push_back('\x08');
  return bytes.append(varint);
}

class PreparedRequestsTest : public ::testing::Test {
 protected:
  // The answer, which is that of a server that never had a request like it.
  WireAnswer Send(std::string_view bytes) {
    const WireAnswer want = AnswerAsNew(engine_, {bytes});
    WireAnswer got = Answer(engine_, {bytes});
    EXPECT_EQ(got.status, want.status);
    EXPECT_TRUE(got.bytes == want.bytes) << "got " << got.Parsed().ShortDebugString() << "\nwant "
                                         << want.Parsed().ShortDebugString();
    return got;
  }
  WireAnswer Send(const v1::RotateRequest& request) { return Send(request.SerializeAsString()); }

  void Learn(const v1::RotateRequest& request) {
    EXPECT_THAT(Send(request).status, IsOk());
    EXPECT_THAT(Send(request).status, IsOk());
  }

  // Whether a request is recognised once it has come twice.
  bool IsKept(const v1::RotateRequest& request) {
    Learn(request);
    return Send(request).prepared;
  }

  // A request of `count` tokens, of another size than each other one.
  static v1::RotateRequest OfTokens(int64_t count, float first = 1) {
    v1::RotateRequest request = Sample();
    request.clear_tensors();
    AddTensor(request, v1::ROLE_K, "SD", {count, 8}, first);
    return request;
  }

  void Register(const std::string& name, double theta) {
    v1::RopeSpec spec;
    spec.mutable_config()->set_head_dim(8);
    spec.mutable_config()->set_rope_theta(theta);
    spec.set_pairing(v1::PAIRING_HALF);
    EXPECT_THAT(engine_.registry().Register(name, spec, "uid:1"), IsOk());
  }

  LocalEngine engine_;
};

TEST_F(PreparedRequestsTest, RequestIsRecognisedOnceItHasComeTwice) {
  EXPECT_FALSE(Send(Sample()).prepared);
  EXPECT_FALSE(Send(Sample()).prepared);
  EXPECT_TRUE(Send(Sample()).prepared);
}

TEST_F(PreparedRequestsTest, LikeOneIsAnsweredWithItsOwnIdPositionsAndElements) {
  Learn(Sample());
  const WireAnswer first = Send(Sample());
  const WireAnswer other = Send(Sample("ID-2", 16383, 7));
  ASSERT_TRUE(other.prepared);
  EXPECT_EQ(other.Parsed().request_id(), "ID-2");
  EXPECT_NE(other.Parsed().tensors(0).array().raw(), first.Parsed().tensors(0).array().raw());
  EXPECT_EQ(other.Parsed().tensors(1).array().raw().size(), 3U * 8 * 4);
}

TEST_F(PreparedRequestsTest, FragmentsMakeNoDifference) {
  Learn(Sample());
  const std::string bytes = Sample("id-9", 201, 3).SerializeAsString();
  const std::string want = AnswerAsNew(engine_, {bytes}).bytes;
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::string_view head = std::string_view(bytes).substr(0, cut);
    const std::string_view tail = std::string_view(bytes).substr(cut);
    const WireAnswer got = Answer(engine_, {head, "", tail});
    EXPECT_TRUE(got.prepared);
    EXPECT_TRUE(got.bytes == want) << cut;
  }
}

TEST_F(PreparedRequestsTest, WhateverDecidesNothingButThePlanIsKept) {
  std::vector<std::pair<std::string, v1::RotateRequest>> kept;
  const auto add = [&](const std::string& what) -> v1::RotateRequest& {
    return kept.emplace_back(what, Sample()).second;
  };
  add("no id").clear_request_id();
  add("starts") = With([](v1::Positions& p) {
    p.clear_start();
    SetInts(*p.mutable_starts(), {1}, {9});
  });
  add("ids") = With([](v1::Positions& p) {
    p.clear_start();
    SetInts(*p.mutable_position_ids(), {3}, {9, 5, 9});
  });
  add("inverse").set_operation(v1::OPERATION_INVERSE);
  add("sinusoidal").set_operation(v1::OPERATION_ADD_SINUSOIDAL);
  add("factor").set_skip_attention_factor(true);
  add("rounded steps").mutable_rope()->set_precision(v1::PRECISION_HF);
  add("fp8").mutable_output()->set_dtype(v1::DTYPE_FP8_E4M3);
  kept.back().second.mutable_tensors(0)->add_fp8_scales(2);
  for (const char* layout : {"HSD", ""}) {
    if (*layout != 0) add("layouts");
    kept.back().second.mutable_output()->add_layouts(layout);
  }
  add("norm and scale").mutable_tensors(0)->set_scale(0.5);
  v1::HeadNorm& norm = *kept.back().second.mutable_tensors(1)->mutable_norm();
  norm.set_eps(1e-6);
  for (int i = 0; i < 8; ++i) norm.mutable_weight()->add_numbers(i);
  v1::Tensor& packed = *add("head ranges").mutable_tensors(0);
  packed.clear_role();
  v1::HeadRange& range = *packed.add_head_ranges();
  range.set_role(v1::ROLE_Q);
  range.set_end(1);
  add("yarn").mutable_rope()->set_config_json(
      R"({"head_dim": 8, "rope_scaling": {"rope_type": "yarn", "factor": 4,
          "original_max_position_embeddings": 64}})");
  kept.back().second.mutable_rope()->clear_config();
  for (const auto& [what, request] : kept) EXPECT_TRUE(IsKept(request)) << what;
}

TEST_F(PreparedRequestsTest, PackedSequencesAreKeptAndMayBeCutElsewhere) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  AddTensor(request, v1::ROLE_Q, "TD", {6, 8}, 1);
  request.clear_positions();
  SetInts(*request.mutable_positions()->mutable_cu_seqlens(), {3}, {0, 2, 6});
  SetInts(*request.mutable_positions()->mutable_starts(), {2}, {5, 100});
  EXPECT_TRUE(IsKept(request));
  SetInts(*request.mutable_positions()->mutable_cu_seqlens(), {3}, {0, 0, 6});
  EXPECT_TRUE(Send(request).prepared);
  SetInts(*request.mutable_positions()->mutable_cu_seqlens(), {3}, {0, 5, 4});
  EXPECT_THAT(Send(request).status,
              StatusIs(kInvalid, StartsWith("positions.cu_seqlens: got a falling offset")));
}

TEST_F(PreparedRequestsTest, PositionsOnThreeAxesAreKept) {
  v1::RotateRequest request = Sample();
  for (const int64_t count : {2, 1, 1}) {
    request.mutable_rope()->mutable_config()->add_mrope_section(count);
  }
  request.mutable_positions()->clear_start();
  SetInts(*request.mutable_positions()->mutable_position_ids(), {3, 1, 3},
          {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_TRUE(IsKept(request));
  SetInts(*request.mutable_positions()->mutable_position_ids(), {3, 1, 3},
          {9, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_TRUE(Send(request).prepared);
}

TEST_F(PreparedRequestsTest, RankOfAContextParallelGroupIsKept) {
  v1::RotateRequest request = OfTokens(4);
  request.mutable_positions()->set_cp_size(2);
  request.mutable_positions()->set_cp_rank(1);
  EXPECT_TRUE(IsKept(request));
  request.mutable_positions()->set_start(255);
  EXPECT_TRUE(Send(request).prepared);
}

TEST_F(PreparedRequestsTest, TokensThatAreNotThereAreKept) {
  // [0, 8] of fp32 with and without an empty payload, which serializers leave out.
  const std::string array("\x08\x01\x12\x02\x00\x08", 6);
  v1::RotateRequest rest = Sample();
  rest.clear_tensors();
  for (const std::string& payload : {std::string("\x7a\x00", 2), std::string()}) {
    std::string bytes = rest.SerializeAsString();
    bytes.append({'\x7a', static_cast<char>(14 + payload.size()), '\x08', '\x02', '\x12', '\x02'});
    bytes.append("SD").append({'\x7a', static_cast<char>(6 + payload.size())});
    bytes.append(array).append(payload);
    for (int i = 0; i < 2; ++i) EXPECT_THAT(Send(bytes).status, IsOk());
    EXPECT_EQ(Send(bytes).prepared, !payload.empty());
  }
}

TEST_F(PreparedRequestsTest, WhatItsValuesDecideIsNotKept) {
  std::vector<std::pair<std::string, v1::RotateRequest>> not_kept;
  const auto add = [&](const std::string& what) -> v1::RotateRequest& {
    return not_kept.emplace_back(what, Sample()).second;
  };
  const auto config = [&](const std::string& what) -> v1::RopeConfig& {
    return *add(what).mutable_rope()->mutable_config();
  };
  add("ids as numbers") = With([](v1::Positions& p) {
    p.clear_start();
    for (const double id : {4, 2, 0}) p.mutable_position_ids()->add_numbers(id);
  });
  add("planned length") = With([](v1::Positions& p) { p.add_seq_lens(77); });
  v1::Array& typed = *add("numbers").mutable_tensors(1)->mutable_array();
  typed.clear_raw();
  for (int i = 0; i < 24; ++i) typed.add_numbers(i);
  v1::Array& strided = *add("strides").mutable_tensors(1)->mutable_array();
  for (const int64_t stride : {16, 1}) strided.add_strides(stride);
  strided.set_raw(Floats(40, 1));
  v1::HeadNorm& norm = *add("payload of a norm").mutable_tensors(1)->mutable_norm();
  norm.set_eps(1e-6);
  norm.mutable_weight()->set_dtype(v1::DTYPE_FP32);
  SetShape(*norm.mutable_weight(), {8});
  norm.mutable_weight()->set_raw(Floats(8, 1));
  config("xpos").mutable_xpos()->set_scale_base(512);
  v1::RopeConfig& dynamic = config("dynamic");
  dynamic.set_rope_type("dynamic");
  dynamic.set_factor(2);
  dynamic.set_max_position_embeddings(1000);
  v1::RopeConfig& longrope = config("longrope");
  longrope.set_rope_type("longrope");
  longrope.set_original_max_position_embeddings(64);
  longrope.set_max_position_embeddings(1000);
  for (int i = 0; i < 4; ++i) {
    longrope.add_short_factor(1);
    longrope.add_long_factor(2);
  }
  config("token scales").set_original_max_position_embeddings(64);
  not_kept.back().second.mutable_tensors(0)->set_llama4_scaling_beta(0.1);
  add("reposition").set_operation(v1::OPERATION_REPOSITION);
  not_kept.back().second.mutable_reposition()->mutable_from()->set_start(5);
  v1::RotateRequest& rows = add("rows");
  rows.clear_positions();
  rows.mutable_rope()->clear_config();
  for (int i = 0; i < 12; ++i) rows.mutable_rows()->mutable_angles()->add_numbers(i);
  SetShape(*rows.mutable_rows()->mutable_angles(), {3, 4});
  v1::RopeSpec& still = *add("layer without rotation").mutable_rope();
  still.clear_pairing();
  still.set_layer(3);
  still.set_config_json(R"({"model_type": "llama4_text", "head_dim": 8, "rope_theta": 500000.0,
      "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]})");
  still.clear_config();
  config("past the model's length").set_max_position_embeddings(202);
  add("id beyond ASCII").set_request_id("\u00e9");
  add("too much text").mutable_rope()->clear_config();
  not_kept.back().second.mutable_rope()->set_config_json(R"({"head_dim": 8})" +
                                                         std::string(4096, ' '));
  for (const auto& [what, request] : not_kept) EXPECT_FALSE(IsKept(request)) << what;
}

TEST_F(PreparedRequestsTest, WhatIsRefusedIsNotKept) {
  v1::RotateRequest refused = Sample();
  refused.mutable_tensors(0)->clear_role();
  for (int i = 0; i < 3; ++i) {
    const WireAnswer answer = Send(refused);
    EXPECT_THAT(answer.status, StatusIs(kInvalid, HasSubstr("tensors[0]")));
    EXPECT_FALSE(answer.prepared);
  }
}

// --- Values ---

TEST_F(PreparedRequestsTest, BadPositionsAreRefusedByName) {
  Learn(Sample("id-1", kMost >> 34));  // as many bytes as the largest position
  const WireAnswer largest = Send(Sample("id-2", limits::kPositionMax - 2));
  EXPECT_THAT(largest.status, IsOk());
  EXPECT_TRUE(largest.prepared);
  const WireAnswer above = Send(Sample("id-2", limits::kPositionMax - 1));
  EXPECT_TRUE(above.prepared);
  EXPECT_THAT(above.status, StatusIs(absl::StatusCode::kOutOfRange,
                                     StartsWith("positions.start: got 1073741825, want at most")));
  EXPECT_EQ(above.Parsed().request_id(), "id-2");
  EXPECT_EQ(above.Parsed().error().field(), "positions.start");
}

TEST_F(PreparedRequestsTest, StartOfTenBytesIsReadWhole) {
  const std::string five("\x85\x80\x80\x80\x80\x80\x80\x80\x80\x00", 10);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Send(WithStart(five)).status, IsOk());
  EXPECT_TRUE(Send(WithStart(five)).prepared);
  const WireAnswer negative = Send(WithStart("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"));
  EXPECT_TRUE(negative.prepared);
  EXPECT_THAT(negative.status, StatusIs(kInvalid, StartsWith("positions.start: got -1, want")));
  const std::string_view huge("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00", 10);
  EXPECT_THAT(Send(WithStart(huge)).status,
              StatusIs(absl::StatusCode::kOutOfRange, StartsWith("positions.start: got 9223372")));
}

TEST_F(PreparedRequestsTest, IdThatIsNoUtf8IsRefusedAndOneThatIsIsEchoed) {
  Learn(Sample());
  const WireAnswer accent = Send(Sample("\u00e9-1"));
  EXPECT_THAT(accent.status, IsOk());
  EXPECT_EQ(accent.Parsed().request_id(), "\u00e9-1");
  std::string broken = Sample().SerializeAsString();
  broken.replace(broken.find("id-1"), 4, "\xc3(-1");
  EXPECT_THAT(Send(broken).status, StatusIs(kInvalid, HasSubstr("UTF-8")));
}

TEST_F(PreparedRequestsTest, WarningIsGivenWhereItIsDue) {
  v1::RotateRequest request = Sample("id-1", 200);
  request.mutable_rope()->mutable_config()->set_max_position_embeddings(300);
  Learn(request);
  EXPECT_THAT(Send(request).Parsed().warnings(), IsEmpty());
  request.mutable_positions()->set_start(298);
  const WireAnswer past = Send(request);
  EXPECT_TRUE(past.prepared);
  EXPECT_THAT(past.Parsed().warnings(), ElementsAre("positions: up to 300, past the model's 300"));
  request.mutable_positions()->set_start(297);
  EXPECT_THAT(Send(request).Parsed().warnings(), IsEmpty());
}

TEST_F(PreparedRequestsTest, WarningsOfTheModelComeWithEveryAnswer) {
  v1::RotateRequest request = Sample();
  request.mutable_rope()->clear_config();
  request.mutable_rope()->set_config_json(
      R"({"model_type": "llama", "head_dim": 8, "rope_theta": 10000.0,
          "max_position_embeddings": 300})");
  request.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
  Learn(request);
  EXPECT_THAT(Send(request).Parsed().warnings(), ElementsAre(StartsWith("pairing: ")));
  request.mutable_positions()->set_start(299);
  const WireAnswer past = Send(request);
  EXPECT_TRUE(past.prepared);
  EXPECT_THAT(past.Parsed().warnings(),
              ElementsAre(StartsWith("pairing: "), StartsWith("positions: ")));
}

// --- What is kept, and how long ---

TEST_F(PreparedRequestsTest, SecondSightIsOfTheSameSizeAmongTheLastThatWereNotFound) {
  PreparedRequests& prepared = engine_.prepared();
  EXPECT_FALSE(prepared.Wants(100));
  EXPECT_FALSE(prepared.Wants(101));
  EXPECT_TRUE(prepared.Wants(100));
  for (int64_t other = 0; other < limits::kPreparedMax - 1; ++other) {
    EXPECT_FALSE(prepared.Wants(1000 + other));
  }
  EXPECT_TRUE(prepared.Wants(100));
  for (int64_t other = 0; other < limits::kPreparedMax; ++other) prepared.Wants(2000 + other);
  EXPECT_FALSE(prepared.Wants(100)) << "too many came since";
}

TEST_F(PreparedRequestsTest, OldestGoesFirst) {
  for (int64_t tokens = 1; tokens <= limits::kPreparedMax; ++tokens) Learn(OfTokens(tokens));
  for (int64_t tokens = 1; tokens <= limits::kPreparedMax; ++tokens) {
    EXPECT_TRUE(Send(OfTokens(tokens, 5)).prepared) << tokens;
  }
  Learn(OfTokens(limits::kPreparedMax + 1));
  for (int64_t tokens = 2; tokens <= limits::kPreparedMax + 1; ++tokens) {
    EXPECT_TRUE(Send(OfTokens(tokens, 6)).prepared) << tokens;
  }
  EXPECT_FALSE(Send(OfTokens(1)).prepared);
}

TEST_F(PreparedRequestsTest, RequestsThatCameTogetherAreKeptOnce) {
  Learn(OfTokens(4));
  std::vector<std::unique_ptr<Request>> together;  // none is validated before the last has come
  for (int64_t i = 0; i <= limits::kPreparedMax; ++i) {
    grpc::ByteBuffer buffer = BufferOf({Sample().SerializeAsString()});
    together.push_back(std::make_unique<Request>());
    ASSERT_THAT(DecodeRequest(buffer, limits::kMiB, engine_.prepared(), *together.back()), IsOk());
  }
  for (std::unique_ptr<Request>& request : together) ASSERT_THAT(engine_.Run(request), IsOk());
  EXPECT_TRUE(Send(Sample()).prepared);
  EXPECT_TRUE(Send(OfTokens(4)).prepared) << "the same request took the place of others";
}

TEST_F(PreparedRequestsTest, RequestsThatAreNeverRecognisedPushNobodyOut) {
  Learn(OfTokens(4));
  for (int64_t i = 0; i < 3 * limits::kPreparedMax; ++i) Send(Sample("\u00e9-1"));
  EXPECT_TRUE(Send(OfTokens(4)).prepared);
}

TEST_F(PreparedRequestsTest, ModelThatIsGoneIsGoneForItsRequestsToo) {
  Register("mine", 10000);
  v1::RotateRequest request = Sample();
  request.mutable_rope()->Clear();
  request.mutable_rope()->set_model("mine");
  ASSERT_TRUE(IsKept(request));
  const std::string before = Send(request).bytes;
  ASSERT_THAT(engine_.registry().Unregister("mine", "uid:1"), IsOk());
  EXPECT_THAT(Send(request).status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("mine")));
  Register("mine", 500);
  const WireAnswer after = Send(request);
  EXPECT_FALSE(after.prepared);
  EXPECT_NE(after.bytes, before);
  EXPECT_TRUE(IsKept(request));
  EXPECT_EQ(Send(request).bytes, after.bytes);
}

TEST_F(PreparedRequestsTest, ConfigIdOfAModelThatIsGoneIsGoneToo) {
  Register("mine", 10000);
  v1::RopeSpec spec;
  spec.set_model("mine");
  const auto entry = engine_.registry().Find(spec);
  ASSERT_THAT(entry, IsOk());
  v1::RotateRequest request = Sample();
  request.mutable_rope()->Clear();
  request.mutable_rope()->set_config_id((*entry)->config_id());
  ASSERT_TRUE(IsKept(request));
  ASSERT_THAT(engine_.registry().Unregister("mine", "uid:1"), IsOk());
  EXPECT_THAT(Send(request).status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("config_id")));
}

TEST_F(PreparedRequestsTest, RequestHoldsTheBytesThatItCameWith) {
  Learn(Sample());
  std::string bytes = Sample("id-7", 222, 9).SerializeAsString();
  const std::string want = AnswerAsNew(engine_, {bytes}).bytes;
  const auto scribble = [](void* owned) {
    std::ranges::fill(*static_cast<std::string*>(owned), 'x');
  };
  auto request = std::make_unique<Request>();
  {
    const grpc::Slice slice(bytes.data(), bytes.size(), scribble, &bytes);
    grpc::ByteBuffer buffer(&slice, 1);
    ASSERT_THAT(DecodeRequest(buffer, limits::kMiB, engine_.prepared(), *request), IsOk());
    EXPECT_FALSE(buffer.Valid());
  }
  ASSERT_NE(request->prepared, nullptr);
  ASSERT_THAT(engine_.Run(request), IsOk());
  EXPECT_TRUE(rope::testing::BytesOf(EncodeReply(*request)) == want);
  request.reset();
  EXPECT_THAT(bytes, StartsWith("xxxx")) << "nobody holds it any more";
}

TEST_F(PreparedRequestsTest, PreparedRequestOutlivesItsReplacement) {
  Learn(Sample());
  const std::string bytes = Sample("id-7", 222, 9).SerializeAsString();
  const std::string want = AnswerAsNew(engine_, {bytes}).bytes;
  grpc::ByteBuffer buffer = BufferOf({bytes});
  auto request = std::make_unique<Request>();
  ASSERT_THAT(DecodeRequest(buffer, limits::kMiB, engine_.prepared(), *request), IsOk());
  ASSERT_NE(request->prepared, nullptr);
  for (int64_t tokens = 1; tokens <= limits::kPreparedMax; ++tokens) Learn(OfTokens(tokens));
  EXPECT_FALSE(Send(Sample()).prepared);
  ASSERT_THAT(engine_.Run(request), IsOk());
  EXPECT_TRUE(rope::testing::BytesOf(EncodeReply(*request)) == want);
}

TEST_F(PreparedRequestsTest, ThreadsThatLearnAndAskGetTheirOwnAnswers) {
  std::atomic<int64_t> recognised = 0;
  std::vector<std::thread> threads(4);
  for (size_t t = 0; t < threads.size(); ++t) {
    threads[t] = std::thread([&, t] {
      const std::string model = absl::StrCat("of-thread-", t);
      for (int i = 0; i < 400; ++i) {
        // A few shapes often, and more than are kept now and then.
        const int64_t tokens = i % 8 == 0 ? i / 8 : i % 4;
        v1::RotateRequest request = OfTokens(tokens, static_cast<float>(t));
        request.set_request_id(absl::StrCat(t, "-", 100 + i));
        request.mutable_positions()->set_start(i);
        recognised += Send(request).prepared ? 1 : 0;
        if (i % 50 == 0) Register(model, 500);
        if (i % 50 == 25) {
          EXPECT_THAT(engine_.registry().Unregister(model, "uid:1"), IsOk());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(recognised, 0);
}

TEST_F(PreparedRequestsTest, ConfigIdThatTheRegistryDroppedIsRefused) {
  v1::RopeSpec spec = Sample().rope();
  const auto entry = engine_.registry().Find(spec);
  ASSERT_THAT(entry, IsOk());
  v1::RotateRequest request = Sample();
  request.mutable_rope()->Clear();
  request.mutable_rope()->set_config_id((*entry)->config_id());
  ASSERT_TRUE(IsKept(request));
  for (int64_t i = 0; i <= limits::kSpecsMax; ++i) {
    spec.mutable_config()->set_rope_theta(1000.0 + static_cast<double>(i));
    ASSERT_THAT(engine_.registry().Find(spec), IsOk());
  }
  EXPECT_THAT(Send(request).status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("config_id")));
}

TEST_F(PreparedRequestsTest, PositionsOfManyTokensThatAreNoRunAreReadAnew) {
  for (const int64_t tokens : {limits::kPreparedTokensMax, limits::kPreparedTokensMax + 2}) {
    v1::RotateRequest request = Sample();
    request.clear_tensors();
    AddTensor(request, v1::ROLE_K, "BSD", {2, tokens / 2, 8}, 1);
    ASSERT_TRUE(IsKept(request)) << tokens;
    request.mutable_positions()->set_start(255);
    EXPECT_TRUE(Send(request).prepared) << tokens;
  }
}

TEST_F(PreparedRequestsTest, RunOfManyTokensMovesWithItsStart) {
  v1::RotateRequest request = OfTokens(limits::kPreparedTokensMax + 1);
  ASSERT_TRUE(IsKept(request));
  for (const int64_t start : {129, 200, 16383}) {
    request.mutable_positions()->set_start(start);
    EXPECT_TRUE(Send(request).prepared);
  }
}

TEST_F(PreparedRequestsTest, LastTokenPastTheLastPositionIsRefused) {
  ASSERT_TRUE(IsKept(Sample("id-1", int64_t{1} << 28)));
  EXPECT_THAT(Send(Sample("id-1", limits::kPositionMax - 2)).status, IsOk());
  const WireAnswer past = Send(Sample("id-1", limits::kPositionMax - 1));
  EXPECT_TRUE(past.prepared);
  EXPECT_THAT(past.status, StatusIs(absl::StatusCode::kOutOfRange, StartsWith("positions.start")));
}

}  // namespace
}  // namespace rope::server
