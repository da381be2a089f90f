// Requests with arrays in memory regions: random ones of every kind, and moves of K in pages. Each
// request of every kind must have the results of its message. With ids, offsets, shapes, strides,
// element types, positions and slots at the limits of the arithmetic it must be answered, or
// rejected with the name of a field. An answer must write only where the request says; a rejection
// must write nothing.
//
// ROPE_FUZZ_ROUNDS=N sets the number of requests for each test, ROPE_FUZZ_SEED=N the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backends.h"
#include "tests/conformance/move_generator.h"
#include "tests/conformance/request_generator.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::testing {
namespace {

constexpr uint64_t kRounds = 20000;
constexpr uint64_t kVariations = 8;  // of each request
constexpr uint64_t kSeed = 20260110;
constexpr uint64_t kSession = 7;
constexpr uint64_t kOtherSession = 8;
constexpr uint64_t kRegionBytes = 128 << 10;
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

// Of a result.
uint64_t ElementBytesOf(const v1::Array& array, v1::DType output) {
  return static_cast<uint64_t>(
      ElementBytes(output == v1::DTYPE_UNSPECIFIED ? array.dtype() : output));
}

// The memory that an answered request may have written.
std::vector<Place> PlacesOf(const v1::RotateRequest& request) {
  const v1::Output& output = request.output();
  std::vector<Place> places;
  for (int i = 0; i < request.tensors_size(); ++i) {
    const v1::Array& array = request.tensors(i).array();
    const uint64_t bytes = ElementBytesOf(array, output.dtype());
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

bool IsWorthTrying(const v1::RotateRequest& request) {
  return std::ranges::all_of(request.tensors(), [](const v1::Tensor& tensor) {
    const int64_t size = Size(tensor.array());
    return size <= kElementsMax || size >= kElementsHopeless;
  });
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
    EveryChoice().ForEach([&](const Choices& each) { choices_.push_back(each); });
  }

  // Fills the regions with numbers that are legal in every field.
  void FillContents() {
    for (std::string& contents : contents_) {
      contents.resize(kRegionBytes);
      for (uint64_t at = 0; at < kRegionBytes; at += 4) {
        const float number = 0.5F + static_cast<float>(at % 64) / 64;
        const auto integer = static_cast<int32_t>(at % 8 == 0 ? at / 8 % 8 : 0);  // 32 or 64 bits
        std::memcpy(contents.data() + at,
                    at < kIntegersBegin ? static_cast<const void*>(&number) : &integer, 4);
      }
    }
    ends_ = {};
  }
  void Restore() {
    for (size_t i = 0; i < memories_.size(); ++i) {
      std::memcpy(memories_[i].data(), contents_[i].data(), kRegionBytes);
    }
  }

  // Puts bytes behind what was put into one of the regions before. False: they do not fit.
  bool Put(const std::string& bytes, v1::RegionSpan& span) {
    const size_t region = random_.Below(ids_.size());
    span.set_region_id(ids_[region]);
    span.set_offset(ends_[region]);
    ends_[region] += (bytes.size() + 63) / 64 * 64;
    if (ends_[region] > kRegionBytes) return false;
    contents_[region].replace(span.offset(), bytes.size(), bytes);
    return true;
  }

  // What the generator leaves out and may lie in a region.
  void Decorate(v1::RotateRequest& request) {
    const v1::Tensor& tensor = request.tensors(0);
    if (request.has_reposition()) return;
    if (random_.OneIn(8)) {
      const int64_t channels = tensor.array().shape(tensor.array().shape_size() - 1);
      v1::HeadNorm& norm = *request.mutable_tensors(0)->mutable_norm();
      norm.set_eps(1e-6);
      norm.mutable_weight()->set_dtype(v1::DTYPE_FP32);
      SetShape(*norm.mutable_weight(), {channels});
      norm.mutable_weight()->set_raw(
          RawBytes(std::vector<float>(static_cast<size_t>(channels), 0.5F)));
    }
    if (!random_.OneIn(6)) return;
    int64_t tokens = 1;
    for (size_t i = 0; i < tensor.layout().size(); ++i) {
      const bool is_token = std::string_view("BST").find(tensor.layout()[i]) != std::string::npos;
      if (is_token) tokens *= tensor.array().shape(static_cast<int>(i));
    }
    request.mutable_rope()->clear_config();
    request.clear_positions();
    v1::Array& angles = *request.mutable_rows()->mutable_angles();
    angles.set_dtype(v1::DTYPE_FP32);
    if (random_.OneIn(16)) return SetShape(angles, {random_.EdgeInteger(), 0});
    SetShape(angles, {tokens, 1});
    angles.set_raw(RawBytes(std::vector<float>(static_cast<size_t>(tokens), 0.75F)));
  }

  // Moves elements of a message to the regions, and its results. False: they do not fit.
  bool PlaceInRegions(v1::RotateRequest& request) {
    std::vector<v1::Array*> arrays;
    CollectArrays(request, arrays);
    for (v1::Array* const array : arrays) {
      if (array->raw().empty() || random_.OneIn(3)) continue;
      const std::string raw = std::exchange(*array->mutable_raw(), "");
      array->clear_raw();
      if (!Put(raw, *array->mutable_region())) return false;
    }
    if (random_.OneIn(3)) return true;
    v1::Output& output = *request.mutable_output();
    const bool are_packed = std::ranges::all_of(request.tensors(), [](const v1::Tensor& tensor) {
      return tensor.array().has_region() && tensor.array().strides().empty();
    });
    const bool is_same = output.layouts().empty() && output.dtype() == v1::DTYPE_UNSPECIFIED;
    if (are_packed && is_same && random_.OneIn(2)) {
      output.set_in_place(true);
      return true;
    }
    return std::ranges::all_of(request.tensors(), [&](const v1::Tensor& tensor) {
      const v1::Array& array = tensor.array();
      const uint64_t bytes =
          ElementBytesOf(array, output.dtype()) * Extent(array, v1::Strides().values());
      return Put(std::string(bytes, '?'), *output.add_regions());
    });
  }

  // Draws a message, and the same request in the regions.
  void DrawRequest() {
    do {
      FillContents();
      message_ = generator_.Make(random_.OneOf(choices_));
      Decorate(message_);
      if (random_.OneIn(6)) message_.mutable_output()->set_dtype(v1::DTYPE_BF16);
      request_ = message_;
    } while (!IsWorthTrying(message_) || !PlaceInRegions(request_));
    Restore();
  }

  void DrawMove() {
    MoveCase made;
    do {
      made = moves_.Make();
    } while (made.memory.size() > kRegionBytes || !IsWorthTrying(made.in_pages));
    FillContents();
    contents_[0].replace(0, made.memory.size(), made.memory);
    request_ = made.in_pages;
    SetRegion(ids_[0], request_);
    Restore();
  }

  int64_t Number() {
    return random_.OneIn(2) ? random_.EdgeInteger() : static_cast<int64_t>(random_.Below(300)) - 2;
  }

  // Replaces one number of a request.
  void Change(v1::RotateRequest& request) {
    std::vector<v1::Array*> arrays;
    CollectArrays(request, arrays);
    v1::Array& array = *random_.OneOf(arrays);
    v1::Output& output = *request.mutable_output();
    switch (random_.Below(13)) {
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
        if (output.regions().empty()) return ChangeSpan(*output.add_regions());
        return ChangeSpan(*output.mutable_regions(
            static_cast<int>(random_.Below(static_cast<uint64_t>(output.regions_size())))));
      case 9:
        return ChangeNumber(*output.add_strides()->mutable_values());
      case 10:
        return request.mutable_positions()->set_start(random_.EdgeInteger());
      case 11:
        return ChangeElement(array);
      default:
        array.clear_raw();
        return ChangeSpan(*array.mutable_region());
    }
  }

  // One number of a move.
  void ChangePages(v1::RotateRequest& request) {
    const auto tensors = static_cast<uint64_t>(request.tensors_size());
    v1::Tensor& tensor = *request.mutable_tensors(static_cast<int>(random_.Below(tensors)));
    v1::PagedTokens& paged = *tensor.mutable_paged_tokens();
    switch (random_.Below(6)) {
      case 0:
        return paged.set_block_size(Number());
      case 1:
        return paged.set_page_stride(Number());
      case 2:
        return paged.set_token_stride(Number());
      case 3:
        return paged.set_head_stride(Number());
      case 4:
        return paged.set_layer_stride(Number());
      default:
        return paged.set_pool_elements(Number());
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
        span.set_region_id(ids_[random_.Below(ids_.size())]);
        span.set_offset(random_.Below(kRegionBytes));
    }
  }

  // An id, a slot, a position or a length that the message holds.
  void ChangeElement(v1::Array& array) {
    if (array.raw().empty()) return ChangeNumber(*array.mutable_shape());
    std::string& raw = *array.mutable_raw();
    if (random_.OneIn(8)) return random_.Damage(raw);
    const int64_t number = Number();
    const auto bytes = static_cast<size_t>(ElementBytes(array.dtype()));
    if (bytes > sizeof(number) || raw.size() < bytes) return;
    std::memcpy(raw.data() + random_.Below(raw.size() / bytes) * bytes, &number, bytes);
  }

  WireAnswer Send(const v1::RotateRequest& request) {
    const std::string bytes = request.SerializeAsString();
    return Answer(engine_, std::vector<std::string_view>{bytes}, kSession);
  }

  // The request in the regions has the results of its message.
  void CheckResults() {
    const WireAnswer want = Send(message_);
    const WireAnswer got = Send(request_);
    ASSERT_EQ(got.status.ok(), want.status.ok()) << got.status << "; " << want.status;
    const v1::RotateResponse results = want.Parsed();
    const std::vector<Place> places = got.status.ok() ? PlacesOf(request_) : std::vector<Place>();
    for (size_t i = 0; i < places.size(); ++i) {
      const v1::RegionSpan& span = places[i].span;
      const char* const memory = memories_[span.region_id() == ids_[0] ? 0 : 1].data();
      const v1::Array& result = results.tensors(static_cast<int>(i)).array();
      if (result.numbers_size() > 0) continue;
      EXPECT_TRUE(std::string_view(memory + span.offset(), places[i].bytes) == result.raw()) << i;
      ++compared_;
    }
    CheckMemory(places);
    if (!places.empty()) Restore();
  }

  // Expects that the regions are unchanged, except at `places`.
  void CheckMemory(const std::vector<Place>& places) const {
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(places[i].Overlaps(places[j]));
    }
    for (size_t i = 0; i < memories_.size(); ++i) {
      const std::string_view now(memories_[i].data(), kRegionBytes);
      std::string want = contents_[i];
      for (const Place& place : places) {
        if (place.span.region_id() != ids_[i]) continue;
        ASSERT_LE(place.bytes, kRegionBytes);
        ASSERT_LE(place.span.offset(), kRegionBytes - place.bytes);
        now.copy(want.data() + place.span.offset(), place.bytes, place.span.offset());
      }
      EXPECT_TRUE(now == want);
    }
    EXPECT_TRUE(std::all_of(others_.data(), others_.data() + kRegionBytes,
                            [](char byte) { return byte == 0; }));
  }

  // `is_move`: its places are in pages, which MovePropertyTest checks.
  void Round(const v1::RotateRequest& request, bool is_move) {
    const WireAnswer answer = Send(request);
    const absl::Status& status = answer.status;
    ++(status.ok() ? answered_ : refused_);
    if (status.ok()) {
      if (!is_move) CheckMemory(PlacesOf(request));
      return Restore();
    }
    EXPECT_THAT(status.code(),
                AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kOutOfRange,
                      absl::StatusCode::kNotFound, absl::StatusCode::kUnimplemented,
                      absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(std::string(status.message()), HasSubstr(": got ")) << status;
    EXPECT_FALSE(answer.Parsed().error().may_have_executed()) << status;
    CheckMemory({});
  }

  void Run(bool are_moves) {
    const uint64_t rounds = FuzzRounds(kRounds);
    for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
      if (round % kVariations == 0) {
        are_moves ? DrawMove() : DrawRequest();
        SCOPED_TRACE(request_.ShortDebugString());
        if (!are_moves) CheckResults();
      }
      v1::RotateRequest request = request_;
      for (uint64_t n = are_moves ? 1 + random_.Below(2) : random_.Below(3); n > 0; --n) {
        are_moves&& random_.OneIn(2) ? ChangePages(request) : Change(request);
      }
      if (!IsWorthTrying(request)) continue;
      SCOPED_TRACE(request.ShortDebugString());
      Round(request, are_moves);
    }
    std::printf("measured: %lld requests answered, %lld refused; %lld results as of messages\n",
                static_cast<long long>(answered_), static_cast<long long>(refused_),
                static_cast<long long>(compared_));
    EXPECT_GT(refused_, static_cast<int64_t>(rounds / (are_moves ? 4 : 8)));
    EXPECT_GT(answered_, are_moves ? 0 : static_cast<int64_t>(rounds / 8));
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  RequestGenerator generator_{static_cast<uint32_t>(random_.Next())};
  MoveGenerator moves_{static_cast<uint32_t>(random_.Next())};
  std::vector<Choices> choices_;
  const std::array<SharedMemory, 2> memories_ = {SharedMemory::Memfd(kRegionBytes),
                                                 SharedMemory::Memfd(kRegionBytes)};
  const SharedMemory others_ = SharedMemory::Memfd(kRegionBytes);
  std::array<std::string, 2> contents_;
  std::array<uint64_t, 2> ends_ = {};  // of what was put into each
  std::array<uint64_t, 2> ids_ = {};
  uint64_t other_id_ = 0;
  LocalEngine engine_{kernels::CreateBackend(GetParam(), {}).value()};
  v1::RotateRequest message_;
  v1::RotateRequest request_;  // in the regions
  int64_t answered_ = 0;
  int64_t refused_ = 0;
  int64_t compared_ = 0;
};

TEST_P(RegionFuzzTest, RequestsHaveTheResultsOfTheirMessagesAndWriteNothingElse) {
  Run(/*are_moves=*/false);
  EXPECT_GT(compared_, 0);
}

TEST_P(RegionFuzzTest, MovesThatAreRefusedHaveChangedNoByte) {
  Run(/*are_moves=*/true);
}

INSTANTIATE_TEST_SUITE_P(Backends, RegionFuzzTest, ::testing::Values("reference", "cpu"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace rope::testing
