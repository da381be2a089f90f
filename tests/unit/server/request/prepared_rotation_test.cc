#include "server/request/prepared_rotation.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/limits.h"
#include "tests/support/filled_message.h"
#include "tests/support/prepared_call.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::Answer;
using ::rope::testing::CallOf;
using ::rope::testing::LocalEngine;
using ::rope::testing::PrepareOf;
using ::rope::testing::RawBytes;
using ::rope::testing::SetField;
using ::rope::testing::SetShape;
using ::rope::testing::SharedMemory;
using ::rope::testing::WireAnswer;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint64_t kSession = 7;

std::string Floats(size_t count, float first = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i) / 16;
  return RawBytes(values);
}

void AddTensor(v1::RotateRequest& request, v1::Role role, const std::string& layout,
               const std::vector<int64_t>& shape) {
  std::string& raw = *AddFloatTensor(request, role, layout, shape).mutable_array()->mutable_raw();
  raw = Floats(raw.size() / sizeof(float));
}

// q and k of 3 tokens, heads of 8 channels.
v1::RotateRequest Sample(int64_t start = 200) {
  v1::RotateRequest request;
  request.set_request_id("id-1");
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(start);
  AddTensor(request, v1::ROLE_Q, "SHD", {3, 2, 8});
  AddTensor(request, v1::ROLE_K, "SD", {3, 8});
  return request;
}

v1::RotateRequest OfTokens(int64_t tokens) {
  v1::RotateRequest request = Sample();
  request.clear_tensors();
  AddTensor(request, v1::ROLE_Q, "SHD", {tokens, 2, 8});
  AddTensor(request, v1::ROLE_K, "SD", {tokens, 8});
  return request;
}

class PreparedRotationTest : public ::testing::Test {
 protected:
  std::string Prepare(const v1::RotateRequest& whole, const std::string& open_axis = "") {
    v1::PrepareRequest request = PrepareOf(whole);
    request.set_open_axis(open_axis);
    const auto id = engine_.Prepare(request);
    EXPECT_THAT(id, IsOk()) << whole.ShortDebugString();
    return id.value_or("");
  }

  WireAnswer Send(const v1::RotateRequest& request) {
    return Answer(engine_, {request.SerializeAsString()}, kSession);
  }

  LocalEngine engine_;
};

// Values, an open axis and places in regions: MessageFuzzTest compares calls with whole requests.

// --- What a call may not bring ---

TEST_F(PreparedRotationTest, RowsOfACallHaveThePreparedType) {
  v1::RotateRequest whole = Sample();
  whole.clear_positions();
  whole.mutable_rope()->clear_config();
  for (v1::Array* rows :
       {whole.mutable_rows()->mutable_cos(), whole.mutable_rows()->mutable_sin()}) {
    rows->set_dtype(v1::DTYPE_FP32);
    SetShape(*rows, {3, 4});
    rows->set_raw(Floats(12));
  }
  v1::RotateRequest call = CallOf(whole, Prepare(whole));
  EXPECT_THAT(Send(call).status, IsOk());
  call.mutable_rows()->mutable_sin()->set_dtype(v1::DTYPE_BF16);
  EXPECT_THAT(Send(call).status, IsInvalid("rows.sin"));
}

TEST_F(PreparedRotationTest, EveryFieldThatIsNoValueIsRefusedInACall) {
  const std::set<std::string> values = {"request_id", "labels", "positions", "prepared_id",
                                        "tensors",    "output", "reposition"};
  const std::string id = Prepare(Sample());
  const auto* const type = v1::RotateRequest::descriptor();
  const auto expect_refused = [&](const v1::RotateRequest& call, const std::string& field) {
    const absl::Status status = Send(call).status;
    const bool refused = status.code() == kInvalid || absl::IsUnimplemented(status);
    EXPECT_TRUE(refused) << field << ": " << status.ToString();
  };
  for (int i = 0; i < type->field_count(); ++i) {
    const auto& field = *type->field(i);
    if (values.contains(field.name())) continue;
    v1::RotateRequest call = CallOf(Sample(), id);
    SetField(call, &field, 1);
    expect_refused(call, field.full_name());
  }
  const auto* const output = v1::Output::descriptor();
  for (int i = 0; i < output->field_count(); ++i) {
    if (output->field(i)->name() == "regions") continue;
    v1::RotateRequest call = CallOf(Sample(), id);
    SetField(*call.mutable_output(), output->field(i), 1);
    expect_refused(call, output->field(i)->full_name());
  }
  const auto* const tensor = v1::Tensor::descriptor();
  for (int i = 0; i < tensor->field_count(); ++i) {
    if (tensor->field(i)->name() == "array") continue;
    v1::RotateRequest call = CallOf(Sample(), id);
    SetField(*call.mutable_tensors(0), tensor->field(i), 1);
    expect_refused(call, tensor->field(i)->full_name());
  }
  for (const char* name : {"dtype", "shape", "strides"}) {
    v1::RotateRequest call = CallOf(Sample(), id);
    SetField(*call.mutable_tensors(0)->mutable_array(),
             v1::Array::descriptor()->FindFieldByName(name), 1);
    expect_refused(call, name);
  }
  v1::RotateRequest from_rope = CallOf(Sample(), id);
  from_rope.mutable_reposition()->mutable_from_rope();
  expect_refused(from_rope, "reposition.from_rope");
}

TEST_F(PreparedRotationTest, CallWithAnotherNumberOfTensorsIsRefused) {
  v1::RotateRequest call = CallOf(Sample(), Prepare(Sample()));
  call.mutable_tensors()->RemoveLast();
  EXPECT_THAT(Send(call).status, StatusIs(kInvalid, "tensors: got 1, want 2, as prepared"));
}

// --- An open axis ---

TEST_F(PreparedRotationTest, ShapesOfACallDifferAlongTheOpenAxisAloneUpToThePreparedOne) {
  const std::string id = Prepare(OfTokens(5), "S");
  EXPECT_THAT(Send(CallOf(OfTokens(6), id, true)).status,
              StatusIs(kInvalid, StartsWith("tensors[0].array.shape: got [6, 2, 8]")));
  v1::RotateRequest call = CallOf(OfTokens(4), id, true);
  SetShape(*call.mutable_tensors(0)->mutable_array(), {4, 1, 16});
  EXPECT_THAT(Send(call).status, StatusIs(kInvalid, StartsWith("tensors[0].array.shape")));
  call = CallOf(OfTokens(4), id, true);
  SetShape(*call.mutable_tensors(1)->mutable_array(), {3, 8});
  EXPECT_THAT(Send(call).status, StatusIs(kInvalid, StartsWith("tensors[1].array.shape")));
  SetShape(*call.mutable_tensors(1)->mutable_array(), {-1, 8});
  EXPECT_THAT(Send(call).status, StatusIs(kInvalid, StartsWith("tensors[1].array.shape")));
  call.mutable_tensors(1)->mutable_array()->clear_shape();
  EXPECT_THAT(Send(call).status, StatusIs(kInvalid, StartsWith("tensors[1].array.shape")));
}

// --- The id ---

TEST_F(PreparedRotationTest, IdIsAHashOfTheRequestAndItsConfig) {
  const std::string id = Prepare(Sample());
  EXPECT_THAT(id, SizeIs(32));
  EXPECT_EQ(Prepare(Sample(7)), id) << "positions are values";
  LocalEngine other;
  EXPECT_EQ(other.Prepare(PrepareOf(Sample())).value(), id);
  v1::RotateRequest same = Sample();
  same.mutable_rope()->clear_config();
  same.mutable_rope()->set_config_json(R"({"head_dim": 8, "rope_theta": 10000})");
  EXPECT_EQ(Prepare(same), id) << "the same embedding, said otherwise";
  std::set<std::string> ids = {id, Prepare(OfTokens(4)), Prepare(Sample(), "S")};
  v1::RotateRequest theta = Sample();
  theta.mutable_rope()->mutable_config()->set_rope_theta(7);
  ids.insert(Prepare(theta));
  v1::RotateRequest weighted = Sample();
  v1::HeadNorm& norm = *weighted.mutable_tensors(0)->mutable_norm();
  norm.set_eps(1);
  norm.mutable_weight()->set_dtype(v1::DTYPE_FP32);
  SetShape(*norm.mutable_weight(), {8});
  for (const float first : {1.0F, 2.0F}) {
    norm.mutable_weight()->set_raw(Floats(8, first));
    ids.insert(Prepare(weighted));
  }
  EXPECT_THAT(ids, SizeIs(6));
}

TEST_F(PreparedRotationTest, HoldsNoRegionBetweenCalls) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  Regions& regions = engine_.clients().Of(kSession).regions();
  ASSERT_OK(region, regions.RegisterMemfd(memory.Dup(), 4096));
  v1::RotateRequest whole = Sample();
  for (v1::Tensor& tensor : *whole.mutable_tensors()) {
    tensor.mutable_array()->clear_raw();
    tensor.mutable_array()->mutable_region()->set_region_id(*region);
  }
  const std::string id = Prepare(whole);
  EXPECT_THAT(Send(CallOf(whole, id)).status, IsOk());
  regions.Close();
  EXPECT_EQ(engine_.clients().region_bytes(), 0);
  EXPECT_THAT(Send(CallOf(whole, id)).status, IsNotFound("region"));
}

// Embeddings of 65536 channels with xpos have 12 MiB each; the message has some 100 bytes.
TEST(PreparedBytesTest, EveryEmbeddingCounts) {
  const auto registry = ModelRegistry::Create({}).value();
  constexpr int64_t kChannels = 65536;
  constexpr int64_t kRopeBytes = 12 * limits::kMiB;
  v1::PrepareRequest request;
  v1::RotateRequest& rotate = *request.mutable_rotate();
  rotate.mutable_rope()->mutable_config()->mutable_xpos()->set_scale_base(512);
  rotate.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  v1::Tensor& tensor = *rotate.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("SD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP16);
  SetShape(*tensor.mutable_array(), {1, kChannels});

  ASSERT_OK(by_shape, testing::PrepareReceived(request, *registry));
  EXPECT_GE((*by_shape)->bytes, kRopeBytes) << "head_dim by the tensor";

  rotate.mutable_rope()->mutable_config()->set_head_dim(kChannels);
  ASSERT_OK(by_config, testing::PrepareReceived(request, *registry));
  EXPECT_GE((*by_config)->bytes, kRopeBytes);

  rotate.set_operation(v1::OPERATION_REPOSITION);
  *rotate.mutable_reposition()->mutable_from_rope() = rotate.rope();
  rotate.mutable_reposition()->mutable_from_rope()->mutable_config()->set_rope_theta(500);
  ASSERT_OK(moved, testing::PrepareReceived(request, *registry));
  EXPECT_GE((*moved)->bytes, 2 * kRopeBytes);
}

TEST(PreparedBytesTest, LayersThatShareAnEmbeddingCountItOnce) {
  const auto registry = ModelRegistry::Create({}).value();
  constexpr int64_t kLayers = 64;
  v1::PrepareRequest request;
  v1::RotateRequest& rotate = *request.mutable_rotate();
  rotate.mutable_rope()->set_config_json(R"({"model_type": "gemma3_text", "head_dim": 256,
      "rope_theta": 1e6, "rope_local_base_freq": 1e4, "num_hidden_layers": 64,
      "sliding_window_pattern": 2})");
  rotate.mutable_rope()->set_first_layer(0);
  v1::Tensor& tensor = *rotate.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("LSD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP16);
  SetShape(*tensor.mutable_array(), {kLayers, 1, 256});
  ASSERT_OK(prepared, testing::PrepareReceived(request, *registry));
  const int64_t rope = (*prepared)->ropes.layers.Of(0).KeptBytes();
  EXPECT_GE((*prepared)->bytes, 2 * rope);
  EXPECT_LE((*prepared)->bytes, 6 * rope);
}

TEST(PreparedNormTest, CallsShareTheWeight) {
  const auto registry = ModelRegistry::Create({}).value();
  v1::RotateRequest whole = Sample();
  v1::HeadNorm& norm = *whole.mutable_tensors(0)->mutable_norm();
  norm.set_eps(1e-6);
  for (int i = 0; i < 8; ++i) norm.mutable_weight()->add_numbers(i);
  ASSERT_OK(prepared, testing::PrepareReceived(PrepareOf(whole), *registry));
  testing::ReceivedRequest call(CallOf(whole, (*prepared)->id));
  Plan plan;
  ASSERT_THAT(BeginCall(**prepared, call.message, plan), IsOk());
  EXPECT_EQ(plan.tensors[0].norm_weight, (*prepared)->plan.tensors[0].norm_weight);
  EXPECT_NE(plan.tensors[0].norm_weight, nullptr);
}

class PreparedRotationsTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const PreparedRotation> Entry(const std::string& id, int64_t bytes = 1) {
    auto entry = std::make_shared<PreparedRotation>();
    entry->id = id;
    entry->bytes = bytes;
    return entry;
  }
};

TEST_F(PreparedRotationsTest, EntryIsFoundByItsId) {
  PreparedRotations prepared({});
  const auto entry = Entry("a");
  EXPECT_THAT(prepared.Keep(entry, "uid:1"), IsOk());
  EXPECT_EQ(prepared.Find("a").value(), entry);
  EXPECT_THAT(prepared.Find("b"), IsNotFound("prepared_id: got \"b\", want one from Prepare"));
  EXPECT_EQ(proto::PartsOf(prepared.Find("b").status()).reason, Reason::kPreparedNotFound);
}

TEST_F(PreparedRotationsTest, LeastRecentlyUsedGoesFirst) {
  PreparedRotations prepared({.entries_max = 3, .bytes_max = 100});
  for (const char* const owner : {"1", "2", "3"})
    EXPECT_THAT(prepared.Keep(Entry(owner), owner), IsOk());
  EXPECT_THAT(prepared.Find("1"), IsOk());
  EXPECT_THAT(prepared.Keep(Entry("4"), "4"), IsOk());
  EXPECT_THAT(prepared.Find("1"), IsOk());
  EXPECT_THAT(prepared.Find("2"), IsNotFound("prepared_id"));
  EXPECT_EQ(prepared.size().entries, 3);
}

TEST_F(PreparedRotationsTest, BytesAreBoundedToo) {
  PreparedRotations prepared({.entries_max = 100, .bytes_max = 20});
  for (const char* const owner : {"1", "2", "3"})
    EXPECT_THAT(prepared.Keep(Entry(owner, 8), owner), IsOk());
  EXPECT_THAT(prepared.Find("1"), IsNotFound("prepared_id"));
  EXPECT_EQ(prepared.size().bytes, 16);
  EXPECT_THAT(prepared.Keep(Entry("large", 11), "4"),
              IsExhausted("rotate: got 11 bytes of memory to keep it prepared, want at most "
                          "10, or the whole request in each call"));
  EXPECT_THAT(prepared.Find("large"), IsNotFound("prepared_id"));
  EXPECT_EQ(prepared.size().entries, 2);
}

TEST_F(PreparedRotationsTest, OwnerWithTheMostPushesOutItsOwnEntriesAlone) {
  PreparedRotations prepared({.entries_max = 4, .bytes_max = 100});
  EXPECT_THAT(prepared.Keep(Entry("theirs"), "uid:1"), IsOk());
  for (int i = 0; i < 10; ++i) EXPECT_THAT(prepared.Keep(Entry(absl::StrCat(i)), "uid:2"), IsOk());
  EXPECT_THAT(prepared.Find("theirs"), IsOk());
  EXPECT_THAT(prepared.Find("6"), IsNotFound("prepared_id"));
  EXPECT_THAT(prepared.Find("7"), IsOk());
  EXPECT_THAT(prepared.Find("8"), IsOk());
  EXPECT_THAT(prepared.Find("9"), IsOk());
}

TEST_F(PreparedRotationsTest, SameIdIsKeptOnce) {
  PreparedRotations prepared({});
  for (int i = 1; i <= 5; ++i) EXPECT_THAT(prepared.Keep(Entry("a", i), "uid:1"), IsOk());
  EXPECT_EQ(prepared.size().entries, 1);
  EXPECT_EQ(prepared.size().bytes, 5);
}

TEST_F(PreparedRotationsTest, EntryCountsForTheOwnerThatPreparedItLast) {
  PreparedRotations prepared({.entries_max = 4, .bytes_max = 100});
  for (const char* id : {"a", "b"}) EXPECT_THAT(prepared.Keep(Entry(id), "uid:1"), IsOk());
  for (const char* id : {"c", "a"}) EXPECT_THAT(prepared.Keep(Entry(id), "uid:2"), IsOk());
  EXPECT_THAT(prepared.Keep(Entry("d"), "uid:3"), IsOk());
  EXPECT_THAT(prepared.Keep(Entry("e"), "uid:3"), IsOk());
  EXPECT_THAT(prepared.Find("b"), IsOk());
  EXPECT_THAT(prepared.Find("c"), IsNotFound("prepared_id"));
  EXPECT_EQ(prepared.size().entries, 4);
}

TEST_F(PreparedRotationsTest, ThreadsFindWhatOthersKeep) {
  PreparedRotations prepared({.entries_max = 8, .bytes_max = 100});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&prepared, owner = absl::StrCat(thread)] {
      for (int i = 0; i < 2000; ++i) {
        const std::string id = absl::StrCat(i % 12);
        if (const auto found = prepared.Find(id); found.ok()) {
          EXPECT_EQ((*found)->id, id);
        } else {
          EXPECT_THAT(prepared.Keep(Entry(id), owner), IsOk());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(prepared.size().entries, 8);
}

}  // namespace
}  // namespace rope::server
