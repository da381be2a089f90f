// Requests with arrays in memory regions, whose ids, offsets, shapes, strides and element types lie
// at the limits of the arithmetic. Each must be answered, or rejected with the name of a field. An
// answer must write only where the request says; a rejection must write nothing.
//
// ROPE_FUZZ_ROUNDS=N sets the number of requests for each test, ROPE_FUZZ_SEED=N the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backends.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::testing {
namespace {

constexpr uint64_t kRounds = 20000;
constexpr uint64_t kSeed = 20260110;
constexpr uint64_t kSession = 7;
constexpr uint64_t kOtherSession = 8;
constexpr uint64_t kRegionBytes = 64 << 10;
constexpr uint64_t kIntegersBegin = kRegionBytes / 2;  // after the floating-point numbers
// Requests above the first bound would keep the server busy for long and are left out. Requests
// above the second are kept: the server has no memory for them and rejects them.
constexpr int64_t kElementsMax = int64_t{1} << 12;
constexpr int64_t kElementsHopeless = int64_t{1} << 34;

int64_t ElementBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FP64:
    case v1::DTYPE_INT64:
      return 8;
    case v1::DTYPE_FP32:
    case v1::DTYPE_INT32:
      return 4;
    case v1::DTYPE_FP8_E4M3:
    case v1::DTYPE_FP8_E5M2:
      return 1;
    default:
      return 2;
  }
}

// An axis of length 0 counts as 1. The result is at most kElementsHopeless.
int64_t Size(const v1::Array& array) {
  int64_t size = 1;
  for (const int64_t length : array.shape()) {
    if (length > 1) size = length > kElementsHopeless / size ? kElementsHopeless : size * length;
  }
  return size;
}

// The distance from the first element to the end of the last; packed without strides. REQUIRES: the
// server accepted the strides.
template <typename Strides>
uint64_t Extent(const v1::Array& array, const Strides& strides) {
  int64_t last = 0;
  int64_t packed = 1;
  for (int i = 0; i < array.shape_size(); ++i) {
    if (array.shape(i) == 0) return 0;
    packed *= array.shape(i);
    if (!strides.empty()) last += (array.shape(i) - 1) * strides.Get(i);
  }
  return static_cast<uint64_t>(strides.empty() ? packed : last + 1);
}

struct Place {
  v1::RegionSpan span;
  uint64_t bytes = 0;

  bool Overlaps(const Place& other) const {
    return span.region_id() == other.span.region_id() && bytes > 0 && other.bytes > 0 &&
           span.offset() < other.span.offset() + other.bytes &&
           other.span.offset() < span.offset() + bytes;
  }
};

// The memory that an answered request may have written.
std::vector<Place> PlacesOf(const v1::RotateRequest& request) {
  const v1::Output& output = request.output();
  std::vector<Place> places;
  for (int i = 0; i < request.tensors_size(); ++i) {
    const v1::Array& array = request.tensors(i).array();
    const bool same = output.dtype() == v1::DTYPE_UNSPECIFIED;
    const auto bytes = static_cast<uint64_t>(ElementBytes(same ? array.dtype() : output.dtype()));
    if (output.in_place()) {
      places.push_back({array.region(), bytes * Extent(array, array.strides())});
    } else if (i < output.regions_size()) {
      const v1::Strides none;
      const v1::Strides& strides = i < output.strides_size() ? output.strides(i) : none;
      places.push_back({output.regions(i), bytes * Extent(array, strides.values())});
    }
  }
  return places;
}

class RegionFuzzTest : public ::testing::TestWithParam<const char*> {
 protected:
  RegionFuzzTest() {
    const auto register_for = [this](uint64_t session, const SharedMemory& memory) {
      server::Regions& regions = engine_.clients().Of(session).regions();
      return regions.RegisterMemfd(memory.Dup(), kRegionBytes).value();
    };
    for (size_t i = 0; i < memories_.size(); ++i) ids_[i] = register_for(kSession, memories_[i]);
    other_id_ = register_for(kOtherSession, others_);
    FillContents();
    Restore();
  }

  // Fills the region with numbers that are legal in every field.
  void FillContents() {
    for (uint64_t at = 0; at < kRegionBytes; at += 4) {
      const float number = 0.5F + static_cast<float>(at % 64) / 64;
      const auto integer = static_cast<int32_t>(at % 8 == 0 ? at / 8 % 8 : 0);  // of 32 or 64 bits
      std::memcpy(contents_.data() + at,
                  at < kIntegersBegin ? static_cast<const void*>(&number) : &integer, 4);
    }
  }

  void Restore() {
    for (const SharedMemory& memory : memories_) {
      std::memcpy(memory.data(), contents_.data(), kRegionBytes);
    }
  }

  // Puts elements into a region or into the message.
  void Put(v1::DType dtype, const std::vector<int64_t>& shape, v1::Array& array) {
    array.set_dtype(dtype);
    SetShape(array, shape);
    const bool integers = dtype == v1::DTYPE_INT32 || dtype == v1::DTYPE_INT64;
    const uint64_t offset = (integers ? kIntegersBegin : 0) + 64 * random_.Below(64);
    if (random_.OneIn(3)) {
      const auto bytes = static_cast<size_t>(Size(array) * ElementBytes(dtype));
      array.set_raw(contents_.substr(offset, bytes));
    } else {
      SetSpan(offset, *array.mutable_region());
    }
  }
  void SetSpan(uint64_t offset, v1::RegionSpan& span) {
    span.set_region_id(ids_[random_.Below(ids_.size())]);
    span.set_offset(offset);
  }

  // A request that is legal in most cases.
  v1::RotateRequest Legal() {
    tokens_ = 1 + static_cast<int64_t>(random_.Below(4));
    head_dim_ = random_.OneOf<int64_t>({4, 8, 32});
    v1::RotateRequest request;
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    if (random_.OneIn(6)) {
      AddRows(request);
    } else {
      request.mutable_rope()->mutable_config()->set_head_dim(head_dim_);
      AddPositions(*request.mutable_positions());
    }
    if (!request.has_rows() && random_.OneIn(6)) AddReposition(request);
    for (uint64_t n = 1 + random_.Below(2); n > 0; --n) AddTensor(request);
    AddOutput(request);
    return request;
  }

  void AddRows(v1::RotateRequest& request) {
    v1::Rows& rows = *request.mutable_rows();
    const v1::DType dtype = random_.OneIn(2) ? v1::DTYPE_FP32 : v1::DTYPE_FP16;
    if (random_.OneIn(16)) {  // any number of rows of 0 elements
      rows.mutable_angles()->set_dtype(dtype);
      return SetShape(*rows.mutable_angles(), {random_.EdgeInteger(), 0});
    }
    if (random_.OneIn(2)) return Put(dtype, {tokens_, head_dim_ / 2}, *rows.mutable_angles());
    Put(dtype, {tokens_, head_dim_ / 2}, *rows.mutable_cos());
    Put(dtype, {tokens_, head_dim_ / 2}, *rows.mutable_sin());
  }

  void AddPositions(v1::Positions& positions) {
    const v1::DType dtype = random_.OneIn(2) ? v1::DTYPE_INT32 : v1::DTYPE_INT64;
    switch (random_.Below(4)) {
      case 0:
        positions.set_start(static_cast<int64_t>(random_.Below(1000)));
        break;
      case 1:
        Put(v1::DTYPE_INT32, {1}, *positions.mutable_starts());
        break;
      default:
        Put(dtype, {tokens_}, *positions.mutable_position_ids());
    }
    if (!random_.OneIn(8)) return;
    v1::Array& sequences = *positions.mutable_cu_seqlens();
    if (random_.OneIn(4)) return Put(v1::DTYPE_INT32, {2}, sequences);  // with other lengths
    sequences.add_numbers(0);
    sequences.add_numbers(static_cast<double>(tokens_));
  }

  void AddReposition(v1::RotateRequest& request) {
    request.set_operation(v1::OPERATION_REPOSITION);
    AddPositions(*request.mutable_reposition()->mutable_from());
  }

  void AddTensor(v1::RotateRequest& request) {
    v1::Tensor& tensor = *request.add_tensors();
    tensor.set_role(random_.OneIn(2) ? v1::ROLE_Q : v1::ROLE_K);
    tensor.set_layout("THD");
    const v1::DType dtype = random_.OneOf({v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16});
    const auto heads = static_cast<int64_t>(1 + random_.Below(3));
    Put(dtype, {tokens_, heads, head_dim_}, *tensor.mutable_array());
    if (random_.OneIn(6) && tensor.array().has_region()) {
      AddStrides({heads * head_dim_ + 8, head_dim_, 1}, *tensor.mutable_array());
    }
    if (request.has_reposition() || !random_.OneIn(8)) return;
    tensor.mutable_norm()->set_eps(1e-6);
    Put(v1::DTYPE_FP32, {head_dim_}, *tensor.mutable_norm()->mutable_weight());
  }

  // A stride has no effect along an axis of one element.
  void AddStrides(const std::vector<int64_t>& strides, v1::Array& array) {
    for (size_t i = 0; i < strides.size(); ++i) {
      const bool any = array.shape(static_cast<int>(i)) == 1 && random_.OneIn(2);
      array.add_strides(any ? std::max<int64_t>(random_.EdgeInteger(), 0) : strides[i]);
    }
  }

  void AddOutput(v1::RotateRequest& request) {
    if (random_.OneIn(3)) return;
    v1::Output& output = *request.mutable_output();
    const bool in_regions =
        std::all_of(request.tensors().begin(), request.tensors().end(),
                    [](const v1::Tensor& tensor) { return tensor.array().has_region(); });
    if (in_regions && random_.OneIn(2)) return output.set_in_place(true);
    if (random_.OneIn(6)) output.set_dtype(v1::DTYPE_BF16);
    for (int i = 0; i < request.tensors_size(); ++i) {
      SetSpan(16384 + 4096 * static_cast<uint64_t>(i) + 64 * random_.Below(32),
              *output.add_regions());
    }
  }

  // Replaces one number of a request.
  void Change(v1::RotateRequest& request) {
    std::vector<v1::Array*> arrays;
    CollectArrays(request, arrays);
    v1::Array& array = *random_.OneOf(arrays);
    v1::Output& output = *request.mutable_output();
    switch (random_.Below(12)) {
      case 0:
      case 1:
      case 2:
        return ChangeNumber(*array.mutable_shape());
      case 3:
      case 4:
        return ChangeNumber(*array.mutable_strides());
      case 5:
        return array.set_dtype(static_cast<v1::DType>(random_.Below(10)));
      case 6:
      case 7:
        return ChangeSpan(*array.mutable_region());
      case 8:
        if (output.regions().empty()) return SetSpan(0, *output.add_regions());
        return ChangeSpan(*output.mutable_regions(
            static_cast<int>(random_.Below(static_cast<uint64_t>(output.regions_size())))));
      case 9:
        return ChangeNumber(*output.add_strides()->mutable_values());
      case 10:
        return request.mutable_positions()->set_start(random_.EdgeInteger());
      default:
        array.clear_raw();
        return Put(array.dtype(), {array.shape().begin(), array.shape().end()}, array);
    }
  }

  void ChangeNumber(google::protobuf::RepeatedField<int64_t>& numbers) {
    if (numbers.empty() || random_.OneIn(8)) {
      for (uint64_t n = random_.OneIn(2) ? 3 : 1; n > 0; --n) {
        numbers.Add(random_.OneIn(2) ? random_.EdgeInteger() : 1);
      }
    } else if (random_.OneIn(8)) {
      numbers.RemoveLast();
    } else {
      const auto at = static_cast<int>(random_.Below(static_cast<uint64_t>(numbers.size())));
      numbers.Set(
          at, random_.OneIn(4) ? static_cast<int64_t>(random_.Below(20)) : random_.EdgeInteger());
    }
  }

  void ChangeSpan(v1::RegionSpan& span) {
    switch (random_.Below(6)) {
      case 0:
        return span.set_region_id(random_.OneIn(2) ? other_id_
                                                   : static_cast<uint64_t>(random_.EdgeInteger()));
      case 1:
        return span.set_offset(static_cast<uint64_t>(random_.EdgeInteger()));
      case 2:
        return span.set_offset(kRegionBytes - random_.Below(600));
      default:
        return SetSpan(random_.Below(kRegionBytes), span);
    }
  }

  static bool IsWorthTrying(const v1::RotateRequest& request) {
    return std::all_of(request.tensors().begin(), request.tensors().end(),
                       [](const v1::Tensor& tensor) {
                         const int64_t size = Size(tensor.array());
                         return size <= kElementsMax || size >= kElementsHopeless;
                       });
  }

  // Expects that the regions are unchanged, except at `places` in the region `id`.
  void CheckRegion(std::string_view now, uint64_t id, const std::vector<Place>& places) const {
    std::string want = contents_;
    for (const Place& place : places) {
      if (place.span.region_id() != id) continue;
      ASSERT_LE(place.bytes, kRegionBytes);
      ASSERT_LE(place.span.offset(), kRegionBytes - place.bytes);
      now.copy(want.data() + place.span.offset(), place.bytes, place.span.offset());
    }
    EXPECT_TRUE(now == want);
  }

  void CheckMemory(const v1::RotateRequest& request, bool answered) {
    const std::vector<Place> places = answered ? PlacesOf(request) : std::vector<Place>();
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(places[i].Overlaps(places[j]));
    }
    for (size_t i = 0; i < memories_.size(); ++i) {
      CheckRegion({memories_[i].data(), kRegionBytes}, ids_[i], places);
    }
    EXPECT_TRUE(std::all_of(others_.data(), others_.data() + kRegionBytes,
                            [](char byte) { return byte == 0; }));
    if (!places.empty()) Restore();
  }

  void Round(const v1::RotateRequest& request) {
    const std::string bytes = request.SerializeAsString();
    const std::vector<std::string_view> whole = {bytes};
    const absl::Status status = Answer(engine_, whole, kSession).status;
    ++(status.ok() ? answered_ : refused_);
    if (!status.ok()) {
      EXPECT_THAT(status.code(),
                  AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kOutOfRange,
                        absl::StatusCode::kNotFound, absl::StatusCode::kUnimplemented,
                        absl::StatusCode::kResourceExhausted));
      EXPECT_THAT(std::string(status.message()), HasSubstr(": got ")) << status;
    }
    CheckMemory(request, status.ok());
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  const std::array<SharedMemory, 2> memories_ = {SharedMemory::Memfd(kRegionBytes),
                                                 SharedMemory::Memfd(kRegionBytes)};
  const SharedMemory others_ = SharedMemory::Memfd(kRegionBytes);
  std::string contents_ = std::string(kRegionBytes, '\0');
  std::array<uint64_t, 2> ids_ = {};
  uint64_t other_id_ = 0;
  LocalEngine engine_{kernels::CreateBackend(GetParam(), {}).value()};
  int64_t tokens_ = 1;    // of the request
  int64_t head_dim_ = 8;  // of the request
  int64_t answered_ = 0;
  int64_t refused_ = 0;
};

TEST_P(RegionFuzzTest, RequestsAreAnsweredOrRefusedAndNothingElseIsWritten) {
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    v1::RotateRequest request = Legal();
    for (uint64_t n = random_.Below(3); n > 0; --n) Change(request);
    if (!IsWorthTrying(request)) continue;
    SCOPED_TRACE(request.ShortDebugString());
    Round(request);
  }
  std::printf("measured: %lld requests answered, %lld refused\n", static_cast<long long>(answered_),
              static_cast<long long>(refused_));
  EXPECT_GT(answered_, static_cast<int64_t>(rounds / 8));
  EXPECT_GT(refused_, static_cast<int64_t>(rounds / 8));
}

INSTANTIATE_TEST_SUITE_P(Backends, RegionFuzzTest, ::testing::Values("reference", "cpu"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace rope::testing
