#include "server/request/prepared_rotation.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
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

class PreparedRotationTest : public ::testing::Test {
 protected:
  std::string Prepare(const v1::RotateRequest& whole, const std::string& open_axis = "") {
    v1::PrepareRequest request = PrepareOf(whole);
    request.set_open_axis(open_axis);
    const auto id = engine_.Prepare(request);
    EXPECT_THAT(id, IsOk()) << whole.ShortDebugString();
    return id.value_or("");
  }

  WireAnswer Send(const v1::RotateRequest& request, uint64_t session = kSession) {
    return Answer(engine_, {request.SerializeAsString()}, session);
  }

  // A call of a prepared request, whose answer is that of the whole request.
  absl::Status SendAsPrepared(const v1::RotateRequest& whole, const std::string& id,
                              bool is_open = false) {
    const WireAnswer want = Send(whole);
    const WireAnswer got = Send(CallOf(whole, id, is_open));
    EXPECT_EQ(got.status, want.status);
    EXPECT_TRUE(got.bytes == want.bytes) << "got " << got.Parsed().ShortDebugString() << "\nwant "
                                         << want.Parsed().ShortDebugString();
    return got.status;
  }

  LocalEngine engine_;
};

TEST_F(PreparedRotationTest, EachCallHasItsOwnPositionsAndElements) {
  const std::string id = Prepare(Sample());
  v1::RotateRequest other = Sample(70000);
  other.set_request_id("id-2");
  other.mutable_tensors(0)->mutable_array()->set_raw(Floats(48, 9));
  EXPECT_THAT(SendAsPrepared(other, id), IsOk());
  EXPECT_THAT(
      SendAsPrepared(With([](v1::Positions& p) { SetInts(*p.mutable_starts(), {1}, {3}); }), id),
      IsOk());
}

TEST_F(PreparedRotationTest, ACallBringsTheElementsOfRows) {
  v1::RotateRequest whole = Sample();
  whole.clear_positions();
  whole.mutable_rope()->clear_config();
  for (v1::Array* rows :
       {whole.mutable_rows()->mutable_cos(), whole.mutable_rows()->mutable_sin()}) {
    rows->set_dtype(v1::DTYPE_FP32);
    SetShape(*rows, {3, 4});
    rows->set_raw(Floats(12));
  }
  const std::string id = Prepare(whole);
  EXPECT_THAT(SendAsPrepared(whole, id), IsOk());
  whole.mutable_rows()->mutable_sin()->set_raw(Floats(12, 2));
  EXPECT_EQ(Prepare(whole), id);
  EXPECT_THAT(SendAsPrepared(whole, id), IsOk());
  v1::RotateRequest other = CallOf(whole, id);
  other.mutable_rows()->mutable_sin()->set_dtype(v1::DTYPE_BF16);
  EXPECT_THAT(Send(other).status, IsInvalid("rows.sin"));
  whole.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
  EXPECT_NE(Prepare(whole), id);
}

TEST_F(PreparedRotationTest, BadValuesAreRefusedAsInTheWholeRequest) {
  const std::string id = Prepare(Sample());
  EXPECT_THAT(SendAsPrepared(Sample(-1), id), IsInvalid("positions.start"));
  EXPECT_THAT(SendAsPrepared(Sample(int64_t{1} << 30), id), IsOutOfRange("positions.start"));
  v1::RotateRequest nowhere = Sample();
  nowhere.clear_positions();
  EXPECT_THAT(SendAsPrepared(nowhere, id), StatusIs(kInvalid, StartsWith("positions")));
  v1::RotateRequest shorter = Sample();
  shorter.mutable_tensors(1)->mutable_array()->mutable_raw()->pop_back();
  EXPECT_THAT(SendAsPrepared(shorter, id), IsInvalid("tensors[1].array.raw"));
  v1::RotateRequest empty = Sample();
  empty.mutable_tensors(1)->mutable_array()->clear_raw();
  EXPECT_THAT(SendAsPrepared(empty, id), IsInvalid("tensors[1].array"));
  v1::RotateRequest labelled = Sample();
  (*labelled.mutable_labels())[""] = "a";
  EXPECT_THAT(SendAsPrepared(labelled, id), IsInvalid("labels"));
}

// --- What a call may not bring ---

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

TEST_F(PreparedRotationTest, OpenAxisHasAnyLengthUpToThePreparedOne) {
  const std::string id = Prepare(OfTokens(5), "S");
  for (const int64_t tokens : {0, 1, 4, 5}) {
    EXPECT_THAT(SendAsPrepared(OfTokens(tokens), id, /*is_open=*/true), IsOk()) << tokens;
  }
  EXPECT_THAT(Send(CallOf(OfTokens(6), id, true)).status,
              StatusIs(kInvalid, StartsWith("tensors[0].array.shape: got [6, 2, 8]")));
}

TEST_F(PreparedRotationTest, OpenAxisMayBeReorderedAndHaveDynamicFrequencies) {
  const auto make = [](int64_t batch) {
    v1::RotateRequest request = Sample();
    request.clear_tensors();
    AddTensor(request, v1::ROLE_Q, "BSHD", {batch, 3, 2, 8});
    request.mutable_output()->add_layouts("HBSD");
    v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
    config.set_rope_type("dynamic");
    config.set_factor(2);
    config.set_max_position_embeddings(100);
    return request;
  };
  const std::string id = Prepare(make(4), "B");
  for (const int64_t batch : {1, 3, 4}) {
    EXPECT_THAT(SendAsPrepared(make(batch), id, /*is_open=*/true), IsOk()) << batch;
  }
}

TEST_F(PreparedRotationTest, ShapesOfACallDifferAlongTheOpenAxisAlone) {
  const std::string id = Prepare(OfTokens(5), "S");
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

// --- Memory regions ---

class PreparedInRegionsTest : public PreparedRotationTest {
 protected:
  static constexpr size_t kBytes = 4096;

  PreparedInRegionsTest() { memfd_id_ = regions().RegisterMemfd(memfd_.Dup(), kBytes).value(); }

  Regions& regions() { return engine_.clients().Of(kSession).regions(); }
  // As SendAsPrepared, and what is left in memory is the same as well.
  absl::Status SendHere(const v1::RotateRequest& whole, const std::string& id) {
    SetMemory();
    const WireAnswer want = Send(whole);
    const std::string memory = Memory();
    SetMemory();
    const WireAnswer got = Send(CallOf(whole, id));
    EXPECT_EQ(got.status, want.status);
    EXPECT_TRUE(got.bytes == want.bytes);
    EXPECT_TRUE(Memory() == memory);
    return got.status;
  }
  void SetMemory() {
    const std::string values = Floats(kBytes / sizeof(float));
    std::memcpy(memfd_.data(), values.data(), kBytes);
  }
  std::string Memory() const { return {memfd_.data(), kBytes}; }

  static void PlaceAt(v1::Array& array, uint64_t id, uint64_t offset) {
    array.clear_raw();
    array.mutable_region()->set_region_id(id);
    array.mutable_region()->set_offset(offset);
  }
  // The sample, of 192 bytes of q and 96 of k, from and to these places.
  static v1::RotateRequest At(uint64_t id, uint64_t from, uint64_t to) {
    v1::RotateRequest request = Sample();
    PlaceAt(*request.mutable_tensors(0)->mutable_array(), id, from);
    PlaceAt(*request.mutable_tensors(1)->mutable_array(), id, from + 192);
    for (const uint64_t offset : {to, to + 192}) {
      v1::RegionSpan& span = *request.mutable_output()->add_regions();
      span.set_region_id(id);
      span.set_offset(offset);
    }
    return request;
  }

  const SharedMemory memfd_ = SharedMemory::Memfd(kBytes);
  uint64_t memfd_id_ = 0;
};

TEST_F(PreparedInRegionsTest, EachCallHasItsOwnPlaces) {
  const std::string id = Prepare(Sample());
  EXPECT_THAT(SendHere(At(memfd_id_, 512, 1024), id), IsOk());
  EXPECT_THAT(SendHere(At(memfd_id_, 2048, 2048), id), IsOk());
  v1::RotateRequest input = At(memfd_id_, 512, 1024);
  input.clear_output();
  EXPECT_THAT(SendHere(input, id), IsOk());
  EXPECT_THAT(SendAsPrepared(Sample(), id), IsOk()) << "and none";
}

TEST_F(PreparedInRegionsTest, StridesAndInPlaceArePrepared) {
  v1::RotateRequest apart = At(memfd_id_, 512, 1024);
  apart.mutable_output()->add_strides()->mutable_values()->Add(16);
  for (const int64_t stride : {8, 1})
    apart.mutable_output()->mutable_strides(0)->add_values(stride);
  apart.mutable_output()->add_strides();
  EXPECT_THAT(SendHere(apart, Prepare(apart)), IsOk());
  v1::RotateRequest in_place = At(memfd_id_, 512, 0);
  in_place.mutable_output()->clear_regions();
  in_place.mutable_output()->set_in_place(true);
  EXPECT_THAT(SendHere(in_place, Prepare(in_place)), IsOk());
}

TEST_F(PreparedInRegionsTest, PlacesAreCheckedForEachCall) {
  const std::string id = Prepare(Sample());
  EXPECT_THAT(SendHere(At(memfd_id_, kBytes - 192, 1024), id),
              StatusIs(absl::StatusCode::kOutOfRange, StartsWith("tensors[1].array.region")));
  EXPECT_THAT(SendHere(At(memfd_id_, 512, kBytes - 192), id),
              StatusIs(absl::StatusCode::kOutOfRange, StartsWith("output.regions[1]")));
  EXPECT_THAT(SendHere(At(memfd_id_, 512, 600), id),
              StatusIs(kInvalid, StartsWith("output of tensors[0]")));
  EXPECT_THAT(Send(CallOf(At(memfd_id_, 512, 1024), id), kSession + 1).status,
              StatusIs(absl::StatusCode::kNotFound, StartsWith("tensors[0].array.region")));
}

TEST_F(PreparedInRegionsTest, PreparedRequestHoldsNoRegion) {
  const v1::RotateRequest whole = At(memfd_id_, 512, 1024);
  const std::string id = Prepare(whole);
  EXPECT_THAT(SendHere(whole, id), IsOk());
  regions().Close();
  EXPECT_EQ(engine_.clients().region_bytes(), 0);
  EXPECT_THAT(SendHere(whole, id), IsNotFound("region"));
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

constexpr auto kNotFound = absl::StatusCode::kNotFound;

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
