#include "server/engine/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"
#include "kernels/backends.h"
#include "kernels/dtype/element.h"
#include "server/clients/limits.h"
#include "server/request/array_reader.h"
#include "server/request/validate.h"
#include "tests/support/fake_backend.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::CutIntoPieces;
using ::rope::testing::FakeBackend;
using ::rope::testing::RawBytes;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

void AddTensor(v1::RotateRequest& request, const std::string& layout,
               const std::vector<int64_t>& shape) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout(layout);
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), shape);
  int64_t count = 1;
  for (const int64_t length : shape) count *= length;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 17) - 8.0F);
  if (count > 0) tensor.mutable_array()->set_raw(RawBytes(values));
}

v1::RotateRequest Sample(const std::string& layout, const std::vector<int64_t>& shape) {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
  request.mutable_positions()->set_start(100);
  AddTensor(request, layout, shape);
  return request;
}

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() { registry_ = ModelRegistry::Create({}).value(); }

  // Validates `sent`, received in several fragments.
  std::unique_ptr<Request> Receive(const v1::RotateRequest& sent, size_t piece = 1 << 20) {
    std::unique_ptr<Request> request = ReceivedRequest(sent, piece).MakeRequest();
    auto plan = Validate(request->decoded.message(), request->decoded.split, *registry_);
    EXPECT_THAT(plan, IsOk());
    if (plan.ok()) request->plan = *std::move(plan);
    return request;
  }

  std::vector<Slice> WholeSlices(const std::vector<Request*>& requests) {
    std::vector<Slice> slices;
    for (Request* request : requests) {
      slices.push_back({request, 0, request->plan.tokens, absl::OkStatus()});
    }
    return slices;
  }

  static std::string Output(const Request& request, size_t tensor = 0) {
    if (tensor >= request.run.outputs.size()) return "";
    const PooledBuffer& output = request.run.outputs[tensor];
    return {output.data(), static_cast<size_t>(output.size())};
  }

  // Rotates with the reference backend, in slices of `slice` tokens.
  std::string Rotate(const v1::RotateRequest& sent, size_t piece = 1 << 20,
                     int64_t slice = 1 << 20) {
    const auto request = Receive(sent, piece);
    Executor executor(reference_, tables_, pool_);
    for (int64_t begin = 0; begin < request->plan.tokens; begin += slice) {
      Slice one = {request.get(), begin, std::min(begin + slice, request->plan.tokens),
                   absl::OkStatus()};
      executor.Run(absl::MakeSpan(&one, 1));
      EXPECT_THAT(one.status, IsOk());
    }
    EXPECT_EQ(request->run.device, "reference");
    return Output(*request);
  }

  DeviceRouter reference_{kernels::CreateBackend("reference", {}).value()};
  DeviceRouter fakes_{std::make_unique<FakeBackend>()};
  FakeBackend& fake_ = static_cast<FakeBackend&>(fakes_.host());
  std::unique_ptr<ModelRegistry> registry_;
  kernels::TableCache tables_{limits::kTableCacheBytes};
  BufferPool pool_{limits::kPooledBytesMax};
};

TEST_F(ExecutorTest, OddPiecesAndSlicesChangeNothing) {
  for (const auto& [layout, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"BSHD", {2, 3, 2, 8}}, {"BHSD", {2, 2, 3, 8}}, {"LTHD", {2, 3, 2, 8}}}) {
    const v1::RotateRequest request = Sample(layout, shape);
    const std::string whole = Rotate(request);
    EXPECT_NE(whole, request.tensors(0).array().raw());
    for (const size_t piece : {1U, 7U, 31U, 33U, 64U}) {
      EXPECT_EQ(Rotate(request, piece), whole) << layout << " in pieces of " << piece;
    }
    for (const int64_t slice : {1, 2, 4}) EXPECT_EQ(Rotate(request, 31, slice), whole);
  }
}

// A strided view of `extent` floats that count up, and its packed copy.
struct View {
  v1::RotateRequest strided;
  v1::RotateRequest packed;
};

View MakeView(const std::string& layout, const std::vector<int64_t>& shape,
              const std::vector<int64_t>& strides) {
  int64_t extent = 1;
  for (size_t i = 0; i < shape.size(); ++i) extent += (shape[i] - 1) * strides[i];
  std::vector<float> elements;
  for (int64_t i = 0; i < extent; ++i) elements.push_back(static_cast<float>(i % 37) - 18.0F);
  std::vector<float> copy;
  std::vector<int64_t> at(shape.size(), 0);
  for (bool more = true; more;) {
    int64_t offset = 0;
    for (size_t i = 0; i < shape.size(); ++i) offset += at[i] * strides[i];
    copy.push_back(elements[static_cast<size_t>(offset)]);
    more = false;
    for (size_t i = shape.size(); i-- > 0 && !more;) {
      more = ++at[i] < shape[i];
      if (!more) at[i] = 0;
    }
  }
  View view = {Sample(layout, shape), Sample(layout, shape)};
  view.packed.mutable_tensors(0)->mutable_array()->set_raw(RawBytes(copy));
  v1::Array& array = *view.strided.mutable_tensors(0)->mutable_array();
  array.mutable_strides()->Assign(strides.begin(), strides.end());
  array.set_raw(RawBytes(elements));
  return view;
}

TEST_F(ExecutorTest, StridesOnlySayWhereElementsLie) {
  const struct {
    const char* layout;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
  } cases[] = {
      {"BSHD", {2, 3, 2, 8}, {48, 16, 8, 1}},    // packed after all
      {"BSHD", {2, 3, 2, 8}, {48, 8, 24, 1}},    // a transposed BHSD
      {"BSHD", {2, 3, 2, 8}, {100, 30, 11, 1}},  // padded, odd
      {"BHSD", {2, 2, 3, 8}, {48, 8, 16, 1}},    // a transposed BSHD
      {"SBHD", {3, 2, 2, 8}, {16, 48, 8, 1}},    // a transposed BSHD
      {"LTHD", {2, 3, 2, 8}, {0, 16, 8, 1}},     // every layer the same
      {"SHD", {3, 2, 8}, {1, 3, 6}},             // channels apart
      {"HD", {2, 8}, {8, 1}},
  };
  for (const auto& c : cases) {
    const View view = MakeView(c.layout, c.shape, c.strides);
    const std::string want = Rotate(view.packed);
    for (const size_t piece : {7U, 1000000U}) {
      EXPECT_EQ(Rotate(view.strided, piece), want) << c.layout << " in pieces of " << piece;
    }
    for (const int64_t slice : {1, 2}) EXPECT_EQ(Rotate(view.strided, 31, slice), want);
  }
}

TEST_F(ExecutorTest, OutputIntoAnotherLayoutIsTheSameRotationElsewhere) {
  const std::vector<std::pair<char, int64_t>> lengths = {{'B', 2}, {'S', 3}, {'H', 2}, {'D', 8}};
  const auto shape_of = [&lengths](const std::string& letters) {
    std::vector<int64_t> shape;
    for (const char letter : letters) {
      shape.push_back(std::ranges::find(lengths, letter, &std::pair<char, int64_t>::first)->second);
    }
    return shape;
  };
  // The element at (b, s, h, d) of a packed tensor in `letters`.
  const auto index = [&](const std::string& letters, const std::array<int64_t, 4>& at) {
    int64_t offset = 0;
    const std::vector<int64_t> shape = shape_of(letters);
    for (size_t i = 0; i < letters.size(); ++i) {
      offset = offset * shape[i] + at[std::string("BSHD").find(letters[i])];
    }
    return static_cast<size_t>(offset);
  };
  for (const std::string from : {"BSHD", "SBHD", "BHSD", "HSBD"}) {
    const v1::RotateRequest same = Sample(from, shape_of(from));
    const std::string want = Rotate(same);
    for (const std::string to : {"BSHD", "SBHD", "BHSD", "HBSD"}) {
      v1::RotateRequest request = same;
      request.mutable_output()->add_layouts(to);
      for (const size_t piece : {33U, 1000000U}) {
        const std::string got = Rotate(request, piece, 2);
        ASSERT_EQ(got.size(), want.size());
        for (int64_t i = 0; i < 12; ++i) {
          const std::array<int64_t, 4> at = {i / 6, i / 2 % 3, i % 2, 0};
          ASSERT_EQ(got.substr(4 * index(to, at), 32), want.substr(4 * index(from, at), 32))
              << from << " to " << to << " row " << i;
        }
      }
    }
  }
}

TEST_F(ExecutorTest, HeadRangesRotateAndTheRestPassesThrough) {
  for (const char* const layout : {"SHD", "HSD"}) {
    const bool heads_first = std::string(layout) == "HSD";
    const std::vector<int64_t> shape =
        heads_first ? std::vector<int64_t>{7, 3, 8} : std::vector<int64_t>{3, 7, 8};
    const v1::RotateRequest whole = Sample(layout, shape);
    const std::string rotated = Rotate(whole);
    const std::string& raw = whole.tensors(0).array().raw();
    v1::RotateRequest ranges = whole;
    v1::Tensor& tensor = *ranges.mutable_tensors(0);
    tensor.clear_role();
    const auto add = [&tensor](v1::Role role, int64_t begin, int64_t end) {
      v1::HeadRange& range = *tensor.add_head_ranges();
      range.set_role(role);
      range.set_begin(begin);
      range.set_end(end);
    };
    add(v1::ROLE_Q, 0, 3);
    add(v1::ROLE_UNSPECIFIED, 3, 4);
    add(v1::ROLE_K, 5, 6);
    for (const size_t piece : {7U, 33U, 1000000U}) {
      const std::string got = Rotate(ranges, piece, 2);
      ASSERT_EQ(got.size(), raw.size());
      for (int64_t token = 0; token < 3; ++token) {
        for (int64_t head = 0; head < 7; ++head) {
          const auto row = static_cast<size_t>(heads_first ? head * 3 + token : token * 7 + head);
          const bool rotates = head < 3 || head == 5;
          EXPECT_EQ(got.substr(row * 32, 32), (rotates ? rotated : raw).substr(row * 32, 32))
              << layout << " token " << token << " head " << head;
        }
      }
    }
  }
}

// fp32 elements divided by `scale` and stored in `dtype` as the kernels do.
std::string Converted(const std::string& floats, kernels::DType dtype, double scale) {
  const auto* const from = reinterpret_cast<const uint8_t*>(floats.data());
  const size_t count = floats.size() / sizeof(float);
  std::vector<uint8_t> to(count * static_cast<size_t>(kernels::ElementBytes(dtype)));
  for (size_t i = 0; i < count; ++i) {
    const double value = kernels::ReadElement(from + 4 * i, kernels::DType::kFloat32);
    kernels::WriteElement(value / scale, dtype,
                          to.data() + i * static_cast<size_t>(kernels::ElementBytes(dtype)));
  }
  return {to.begin(), to.end()};
}

TEST_F(ExecutorTest, AnotherOutputDTypeReachesEveryHeadOfEveryPieceAndSlice) {
  v1::RotateRequest request = Sample("SHD", {3, 7, 8});
  v1::Tensor& tensor = *request.mutable_tensors(0);
  tensor.clear_role();
  tensor.add_head_ranges()->set_role(v1::ROLE_Q);
  tensor.mutable_head_ranges(0)->set_end(3);
  const std::string& raw = tensor.array().raw();
  for (const v1::DType dtype : {v1::DTYPE_FP16, v1::DTYPE_BF16, v1::DTYPE_FP8_E4M3}) {
    request.mutable_output()->set_dtype(dtype);
    if (dtype == v1::DTYPE_FP8_E4M3) tensor.add_fp8_scales(0.25);
    const auto kernel_dtype = ReadOutputDType(dtype, "dtype").value();
    const std::string passed =
        Converted(raw, kernel_dtype, (tensor.fp8_scales_size() > 0) ? 0.25 : 1);
    const auto row_bytes = static_cast<size_t>(8 * kernels::ElementBytes(kernel_dtype));
    const std::string whole = Rotate(request);
    ASSERT_EQ(whole.size(), passed.size());
    for (size_t row = 0; row < 21; ++row) {
      const bool same =
          whole.substr(row * row_bytes, row_bytes) == passed.substr(row * row_bytes, row_bytes);
      EXPECT_EQ(same, row % 7 >= 3) << "row " << row << " to " << v1::DType_Name(dtype);
    }
    for (const size_t piece : {7U, 31U, 64U}) EXPECT_EQ(Rotate(request, piece), whole);
    for (const int64_t slice : {1, 2}) EXPECT_EQ(Rotate(request, 31, slice), whole);
  }
}

TEST_F(ExecutorTest, OutputLayoutsHoldWithAnotherDTypeAndStridesToo) {
  const View view = MakeView("BSHD", {2, 3, 2, 8}, {100, 30, 11, 1});
  v1::RotateRequest packed = view.packed;
  packed.mutable_output()->set_dtype(v1::DTYPE_BF16);
  const std::string want = Rotate(packed);
  EXPECT_EQ(want.size(), 2U * 3 * 2 * 8 * 2);
  v1::RotateRequest strided = view.strided;
  *strided.mutable_output() = packed.output();
  EXPECT_EQ(Rotate(strided, 31, 2), want);
  strided.mutable_output()->add_layouts("BHSD");
  const std::string moved = Rotate(strided, 31, 2);
  for (size_t b = 0; b < 2; ++b) {
    for (size_t s = 0; s < 3; ++s) {
      for (size_t h = 0; h < 2; ++h) {
        EXPECT_EQ(moved.substr(((b * 2 + h) * 3 + s) * 16, 16),
                  want.substr(((b * 3 + s) * 2 + h) * 16, 16));
      }
    }
  }
}

TEST_F(ExecutorTest, SlicesTakeTheScalesOfTheirTokens) {
  v1::RotateRequest request = Sample("SHD", {5, 2, 8});
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_type("yarn");
  config.set_factor(4);
  config.set_original_max_position_embeddings(2);
  request.mutable_tensors(0)->set_llama4_scaling_beta(3);
  const std::string whole = Rotate(request);
  for (const int64_t slice : {1, 2, 3}) EXPECT_EQ(Rotate(request, 31, slice), whole);
  request.mutable_tensors(0)->clear_llama4_scaling_beta();
  EXPECT_NE(Rotate(request), whole);
}

TEST_F(ExecutorTest, HeadMajorGivesTheSameNumbersAsTokenMajor) {
  // With one head, both layouts are identical in memory.
  EXPECT_EQ(Rotate(Sample("BHSD", {2, 1, 3, 8})), Rotate(Sample("BSHD", {2, 3, 1, 8})));
}

TEST_F(ExecutorTest, SlicesAcrossRunsTakeEachTokensFrequencies) {
  v1::RotateRequest request = Sample("BSD", {3, 2, 8});
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_type("dynamic");
  config.set_factor(4);
  config.set_max_position_embeddings(8);
  for (const int64_t length : {8, 500, 9000}) request.mutable_positions()->add_seq_lens(length);
  const std::string whole = Rotate(request);
  for (const int64_t slice : {1, 3, 5}) EXPECT_EQ(Rotate(request, 1000, slice), whole);
  std::string by_sequence;
  for (int i = 0; i < 3; ++i) {
    v1::RotateRequest one = request;
    one.mutable_positions()->clear_seq_lens();
    one.mutable_positions()->add_seq_lens(request.positions().seq_lens(i));
    const std::string raw = request.tensors(0).array().raw();
    v1::Array& array = *one.mutable_tensors(0)->mutable_array();
    SetShape(array, {1, 2, 8});
    array.set_raw(raw.substr(static_cast<size_t>(i) * 64, 64));
    by_sequence += Rotate(one);
  }
  EXPECT_EQ(whole, by_sequence);
}

TEST_F(ExecutorTest, EqualAxesOfMropeAreAPlainRotationAndOthersAreNot) {
  v1::RotateRequest request = Sample("SHD", {3, 2, 8});
  const std::string plain = Rotate(request);
  for (const int64_t count : {2, 1, 1}) {
    request.mutable_rope()->mutable_config()->add_mrope_section(count);
  }
  request.mutable_positions()->clear_start();
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  SetShape(ids, {3, 3});
  for (int i = 0; i < 9; ++i) ids.add_numbers(100 + i % 3);
  EXPECT_EQ(Rotate(request), plain);
  ids.set_numbers(8, 500);  // w of the last token
  const std::string other = Rotate(request, 31, 2);
  EXPECT_EQ(other.substr(0, 128), plain.substr(0, 128));
  EXPECT_NE(other, plain);
}

TEST_F(ExecutorTest, LayerWithoutRotationReturnsItsTensors) {
  v1::RotateRequest request = Sample("SHD", {3, 2, 8});
  request.mutable_rope()->clear_config();
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 8, "num_hidden_layers": 2, "no_rope_layers": [1, 0]})");
  request.mutable_rope()->set_layer(1);
  EXPECT_EQ(Rotate(request, 7, 2), request.tensors(0).array().raw());
  request.mutable_output()->set_dtype(v1::DTYPE_FP8_E5M2);
  request.mutable_tensors(0)->set_scale(4);
  EXPECT_EQ(Rotate(request, 7, 2),
            Converted(request.tensors(0).array().raw(), kernels::DType::kFloat8E5M2, 0.25));
}

TEST_F(ExecutorTest, ResultTakesThePlaceOfTheReceivedBytesOrLeavesThem) {
  const v1::RotateRequest sent = Sample("THD", {1024, 2, 8});
  const std::string& raw = sent.tensors(0).array().raw();
  for (const bool overwrites : {false, true}) {
    std::vector<std::string> pieces = CutIntoPieces(raw, 4099);
    const auto request = Receive(sent);
    TensorPlan& tensor = request->plan.tensors.front();
    tensor.input.fragments.assign(pieces.begin(), pieces.end());
    if (overwrites) {
      for (std::string& piece : pieces) tensor.overwritten.push_back(piece.data());
    }
    auto slices = WholeSlices({request.get()});
    Executor(reference_, tables_, pool_).Run(absl::MakeSpan(slices));
    EXPECT_THAT(slices.front().status, IsOk());
    EXPECT_TRUE(absl::StrJoin(pieces, "") == (overwrites ? Rotate(sent) : raw));
    EXPECT_TRUE(Output(*request) == (overwrites ? "" : Rotate(sent)));
  }
}

TEST_F(ExecutorTest, SeveralTensorsAndRequestsShareOneCall) {
  v1::RotateRequest two = Sample("SHD", {3, 2, 8});
  AddTensor(two, "HSD", {1, 3, 8});
  const auto first = Receive(two);
  const auto second = Receive(Sample("SD", {4, 8}));
  std::vector<Slice> slices = WholeSlices({first.get(), second.get()});
  Executor(fakes_, tables_, pool_).Run(absl::MakeSpan(slices));
  EXPECT_EQ(fake_.calls, 1);
  EXPECT_EQ(fake_.jobs_seen, 3);
  EXPECT_EQ(first->run.outputs.size(), 2U);
  EXPECT_EQ(first->run.device, "fake");
}

// Whatever the slice, what is large is written past the caches.
TEST_F(ExecutorTest, TheWholeRequestDecidesWhetherItsJobsStream) {
  const int64_t tokens_max = kernels::kCachedBytesMax / (8 * 8 * 4);
  for (const auto& [tokens, streams] : {std::pair(tokens_max, false), {tokens_max + 1, true}}) {
    const auto request = Receive(Sample("SHD", {tokens, 8, 8}));
    int64_t as_expected = 0;
    fake_.on_rotate = [&, streams = streams](absl::Span<const kernels::RotateJob> jobs) {
      for (const kernels::RotateJob& job : jobs) as_expected += job.streams == streams ? 1 : 0;
    };
    fake_.jobs_seen = 0;
    for (const int64_t begin : {int64_t{0}, tokens / 2}) {
      Slice slice = {request.get(), begin, begin + 1, absl::OkStatus()};
      Executor(fakes_, tables_, pool_).Run(absl::MakeSpan(&slice, 1));
    }
    EXPECT_EQ(as_expected, 2);
    EXPECT_EQ(fake_.jobs_seen, 2);
  }
}

TEST_F(ExecutorTest, RowsLastAsLongAsTheirSlice) {
  const auto request = Receive(Sample("SD", {3, 8}));
  std::vector<Slice> slices = WholeSlices({request.get()});
  Executor(reference_, tables_, pool_).Run(absl::MakeSpan(slices));
  ASSERT_EQ(slices[0].rows.size(), 1U);
  EXPECT_EQ(slices[0].rows[0].rows.size(), 3U);
  const std::weak_ptr<const kernels::TablePage> page = slices[0].rows[0].pages.at(0);
  EXPECT_EQ(page.use_count(), 2);  // and the cache's
  slices.clear();
  EXPECT_EQ(page.use_count(), 1);
}

// A token at each of `count` positions on pages of their own; a page of 128 channels has 32 KiB.
v1::RotateRequest Scattered(int64_t count, int64_t first) {
  v1::RotateRequest request = Sample("SHD", {count, 1, 128});
  request.mutable_rope()->mutable_config()->set_head_dim(128);
  request.mutable_positions()->clear_start();
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  SetShape(ids, {count});
  for (int64_t i = 0; i < count; ++i) {
    ids.add_numbers(static_cast<double>(first + i * 10 * kernels::kPageRows));
  }
  return request;
}

TEST_F(ExecutorTest, SliceEndsWhereItsBatchHasBuiltEnoughAndLaterOnesDoNotBegin) {
  const v1::RotateRequest sent = Scattered(100, 0);
  const auto first = Receive(sent);
  const auto second = Receive(Scattered(5, 1 << 20));
  Executor executor(reference_, tables_, pool_);
  std::vector<Slice> slices = WholeSlices({first.get(), second.get()});
  executor.Run(absl::MakeSpan(slices));
  EXPECT_THAT(slices[0].status, IsOk());
  EXPECT_EQ(slices[0].end, 64);
  EXPECT_THAT(slices[1].status, IsOk());
  EXPECT_TRUE(slices[1].WasLeftOut());
  EXPECT_THAT(second->run.outputs, ::testing::IsEmpty());
  slices = {{second.get(), 0, 5, absl::OkStatus()}, {first.get(), 64, 100, absl::OkStatus()}};
  executor.Run(absl::MakeSpan(slices));
  EXPECT_TRUE(slices[0].IsLast());
  EXPECT_TRUE(slices[1].IsLast());
  EXPECT_TRUE(Output(*first) == Rotate(sent)) << "whose pages are there now";
  EXPECT_TRUE(Output(*second) == Rotate(Scattered(5, 1 << 20)));
}

// Runs the request in slices that take all that is left. Returns their tokens.
std::vector<int64_t> RunToItsEnd(Request& request, Executor& executor) {
  std::vector<int64_t> tokens;
  for (int64_t begin = 0; begin < request.plan.tokens;) {
    Slice slice = {&request, begin, request.plan.tokens, absl::OkStatus()};
    executor.Run(absl::MakeSpan(&slice, 1));
    EXPECT_THAT(slice.status, IsOk());
    EXPECT_GT(slice.end, begin);
    if (slice.end <= begin) break;
    tokens.push_back(slice.end - begin);
    begin = slice.end;
  }
  return tokens;
}

TEST_F(ExecutorTest, RowSetsShareTheBudgetOfTheirBatch) {
  v1::RotateRequest sent = Scattered(70, 0);
  v1::Tensor& k = *sent.add_tensors() = sent.tensors(0);
  k.set_role(v1::ROLE_K);
  v1::RopeConfig& config = *sent.mutable_rope()->mutable_config();
  config.mutable_xpos()->set_scale_base(1 << 20);
  const auto request = Receive(sent);
  ASSERT_EQ(request->plan.row_sets.size(), 2U);
  Executor executor(reference_, tables_, pool_);
  EXPECT_THAT(RunToItsEnd(*request, executor), ElementsAre(32, 32, 6));
}

TEST_F(ExecutorTest, LengthsThatHaveTheirOwnFrequenciesShareTheBudgetToo) {
  // 2 MiB hold 256 tokens of 16 rows with 64 columns of cos and sin.
  constexpr int64_t kLengths = 300;
  v1::RotateRequest sent = Sample("BSD", {kLengths, 1, 128});
  v1::RopeConfig& config = *sent.mutable_rope()->mutable_config();
  config.set_head_dim(128);
  config.set_rope_type("dynamic");
  config.set_factor(4);
  config.set_max_position_embeddings(8);
  for (int64_t i = 0; i < kLengths; ++i) sent.mutable_positions()->add_seq_lens(1000 + i);
  const auto request = Receive(sent);
  ASSERT_EQ(request->plan.row_sets.front().runs.size(), static_cast<size_t>(kLengths));
  Executor executor(reference_, tables_, pool_);
  EXPECT_THAT(RunToItsEnd(*request, executor), ElementsAre(256, 44)) << "a row each, not a page";
}

TEST_F(ExecutorTest, RowsFromTwoEmbeddingsEndSlicesToo) {
  v1::RotateRequest sent = Scattered(200, 0);
  sent.set_operation(v1::OPERATION_REPOSITION);
  sent.mutable_reposition()->mutable_from()->set_start(3);
  *sent.mutable_reposition()->mutable_from_rope() = sent.rope();
  sent.mutable_reposition()->mutable_from_rope()->mutable_config()->set_rope_theta(777);
  const auto request = Receive(sent);
  Executor executor(reference_, tables_, pool_);
  EXPECT_THAT(RunToItsEnd(*request, executor), ElementsAre(128, 72));
}

TEST_F(ExecutorTest, FaultOfTheDeviceFailsEverySlice) {
  const auto first = Receive(Sample("SD", {3, 8}));
  const auto second = Receive(Sample("SD", {4, 8}));
  fake_.answer = absl::InternalError("device: got a fault");
  std::vector<Slice> slices = WholeSlices({first.get(), second.get()});
  Executor(fakes_, tables_, pool_).Run(absl::MakeSpan(slices));
  for (const Slice& slice : slices) {
    EXPECT_THAT(slice.status, IsInternal("a fault"));
  }
}

TEST_F(ExecutorTest, TablesThatCannotBeBuiltFailTheirSliceAlone) {
  kernels::TableCache failing(
      limits::kTableCacheBytes,
      [](const kernels::Frequencies& frequencies,
         int64_t first) -> absl::StatusOr<std::shared_ptr<kernels::TablePage>> {
        if (first >= 1024) return absl::InternalError("page: got 1024");
        return kernels::BuildPage(frequencies, first);
      });
  v1::RotateRequest far = Sample("SD", {3, 8});
  far.mutable_positions()->set_start(2000);
  const auto first = Receive(far);
  const auto second = Receive(Sample("SD", {4, 8}));
  std::vector<Slice> slices = WholeSlices({first.get(), second.get()});
  Executor(reference_, failing, pool_).Run(absl::MakeSpan(slices));
  EXPECT_THAT(slices[0].status, IsInternal("page"));
  EXPECT_THAT(slices[1].status, IsOk());
  EXPECT_EQ(Output(*second), Rotate(Sample("SD", {4, 8})));
}

TEST_F(ExecutorTest, EmptyTensorsNeedNoDevice) {
  v1::RotateRequest dynamic = Sample("SHD", {3, 0, 8});
  dynamic.mutable_rope()->mutable_config()->set_rope_type("dynamic");
  dynamic.mutable_rope()->mutable_config()->set_factor(2);
  dynamic.mutable_rope()->mutable_config()->set_max_position_embeddings(8);
  for (const v1::RotateRequest& sent :
       {Sample("SHD", {0, 2, 8}), Sample("SHD", {3, 0, 8}), dynamic}) {
    const auto request = Receive(sent);
    std::vector<Slice> slices = WholeSlices({request.get()});
    Executor(fakes_, tables_, pool_).Run(absl::MakeSpan(slices));
    EXPECT_THAT(slices[0].status, IsOk());
    EXPECT_EQ(fake_.calls, 0);
    ASSERT_EQ(request->run.outputs.size(), 1U);
    EXPECT_EQ(request->run.outputs[0].size(), 0);
  }
}

}  // namespace
}  // namespace rope::server
