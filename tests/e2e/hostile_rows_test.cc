// Small requests that make the server build many table rows, frequencies or jobs. Memory must stay
// bounded, and other clients must wait for one slice and not for the whole request.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "tests/support/matchers.h"
#include "tests/support/region_client.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

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
void Attack(WatchedServer& watched, const std::vector<v1::RotateRequest>& requests, int calls,
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
    Attack(watched, {ScatteredMrope(kTokens, 0), ScatteredMrope(kTokens, 1U << 20)}, 2,
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
    Attack(watched, {ManyLengths(kSequences), ManyLengths(kSequences)}, 2,
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
      MostCallsMsWhile(watched, [&] { Attack(watched, requests, 2, ::testing::Eq("OK")); });
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
