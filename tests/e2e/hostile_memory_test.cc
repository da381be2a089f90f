// Requests that would make the server hold or compute more than it was sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/matchers.h"
#include "tests/support/region_client.h"
#include "tests/support/ring_client.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

// Requests of a few bytes that name gigabytes of memory: positions, rows and norm weights in a
// sparse region, axes of 2^62. The server must reject them by the field's name before it reads
// anything. Calls of a few bytes that leave much behind: prepared requests, models, specs.

constexpr std::chrono::seconds kAnsweredWithin{20};
constexpr int64_t kPairs = Sample::kHeadDim / 2;
const Sample kSample = {.tokens = 1, .heads = 1};

std::string Code(grpc::StatusCode code) {
  return absl::StrCat(static_cast<int>(code), " ");
}
const std::string kInvalid = Code(grpc::StatusCode::INVALID_ARGUMENT);
const std::string kExhausted = Code(grpc::StatusCode::RESOURCE_EXHAUSTED);

std::string CallOverGrpc(v1::RopeService::Stub& stub, const v1::RotateRequest& request,
                         v1::RotateResponse* response = nullptr) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnsweredWithin);
  v1::RotateResponse ignored;
  return Text(stub.Rotate(&context, request, response != nullptr ? response : &ignored));
}

std::string CallThroughRing(const RingClient& client, const v1::RotateRequest& request) {
  client.ring().Send(0, request.SerializeAsString());
  return client.ring().Await(0, kAnsweredWithin) ? client.Await(0) : "no answer";
}

::testing::Matcher<std::string> IsCheapAnswer(const std::string& field) {
  const ::testing::Matcher<std::string> refused =
      AnyOf(StartsWith(kInvalid + field), StartsWith(kExhausted + field));
  return absl::string_view(field).substr(0, 4) == "rows" ? AnyOf(refused, "OK") : refused;
}

// Expects an immediate answer over gRPC and through the ring. The answer must be a rejection that
// names `field`. Rows may be accepted instead: a token takes one of them, and only that one is
// read.
void ExpectCheap(RingClient& client, const v1::RotateRequest& request, const std::string& field) {
  const std::vector<std::function<std::string()>> ways = {
      [&] { return CallOverGrpc(client.stub(), request); },
      [&] { return CallThroughRing(client, request); }};
  for (const auto& call : ways) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(call(), IsCheapAnswer(field));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << field;
  }
}

// An array at the start of a region.
v1::Array InRegion(uint64_t region, v1::DType dtype, const std::vector<int64_t>& shape) {
  v1::Array array;
  array.set_dtype(dtype);
  for (const int64_t length : shape) array.add_shape(length);
  array.mutable_region()->set_region_id(region);
  return array;
}

// A valid request for one token with rows instead of an embedding.
v1::RotateRequest RequestWithRows() {
  v1::RotateRequest request = kSample.Inline();
  request.mutable_rope()->clear_config();
  request.mutable_positions()->set_start(0);
  return request;
}

struct Attack {
  std::string field;
  v1::RotateRequest request;
};

// One attack for each small array of a request, made as large as the whole region of `bytes`.
std::vector<Attack> WholeRegion(uint64_t region, int64_t bytes) {
  std::vector<Attack> attacks;
  const auto add = [&](const char* field, v1::RotateRequest request) {
    attacks.push_back({field, std::move(request)});
    return &attacks.back().request;
  };
  const v1::Array int32s = InRegion(region, v1::DTYPE_INT32, {bytes / 4});
  const v1::Array int64s = InRegion(region, v1::DTYPE_INT64, {bytes / 8});

  v1::RotateRequest* request = add("positions.position_ids", kSample.Inline());
  *request->mutable_positions()->mutable_position_ids() = int32s;
  request->mutable_positions()->clear_start();

  request = add("positions.starts", kSample.Inline());
  *request->mutable_positions()->mutable_starts() = int64s;
  request->mutable_positions()->clear_start();

  request = add("positions.cu_seqlens", kSample.Inline());
  request->mutable_tensors(0)->set_layout("THD");
  *request->mutable_positions()->mutable_cu_seqlens() = int32s;

  request = add("reposition.from.position_ids", kSample.Inline());
  request->set_operation(v1::OPERATION_REPOSITION);
  *request->mutable_reposition()->mutable_from()->mutable_position_ids() = int64s;

  request = add("tensors[0].norm.weight", kSample.Inline());
  request->mutable_tensors(0)->mutable_norm()->set_eps(1e-6);
  *request->mutable_tensors(0)->mutable_norm()->mutable_weight() =
      InRegion(region, v1::DTYPE_FP16, {bytes / 2});

  request = add("rows.angles", RequestWithRows());
  *request->mutable_rows()->mutable_angles() =
      InRegion(region, v1::DTYPE_FP16, {bytes / 2 / kPairs, kPairs});

  request = add("rows.", RequestWithRows());
  const v1::Array rows = InRegion(region, v1::DTYPE_FP32, {bytes / 4 / kPairs, kPairs});
  *request->mutable_rows()->mutable_cos() = rows;
  *request->mutable_rows()->mutable_sin() = rows;

  request = add("rows.", RequestWithRows());  // a row for each token, without positions
  request->clear_positions();
  *request->mutable_rows()->mutable_cos() = rows;
  *request->mutable_rows()->mutable_sin() = rows;
  return attacks;
}

TEST(HostileMemoryTest, SmallArraysAsLargeAsARegionOf256MiBAreRefusedByNameOrReadInPart) {
  constexpr int64_t kBytes = 256 * kMiB;
  WatchedServer watched;
  RingClient client(watched.path(), kBytes);
  RingClient other(watched.path());
  for (const Attack& attack : WholeRegion(client.id(), kBytes)) {
    ExpectCheap(client, attack.request, attack.field);
    ASSERT_TRUE(Serves(client.stub())) << attack.field;
  }
  EXPECT_TRUE(client.RotatesRight());
  EXPECT_TRUE(other.RotatesRight());
  watched.ExpectUnharmed("arrays of 256 MiB");
  watched.ExpectMemoryGivenBack("arrays of 256 MiB");
}

TEST(HostileMemoryTest, RegionOfAGibibyteCostsNothingEither) {
  constexpr int64_t kBytes = 1024 * kMiB;
  WatchedServer watched;
  RawRing ring;
  RegionClient client(watched.path(), SharedMemory::Memfd(kBytes), &ring.memory());
  if (client.hello().code == absl::StatusCode::kOk) {
    for (const Attack& attack : WholeRegion(client.id(), kBytes)) {
      EXPECT_THAT(CallOverGrpc(client.stub(), attack.request), IsCheapAnswer(attack.field));
    }
  } else {
    EXPECT_EQ(client.hello().code, absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(Serves(client.stub()));
  watched.ExpectUnharmed("arrays of 1 GiB");
  watched.ExpectMemoryGivenBack("arrays of 1 GiB");
}

TEST(HostileMemoryTest, RowsOfNoColumnsAreRefusedWhateverTheirNumber) {
  WatchedServer watched;
  RingClient client(watched.path());
  for (const int64_t rows : {int64_t{1}, int64_t{1} << 40, int64_t{1} << 62}) {
    v1::Array array;
    array.set_dtype(v1::DTYPE_FP16);
    array.add_shape(rows);
    array.add_shape(0);
    v1::RotateRequest request = RequestWithRows();
    *request.mutable_rows()->mutable_angles() = array;
    ExpectCheap(client, request, "rows.angles");
    request = RequestWithRows();
    *request.mutable_rows()->mutable_cos() = array;
    *request.mutable_rows()->mutable_sin() = array;
    ExpectCheap(client, request, "rows.");
    request.clear_positions();
    ExpectCheap(client, request, "rows.");
  }
  watched.ExpectUnharmed("rows of no columns");
}

TEST(HostileMemoryTest, HugeStrideOfAnAxisOfLengthOneIsRefusedOrMeansNothing) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  WatchedServer watched;
  RingClient client(watched.path());
  const auto with_strides = [](v1::RotateRequest request) {
    for (const int64_t stride : {kHuge, kHuge, int64_t{1}}) {
      request.mutable_tensors(0)->mutable_array()->add_strides(stride);
    }
    return request;
  };
  const std::string strides = kInvalid + "tensors[0].array.strides";

  kSample.Fill(client.memory().As<float>());
  std::string answer = CallThroughRing(client, with_strides(kSample.InPlace(client.id(), 0)));
  EXPECT_THAT(answer, AnyOf("OK", StartsWith(strides)));
  if (answer == "OK") {
    EXPECT_LT(kSample.Error(client.memory().As<float>()), 2e-6);
  }
  kSample.Fill(client.memory().As<float>());
  answer = CallOverGrpc(client.stub(), with_strides(kSample.InPlace(client.id(), 0)));
  EXPECT_THAT(answer, AnyOf("OK", StartsWith(strides)));
  if (answer == "OK") {
    EXPECT_LT(kSample.Error(client.memory().As<float>()), 2e-6);
  }

  v1::RotateResponse response;
  answer = CallOverGrpc(client.stub(), with_strides(kSample.Inline()), &response);
  EXPECT_THAT(answer, AnyOf("OK", StartsWith(strides)));
  if (answer == "OK") {
    std::vector<float> values(static_cast<size_t>(kSample.elements()));
    const std::string& raw = response.tensors(0).array().raw();
    ASSERT_EQ(raw.size(), kSample.bytes());
    std::memcpy(values.data(), raw.data(), raw.size());
    EXPECT_LT(kSample.Error(values.data()), 2e-6);
  }
  watched.ExpectUnharmed("strides of 2^62");
}

// fp16 angles in the message, [bytes / 16, 8], for one token of 16 channels.
v1::RotateRequest InlineAngles(int64_t bytes) {
  constexpr int64_t kInlinePairs = 8;
  v1::RotateRequest request = RequestWithRows();
  v1::Array& array = *request.mutable_tensors(0)->mutable_array();
  array.set_shape(2, 2 * kInlinePairs);
  array.set_raw(std::string(2 * kInlinePairs * sizeof(float), '\0'));
  v1::Array& angles = *request.mutable_rows()->mutable_angles();
  angles.set_dtype(v1::DTYPE_FP16);
  angles.add_shape(bytes / 2 / kInlinePairs);
  angles.add_shape(kInlinePairs);
  angles.set_raw(std::string(static_cast<size_t>(bytes), '\0'));
  return request;
}

TEST(HostileMemoryTest, InlineAnglesOf200MiBAreRefused) {
  WatchedServer watched;
  const auto stub = watched.server().NewStub();
  EXPECT_THAT(CallOverGrpc(*stub, InlineAngles(200 * kMiB)),
              AnyOf(StartsWith(kInvalid), StartsWith(kExhausted)));
  EXPECT_TRUE(Serves(*stub));
  watched.ExpectUnharmed("200 MiB of inline angles");
  watched.ExpectMemoryGivenBack("200 MiB of inline angles");
}

TEST(HostileMemoryTest, InlineAnglesOfManyConnectionsAreCountedByWhatTheyBecome) {
  constexpr int kConnections = 6;
  constexpr int kCalls = 3;
  WatchedServer watched;
  const v1::RotateRequest request = InlineAngles(40 * kMiB);
  std::vector<std::thread> clients;
  clients.reserve(kConnections);
  for (int i = 0; i < kConnections; ++i) {
    clients.emplace_back([&watched, &request] {
      const auto stub = watched.server().NewStub();
      for (int call = 0; call < kCalls; ++call) {
        EXPECT_THAT(CallOverGrpc(*stub, request),
                    AnyOf("OK", StartsWith(kInvalid), StartsWith(kExhausted)));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  watched.ExpectUnharmed("40 MiB of inline angles, six connections");
  watched.ExpectMemoryGivenBack("40 MiB of inline angles, six connections");
}

// One row of `channels` with xpos, whose frequencies have 192 bytes a channel.
v1::PrepareRequest PrepareWide(int64_t channels, int number) {
  v1::PrepareRequest request;
  v1::RotateRequest& rotate = *request.mutable_rotate();
  v1::RopeConfig& config = *rotate.mutable_rope()->mutable_config();
  config.set_head_dim(static_cast<int32_t>(channels));
  config.set_rope_theta(10'000 + number);
  config.mutable_xpos()->set_scale_base(512);
  rotate.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  v1::Tensor& tensor = *rotate.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("SD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP16);
  tensor.mutable_array()->add_shape(1);
  tensor.mutable_array()->add_shape(channels);
  return request;
}

std::string Prepare(v1::RopeService::Stub& stub, const v1::PrepareRequest& request) {
  grpc::ClientContext context;
  v1::PrepareResponse response;
  return Text(stub.Prepare(&context, request, &response));
}

TEST(HostileMemoryTest, TinyPreparesOfHugeEmbeddingsAreCountedByWhatTheyKeep) {
  constexpr int kCalls = 100;
  WatchedServer watched;
  const auto stub = watched.server().NewStub();
  for (int i = 0; i < kCalls; ++i) {
    EXPECT_THAT(Prepare(*stub, PrepareWide(65536, i)), StartsWith(kExhausted + "rotate: got"))
        << "12 MiB, more than one connection may have";
  }
  for (int i = 0; i < 4 * kCalls; ++i) EXPECT_EQ(Prepare(*stub, PrepareWide(8192, i)), "OK");
  EXPECT_TRUE(Serves(*stub));
  watched.ExpectUnharmed("prepared requests of wide embeddings");
  watched.ExpectMemoryGivenBack("prepared requests of wide embeddings");
}

// The caches are full within a small --memory_bytes. They are no unread message, so reads go on.
TEST(HostileMemoryTest, FullCachesOfASmallServerEndNoStream) {
  if (!kMemoryIsMeasured) GTEST_SKIP() << "a sanitizer's memory uses up the server's";
  constexpr int kSpecs = 100;
  WatchedServer watched({.memory_bytes = 128 * kMiB, .message_bytes = 4 * kMiB});
  const auto stub = watched.server().NewStub();
  grpc::ClientContext context;
  const auto stream = stub->RotateStream(&context);
  v1::RotateStreamRequest request;
  *request.mutable_rotate() = kSample.Inline();
  v1::RotateStreamResponse response;
  const auto answers = [&] {
    request.set_sequence(request.sequence() + 1);
    return stream->Write(request) && stream->Read(&response) && !response.rotate().has_error();
  };
  ASSERT_TRUE(answers());
  for (int i = 0; i < kSpecs; ++i) {
    for (const int64_t channels : {512, 8192, 65536}) {
      EXPECT_THAT(Prepare(*stub, PrepareWide(channels, i)), AnyOf("OK", StartsWith(kExhausted)));
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(answers()) << Text(stream->Finish());
  }
  watched.ExpectUnharmed("full caches");
}

// Small requests that make the server build many table rows, frequencies or jobs. Memory must stay
// bounded, and other clients must wait for one slice and not for the whole request.

using Stub = v1::RopeService::Stub;

// The memory that the attacks may take, beside the table cache: far less than what they ask for.
constexpr int64_t kAttackBytesMax = 256 * kMiB;
// A slice takes some milliseconds.
constexpr double kMostCallsMs = 400;

std::string Zeros(int64_t count) {
  return std::string(static_cast<size_t>(count), '\0');
}

v1::Tensor& AddTensor(v1::RotateRequest& request, const std::string& layout, v1::DType dtype,
                      const std::vector<int64_t>& shape) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout(layout);
  tensor.mutable_array()->set_dtype(dtype);
  for (const int64_t length : shape) tensor.mutable_array()->add_shape(length);
  return tensor;
}

// Calls from several connections at once, each `calls` times.
void AttackWith(WatchedServer& watched, const std::vector<v1::RotateRequest>& requests, int calls,
                const ::testing::Matcher<std::string>& answer) {
  std::vector<std::thread> clients;
  clients.reserve(requests.size());
  for (const v1::RotateRequest& request : requests) {
    clients.emplace_back([&] {
      const auto stub = watched.server().NewStub();
      for (int call = 0; call < calls; ++call) {
        EXPECT_THAT(Text(Rotate(*stub, request)), answer);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

// Nine in ten small calls took at most this many milliseconds while `attack` ran. A machine that
// stalls delays one.
double MostCallsMsWhile(WatchedServer& watched, const std::function<void()>& attack) {
  proto::Notification ended;
  std::thread attacker([&] {
    attack();
    ended.Notify();
  });
  const auto stub = watched.server().NewStub();
  std::vector<double> times;
  do {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(Serves(*stub));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    times.push_back(took.count());
  } while (!ended.WaitForNotificationWithTimeout(std::chrono::milliseconds(1)));
  attacker.join();
  std::sort(times.begin(), times.end());
  return times[(times.size() - 1) * 9 / 10];
}

void ExpectBounded(WatchedServer& watched, const std::string& what) {
  watched.ExpectUnharmed(what);
  if (kMemoryIsMeasured) {
    EXPECT_LE(watched.memory().peak_bytes() - watched.memory().idle_bytes(), kAttackBytesMax)
        << what;
  }
  watched.ExpectMemoryGivenBack(what);
}

// Tokens with a distant position on each of three axes. `seed`: other positions.
v1::RotateRequest ScatteredMrope(int64_t tokens, uint32_t seed) {
  constexpr int64_t kHeadDim = 128;
  constexpr uint32_t kMask = (1U << 30) - 1;
  constexpr uint32_t kStep = 715'827'881;
  v1::RotateRequest request;
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_head_dim(kHeadDim);
  for (const int64_t section : {16, 24, 24}) config.add_mrope_section(section);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  ids.set_dtype(v1::DTYPE_INT32);
  ids.add_shape(3);
  ids.add_shape(tokens);
  std::string raw;
  for (uint32_t i = 0; i < 3 * static_cast<uint32_t>(tokens); ++i) {
    const uint32_t position = (seed + i * kStep) & kMask;
    raw.append(reinterpret_cast<const char*>(&position), sizeof(position));
  }
  ids.set_raw(raw);
  v1::Array& array =
      *AddTensor(request, "SHD", v1::DTYPE_BF16, {tokens, 1, kHeadDim}).mutable_array();
  for (const int64_t stride : {0, 0, 1}) array.add_strides(stride);
  array.set_raw(Zeros(2 * kHeadDim));
  return request;
}

TEST(HostileRowsTest, ScatteredPositionsOnThreeAxesDelayOthersBySlicesOnly) {
  constexpr int64_t kTokens = 4096;
  WatchedServer watched;
  const double most = MostCallsMsWhile(watched, [&] {
    AttackWith(watched, {ScatteredMrope(kTokens, 0), ScatteredMrope(kTokens, 1U << 20)}, 2,
               AnyOf("OK", StartsWith(absl::StrCat(
                               static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED), " "))));
  });
  std::printf("measured: nine in ten calls beside them within %.1f ms\n", most);
  if (kMemoryIsMeasured) {
    EXPECT_LT(most, kMostCallsMs);
  }
  ExpectBounded(watched, "scattered mrope positions");
}

// A sequence of one token for each of `sequences` lengths, with frequencies for each length.
v1::RotateRequest ManyLengths(int64_t sequences) {
  constexpr int64_t kHeadDim = 65536;
  v1::RotateRequest request;
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_head_dim(kHeadDim);
  config.set_rope_type("dynamic");
  config.set_factor(2);
  config.set_max_position_embeddings(1);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  for (int64_t i = 0; i < sequences; ++i) request.mutable_positions()->add_seq_lens(1000 + i);
  v1::Array& array =
      *AddTensor(request, "BSHD", v1::DTYPE_BF16, {sequences, 1, 1, kHeadDim}).mutable_array();
  for (const int64_t stride : {0, 0, 0, 1}) array.add_strides(stride);
  array.set_raw(Zeros(2 * kHeadDim));
  request.mutable_output()->set_dtype(v1::DTYPE_FP8_E4M3);
  return request;
}

TEST(HostileRowsTest, FrequenciesOfManyLengthsAreRefused) {
  constexpr int64_t kSequences = 900;
  WatchedServer watched;
  const double most = MostCallsMsWhile(watched, [&] {
    AttackWith(watched, {ManyLengths(kSequences), ManyLengths(kSequences)}, 2,
               HasSubstr("positions.seq_lens"));
  });
  std::printf("measured: nine in ten calls beside them within %.1f ms\n", most);
  if (kMemoryIsMeasured) {
    EXPECT_LT(most, kMostCallsMs);
  }
  ExpectBounded(watched, "frequencies of 900 lengths");
}

// 8 MiB in rows of 4 bytes, two of them next to each other.
v1::RotateRequest ManyJobs() {
  constexpr int64_t kSequences = 1024;
  constexpr int64_t kHeads = 1024;
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(2);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  AddTensor(request, "BHSD", v1::DTYPE_BF16, {kSequences, kHeads, 2, 2})
      .mutable_array()
      ->set_raw(Zeros(kSequences * kHeads * 2 * 2 * 2));
  return request;
}

TEST(HostileRowsTest, TokensInsideManyHeadsTakeTheJobsOfOneBatch) {
  if (!kMemoryIsMeasured) GTEST_SKIP() << "a sanitizer's memory uses up the server's";
  WatchedServer watched;
  const std::vector<v1::RotateRequest> requests(4, ManyJobs());
  const double most =
      MostCallsMsWhile(watched, [&] { AttackWith(watched, requests, 2, ::testing::Eq("OK")); });
  std::printf("measured: nine in ten calls beside them within %.1f ms\n", most);
  ExpectBounded(watched, "a million jobs");
}

TEST(HostileRowsTest, GatheredTokenAsLargeAsARegionIsRefused) {
  constexpr int64_t kRegionBytes = 1024 * kMiB;
  WatchedServer watched;
  RegionClient client(watched.path(), kRegionBytes);
  ASSERT_EQ(client.hello().code, absl::StatusCode::kOk);
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(128);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(0);
  v1::Array& array =
      *AddTensor(request, "SHD", v1::DTYPE_BF16, {1, kRegionBytes / 256, 128}).mutable_array();
  for (const int64_t stride : {0, 0, 2}) array.add_strides(stride);
  array.set_raw(Zeros(2 * 255));
  request.mutable_output()->add_regions()->set_region_id(client.id());
  EXPECT_THAT(Text(Rotate(client.stub(), request)), HasSubstr("bytes for each token"));
  ExpectBounded(watched, "a gathered token of 1 GiB");
}

}  // namespace
}  // namespace rope::testing
