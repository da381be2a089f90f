// Tensors in memory that client and server share.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/region_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

constexpr double kClose = 2e-6;
constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

class RegionTest : public ::testing::Test {
 protected:
  // The offsets of a request's first and second tensor.
  static constexpr uint64_t kHere = 4096;
  static constexpr uint64_t kThere = 65536;

  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{{"--enable_shared_memory", "--listen=unix:" + path_}};
  RegionClient client_{path_};
  const Sample sample_{};
};

TEST_F(RegionTest, MemfdTensorIsRotatedInPlace) {
  sample_.Fill(client_.memory().As<float>(kHere));
  v1::RotateResponse response;
  ASSERT_EQ(Text(Rotate(client_.stub(), sample_.InPlace(client_.id(), kHere), &response)), "OK");
  EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere)), kClose);
  const v1::Array& array = response.tensors(0).array();
  EXPECT_EQ(array.region().region_id(), client_.id());
  EXPECT_EQ(array.region().offset(), kHere);
  EXPECT_THAT(array.shape(), ElementsAre(3, 2, 8));
  EXPECT_EQ(array.raw(), "");
  EXPECT_EQ(array.numbers_size(), 0);
  const char* const bytes = client_.memory().data();
  EXPECT_TRUE(std::all_of(bytes, bytes + kHere, [](char c) { return c == 0; }));
  const char* const after = bytes + kHere + sample_.bytes();
  EXPECT_TRUE(std::all_of(after, bytes + client_.memory().bytes(), [](char c) { return c == 0; }));
}

TEST_F(RegionTest, TensorOfManySlicesIsRotatedInPlaceOnce) {
  const Sample large = {.tokens = 20000, .heads = 64};  // 41 MB, cut into slices of 8 MiB
  RegionClient client(path_, large.bytes() + 64);
  large.Fill(client.memory().As<float>(64));
  ASSERT_EQ(Text(Rotate(client.stub(), large.InPlace(client.id(), 64))), "OK");
  EXPECT_LT(large.Error(client.memory().As<float>(64)), 1e-5);
}

TEST_F(RegionTest, SeveralTensorsOfOneRegion) {
  v1::RotateRequest request = sample_.InPlace(client_.id(), kHere);
  sample_.AddTensor(client_.id(), kHere + sample_.bytes(), request);  // next to each other
  sample_.Fill(client_.memory().As<float>(kHere));
  sample_.Fill(client_.memory().As<float>(kHere + sample_.bytes()));
  ASSERT_EQ(Text(Rotate(client_.stub(), request)), "OK");
  EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere)), kClose);
  EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere + sample_.bytes())), kClose);
}

TEST_F(RegionTest, OutputGoesToItsPlaceAndLeavesTheInput) {
  sample_.Fill(client_.memory().As<float>(kHere));
  v1::RotateRequest request = sample_.Request(client_.id(), kHere);
  PlaceOutput(client_.id(), kThere + 2, request);  // any alignment
  v1::RotateResponse response;
  ASSERT_EQ(Text(Rotate(client_.stub(), request, &response)), "OK");
  std::vector<float> output(static_cast<size_t>(sample_.elements()));
  std::memcpy(output.data(), client_.memory().data() + kThere + 2, sample_.bytes());
  EXPECT_LT(sample_.Error(output.data()), kClose);
  const std::vector<float> input = sample_.Input();
  EXPECT_EQ(std::memcmp(client_.memory().data() + kHere, input.data(), sample_.bytes()), 0);
  EXPECT_EQ(response.tensors(0).array().region().offset(), kThere + 2);
}

TEST_F(RegionTest, RegionsMixWithBytesInTheMessage) {
  sample_.Fill(client_.memory().As<float>(kHere));
  v1::RotateResponse response;
  // From a region into the reply message.
  ASSERT_EQ(Text(Rotate(client_.stub(), sample_.Request(client_.id(), kHere), &response)), "OK");
  ASSERT_EQ(response.tensors(0).array().raw().size(), sample_.bytes());
  EXPECT_LT(sample_.Error(reinterpret_cast<const float*>(response.tensors(0).array().raw().data())),
            kClose);
  // From the request message into a region.
  v1::RotateRequest request = sample_.Request(client_.id(), kHere);
  v1::Array& array = *request.mutable_tensors(0)->mutable_array();
  array.clear_region();
  array.set_raw(client_.memory().data() + kHere, sample_.bytes());
  PlaceOutput(client_.id(), kHere, request);
  ASSERT_EQ(Text(Rotate(client_.stub(), request)), "OK");
  EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere)), kClose);
}

TEST_F(RegionTest, LargeInputStaysWhereTheAnswerTakesItsBytes) {
  const Sample large = {.tokens = 4000,
                        .heads = 8};  // 1 MB: inline, its bytes would be overwritten
  RegionClient client(path_, large.bytes());
  large.Fill(client.memory().As<float>(0));
  v1::RotateResponse response;
  ASSERT_EQ(Text(Rotate(client.stub(), large.Request(client.id(), 0), &response)), "OK");
  const std::string& raw = response.tensors(0).array().raw();
  ASSERT_EQ(raw.size(), large.bytes());
  EXPECT_LT(large.Error(reinterpret_cast<const float*>(raw.data())), 1e-5);
  const std::vector<float> input = large.Input();
  EXPECT_EQ(std::memcmp(client.memory().data(), input.data(), large.bytes()), 0);
}

// Heads of 8 channels at a distance of 10; the channels in between must stay unchanged.
class Strided {
 public:
  static constexpr int64_t kHead = 10;
  explicit Strided(const Sample& sample) : sample_(sample) {}

  std::vector<int64_t> strides() const { return {sample_.heads * kHead, kHead, 1}; }
  void Scatter(const std::vector<float>& values, float* out) const {
    for (int64_t i = 0; i < sample_.elements(); ++i) {
      out[i / Sample::kHeadDim * kHead + i % Sample::kHeadDim] = values[static_cast<size_t>(i)];
    }
    for (int64_t row = 0; row + 1 < sample_.tokens * sample_.heads; ++row) {
      out[row * kHead + 8] = out[row * kHead + 9] = 77;
    }
  }
  std::vector<float> Gather(const float* from) const {
    std::vector<float> values;
    for (int64_t i = 0; i < sample_.elements(); ++i) {
      values.push_back(from[i / Sample::kHeadDim * kHead + i % Sample::kHeadDim]);
    }
    for (int64_t row = 0; row + 1 < sample_.tokens * sample_.heads; ++row) {
      EXPECT_EQ(from[row * kHead + 8], 77);
      EXPECT_EQ(from[row * kHead + 9], 77);
    }
    return values;
  }

 private:
  const Sample& sample_;
};

TEST_F(RegionTest, StridedTensorIsRotatedInPlace) {
  const Strided strided(sample_);
  float* const data = client_.memory().As<float>(kHere);
  strided.Scatter(sample_.Input(), data);
  v1::RotateRequest request = sample_.InPlace(client_.id(), kHere);
  for (const int64_t stride : strided.strides()) {
    request.mutable_tensors(0)->mutable_array()->add_strides(stride);
  }
  v1::RotateResponse response;
  ASSERT_EQ(Text(Rotate(client_.stub(), request, &response)), "OK");
  EXPECT_LT(sample_.Error(strided.Gather(data).data()), kClose);
  EXPECT_THAT(response.tensors(0).array().strides(), ElementsAre(20, 10, 1));
}

TEST_F(RegionTest, OutputTakesStridesAndAnotherOrderOfAxes) {
  sample_.Fill(client_.memory().As<float>(kHere));
  v1::RotateRequest request = sample_.Request(client_.id(), kHere);
  request.mutable_output()->add_layouts("HSD");
  v1::Strides& strides = *request.mutable_output()->add_strides();
  for (const int64_t stride : {100, 10, 1}) strides.add_values(stride);
  PlaceOutput(client_.id(), kThere, request);
  v1::RotateResponse response;
  ASSERT_EQ(Text(Rotate(client_.stub(), request, &response)), "OK");
  EXPECT_EQ(response.tensors(0).layout(), "HSD");
  EXPECT_THAT(response.tensors(0).array().strides(), ElementsAre(100, 10, 1));
  const float* const out = client_.memory().As<float>(kThere);
  std::vector<float> packed;
  for (int64_t i = 0; i < sample_.elements(); ++i) {
    packed.push_back(out[i / 8 % 2 * 100 + i / 16 * 10 + i % 8]);
  }
  EXPECT_LT(sample_.Error(packed.data()), kClose);
  EXPECT_EQ(out[8], 0);
  EXPECT_EQ(out[30], 0);
}

TEST_F(RegionTest, PositionsOfARegionAreCheckedWhereTheServerHasThem) {
  auto* const positions = client_.memory().As<int64_t>(kThere);
  v1::RotateRequest request = sample_.InPlace(client_.id(), kHere);
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  request.mutable_positions()->clear_start();
  ids.set_dtype(v1::DTYPE_INT64);
  ids.add_shape(3);
  ids.mutable_region()->set_region_id(client_.id());
  ids.mutable_region()->set_offset(kThere);
  for (int64_t t = 0; t < 3; ++t) positions[t] = sample_.start + t;
  sample_.Fill(client_.memory().As<float>(kHere));
  ASSERT_EQ(Text(Rotate(client_.stub(), request)), "OK");
  EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere)), kClose);
  positions[2] = -1;
  EXPECT_THAT(Text(Rotate(client_.stub(), request)), StartsWith("3 positions.position_ids"));
  positions[2] = (int64_t{1} << 30) + 1;
  EXPECT_THAT(Text(Rotate(client_.stub(), request)), StartsWith("11 positions.position_ids"));
  ids.mutable_region()->set_offset(client_.memory().bytes() - 23);
  EXPECT_THAT(Text(Rotate(client_.stub(), request)),
              StartsWith("11 positions.position_ids.region: got 24 bytes from offset 1048553"));
}

TEST_F(RegionTest, StreamRotatesInPlace) {
  grpc::ClientContext context;
  const auto stream = OpenStream(client_.stub(), context);
  constexpr int kRequests = 100;
  for (int i = 0; i < kRequests; ++i) {
    sample_.Fill(client_.memory().As<float>(kHere + i * sample_.bytes()));
    ASSERT_TRUE(stream->Write(sample_.InPlace(client_.id(), kHere + i * sample_.bytes())));
  }
  v1::RotateResponse response;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.error().message(), "");
  }
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere + i * sample_.bytes())), kClose);
  }
  ASSERT_TRUE(stream->Write(sample_.InPlace(client_.id() + 1, kHere)));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error().code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(response.error().may_have_executed());
  stream->WritesDone();
  EXPECT_EQ(Text(stream->Finish()), "OK");
}

TEST_F(RegionTest, SpansPastTheRegionAreOutOfRange) {
  const uint64_t bytes = client_.memory().bytes();
  for (const uint64_t offset : {bytes, bytes - sample_.bytes() + 1, kMost, kMost - 100}) {
    EXPECT_THAT(Text(Rotate(client_.stub(), sample_.InPlace(client_.id(), offset))),
                StartsWith("11 tensors[0].array.region: got 192 bytes from offset"));
    v1::RotateRequest request = sample_.Request(client_.id(), kHere);
    PlaceOutput(client_.id(), offset, request);
    EXPECT_THAT(Text(Rotate(client_.stub(), request)),
                StartsWith("11 output.regions[0]: got 192 bytes from offset"));
  }
  sample_.Fill(client_.memory().As<float>(bytes - sample_.bytes()));
  EXPECT_EQ(Text(Rotate(client_.stub(), sample_.InPlace(client_.id(), bytes - sample_.bytes()))),
            "OK");
}

TEST_F(RegionTest, OutputMayBeThePlaceOfTheInput) {
  v1::RotateRequest exact = sample_.Request(client_.id(), kHere);
  PlaceOutput(client_.id(), kHere, exact);
  sample_.Fill(client_.memory().As<float>(kHere));
  EXPECT_EQ(Text(Rotate(client_.stub(), exact)), "OK");
  EXPECT_LT(sample_.Error(client_.memory().As<float>(kHere)), kClose);
}

}  // namespace
}  // namespace rope::testing
