// Requests with tensors in memory regions that are recognised by their bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "server/request/prepared_requests.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::Answer;
using ::rope::testing::AnswerAsNew;
using ::rope::testing::IsOk;
using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::SharedMemory;
using ::rope::testing::StatusIs;
using ::rope::testing::WireAnswer;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Floats(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 3 + static_cast<float>(i) / 16;
  return RawBytes(values);
}

// q and k of 3 tokens, heads of 8 channels.
v1::RotateRequest Sample() {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(200);
  AddFloatTensor(request, v1::ROLE_Q, "SHD", {3, 2, 8});
  AddFloatTensor(request, v1::ROLE_K, "SD", {3, 8});
  return request;
}

class PreparedRegionsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSession = 7;
  static constexpr size_t kBytes = 4096;

  PreparedRegionsTest() {
    token_ = engine_.regions().OpenSession(kSession, {.local = true, .uid = geteuid()});
    memfd_id_ = engine_.regions().RegisterMemfd(kSession, memfd_.Dup(), kBytes).value();
    posix_id_ = engine_.regions().RegisterPosix(kSession, posix_.name(), 0, kBytes).value();
  }

  // The answer, which, as what it leaves in memory, is that of a server that never had a request
  // like it.
  WireAnswer SendHere(const v1::RotateRequest& request, uint64_t session = kSession) {
    const std::string bytes = request.SerializeAsString();
    SetMemory();
    const WireAnswer want = AnswerAsNew(engine_, {bytes}, session);
    const std::vector<std::string> memory = Memory();
    SetMemory();
    WireAnswer got = Answer(engine_, {bytes}, session);
    EXPECT_EQ(got.status, want.status);
    EXPECT_TRUE(got.bytes == want.bytes) << "got " << got.Parsed().ShortDebugString() << "\nwant "
                                         << want.Parsed().ShortDebugString();
    EXPECT_TRUE(Memory() == memory);
    return got;
  }
  bool IsKeptHere(const v1::RotateRequest& request) {
    for (int i = 0; i < 2; ++i) EXPECT_THAT(SendHere(request).status, IsOk());
    return SendHere(request).prepared;
  }

  void SetMemory() {
    for (const SharedMemory* memory : {&memfd_, &posix_}) {
      const std::string values = Floats(kBytes / sizeof(float));
      std::memcpy(memory->data(), values.data(), kBytes);
    }
  }
  std::vector<std::string> Memory() const {
    return {std::string(memfd_.data(), kBytes), std::string(posix_.data(), kBytes)};
  }

  static void PlaceAt(v1::Array& array, uint64_t id, uint64_t offset) {
    array.clear_raw();
    array.mutable_region()->set_region_id(id);
    array.mutable_region()->set_offset(offset);
  }
  // The sample, of 192 bytes of q and 96 of k, from and to these places.
  static v1::RotateRequest From(uint64_t id, uint64_t offset) {
    v1::RotateRequest request = Sample();
    PlaceAt(*request.mutable_tensors(0)->mutable_array(), id, offset);
    PlaceAt(*request.mutable_tensors(1)->mutable_array(), id, offset + 192);
    return request;
  }
  static void To(uint64_t id, uint64_t offset, v1::RotateRequest& request) {
    for (const uint64_t at : {offset, offset + 192}) {
      v1::RegionSpan& span = *request.mutable_output()->add_regions();
      span.set_region_id(id);
      span.set_offset(at);
    }
  }

  LocalEngine engine_;
  const SharedMemory memfd_ = SharedMemory::Memfd(kBytes);
  const SharedMemory posix_ = SharedMemory::Posix(kBytes);
  uint64_t token_ = 0;
  uint64_t memfd_id_ = 0;
  uint64_t posix_id_ = 0;
};

TEST_F(PreparedRegionsTest, TensorsInRegionsAreKeptWhereverTheyLie) {
  for (const uint64_t id : {memfd_id_, posix_id_}) {
    v1::RotateRequest input = From(id, 512);
    EXPECT_TRUE(IsKeptHere(input));
    v1::RotateRequest both = From(id, 512);
    To(id, 1024, both);
    EXPECT_TRUE(IsKeptHere(both));
    v1::RotateRequest output = Sample();
    To(id, 1024, output);
    EXPECT_TRUE(IsKeptHere(output));
    v1::RotateRequest in_place = From(id, 512);
    in_place.mutable_output()->set_in_place(true);
    EXPECT_TRUE(IsKeptHere(in_place));
    v1::RotateRequest one = Sample();
    PlaceAt(*one.mutable_tensors(1)->mutable_array(), id, 512);
    EXPECT_TRUE(IsKeptHere(one));
    v1::RotateRequest reordered = both;
    reordered.mutable_output()->add_layouts("HSD");
    reordered.mutable_output()->add_layouts("SD");
    EXPECT_TRUE(IsKeptHere(reordered));
    v1::RotateRequest apart = both;
    apart.mutable_output()->add_strides()->mutable_values()->Add(16);
    for (const int64_t stride : {8, 1})
      apart.mutable_output()->mutable_strides(0)->add_values(stride);
    apart.mutable_output()->add_strides();
    EXPECT_TRUE(IsKeptHere(apart));
  }
}

TEST_F(PreparedRegionsTest, LikeOneIsReadAndWrittenInItsOwnPlaces) {
  v1::RotateRequest request = From(memfd_id_, 512);
  To(memfd_id_, 1024, request);
  ASSERT_TRUE(IsKeptHere(request));
  v1::RotateRequest other = From(memfd_id_, 2048);
  To(memfd_id_, 3072, other);
  EXPECT_TRUE(SendHere(other).prepared);
  v1::RotateRequest over_input = From(memfd_id_, 2048);
  To(memfd_id_, 2048, over_input);
  EXPECT_TRUE(SendHere(over_input).prepared);
}

TEST_F(PreparedRegionsTest, PlacesAreCheckedForEachRequest) {
  v1::RotateRequest request = From(memfd_id_, 512);
  To(memfd_id_, 1024, request);
  ASSERT_TRUE(IsKeptHere(request));
  const auto answer_to = [&](uint64_t input, uint64_t output) {
    v1::RotateRequest other = From(memfd_id_, input);
    To(memfd_id_, output, other);
    const WireAnswer answer = SendHere(other);
    EXPECT_TRUE(answer.prepared);
    return answer.status;
  };
  EXPECT_THAT(answer_to(kBytes - 192, 1024),
              StatusIs(absl::StatusCode::kOutOfRange, StartsWith("tensors[1].array.region")));
  EXPECT_THAT(answer_to(512, kBytes - 192),
              StatusIs(absl::StatusCode::kOutOfRange, StartsWith("output.regions[1]")));
  EXPECT_THAT(answer_to(512, 600),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("output of tensors[0]")));
  EXPECT_THAT(SendHere(request, kSession + 1).status,
              StatusIs(absl::StatusCode::kNotFound, StartsWith("tensors[0].array.region")));
  EXPECT_THAT(SendHere(request).status, IsOk());
}

TEST_F(PreparedRegionsTest, RequestThatIsKeptHoldsNoRegion) {
  v1::RotateRequest request = From(memfd_id_, 512);
  To(memfd_id_, 1024, request);
  ASSERT_TRUE(IsKeptHere(request));
  engine_.regions().CloseSession(token_);
  EXPECT_EQ(engine_.regions().statistics().bytes, 0);
  EXPECT_THAT(SendHere(request).status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("region")));
}

TEST_F(PreparedRegionsTest, OtherArraysInRegionsAreNotKept) {
  v1::RotateRequest starts = Sample();
  starts.clear_positions();
  v1::Array& array = *starts.mutable_positions()->mutable_starts();
  array.set_dtype(v1::DTYPE_INT32);
  array.add_shape(1);
  PlaceAt(array, memfd_id_, 512);
  std::memset(memfd_.data(), 0, kBytes);
  for (int i = 0; i < 3; ++i) {
    const WireAnswer answer = Answer(engine_, {starts.SerializeAsString()}, kSession);
    EXPECT_THAT(answer.status, IsOk());
    EXPECT_FALSE(answer.prepared);
  }
}

}  // namespace
}  // namespace rope::server
