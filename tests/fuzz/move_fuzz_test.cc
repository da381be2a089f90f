// Damaged moves by a table in pages: whatever is refused has changed no byte of the region.
//
// ROPE_FUZZ_ROUNDS=N and ROPE_FUZZ_SEED=N: another number of requests, other requests.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/backends.h"
#include "tests/conformance/move_generator.h"
#include "tests/fuzz/wire_messages.h"
#include "tests/support/region_engine.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

constexpr uint64_t kRounds = 20000;
constexpr uint64_t kSeed = 20261129;
constexpr uint64_t kVariations = 16;  // of each case

// Every array of a request that holds integers.
std::vector<v1::Array*> IntegersOf(v1::RotateRequest& request) {
  std::vector<v1::Array*> arrays;
  CollectArrays(request, arrays);
  std::erase_if(arrays, [](const v1::Array* array) {
    return array->dtype() != v1::DTYPE_INT64 || array->raw().empty();
  });
  return arrays;
}

int64_t Number(FuzzRandom& random) {
  return random.OneIn(2) ? random.EdgeInteger() : static_cast<int64_t>(random.Below(300)) - 2;
}

void DamageNumber(FuzzRandom& random, v1::RotateRequest& request) {
  v1::Tensor& tensor = *request.mutable_tensors(
      static_cast<int>(random.Below(static_cast<uint64_t>(request.tensors_size()))));
  v1::PagedTokens& paged = *tensor.mutable_paged_tokens();
  const int64_t number = Number(random);
  switch (random.Below(8)) {
    case 0:
      return paged.set_block_size(number);
    case 1:
      return paged.set_page_stride(number);
    case 2:
      return paged.set_token_stride(number);
    case 3:
      return paged.set_head_stride(number);
    case 4:
      return paged.set_layer_stride(number);
    case 5:
      return paged.set_pool_elements(number);
    case 6:
      return tensor.mutable_array()->mutable_region()->set_offset(static_cast<uint64_t>(number));
    default:
      return tensor.mutable_array()->set_shape(
          static_cast<int>(random.Below(static_cast<uint64_t>(tensor.array().shape_size()))),
          number);
  }
}

void Damage(FuzzRandom& random, v1::RotateRequest& request) {
  const std::vector<v1::Array*> arrays = IntegersOf(request);
  if (arrays.empty() || random.OneIn(2)) return DamageNumber(random, request);
  v1::Array& array = *random.OneOf(arrays);
  if (random.OneIn(8)) return array.set_shape(0, Number(random));
  std::string& raw = *array.mutable_raw();
  if (random.OneIn(8)) return random.Damage(raw);
  const int64_t number = Number(random);
  const size_t numbers = raw.size() / sizeof(number);
  if (numbers == 0) return;
  std::memcpy(raw.data() + random.Below(numbers) * sizeof(number), &number, sizeof(number));
}

TEST(MoveFuzzTest, WhatIsRefusedHasChangedNoByte) {
  RegionEngine engine(kMoveRegionBytes, kernels::CreateBackend("reference", {}).value());
  FuzzRandom random(FuzzSeed(kSeed));
  MoveGenerator generator(static_cast<uint32_t>(random.Next()));
  const uint64_t rounds = FuzzRounds(kRounds);
  MoveCase made;
  int64_t answered = 0;
  int64_t refused = 0;
  for (uint64_t round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
    if (round % kVariations == 0) {
      made = generator.Make();
      SetRegion(engine.id(), made.in_pages);
      engine.Write(made.memory);
    }
    v1::RotateRequest request = made.in_pages;
    for (uint64_t n = 1 + random.Below(2); n > 0; --n) Damage(random, request);
    const WireAnswer answer = engine.Send(request);
    ++(answer.status.ok() ? answered : refused);
    if (answer.status.ok()) {
      engine.Write(made.memory);
      continue;
    }
    EXPECT_TRUE(engine.Has(made.memory)) << answer.status << ": " << request.ShortDebugString();
    EXPECT_FALSE(answer.Parsed().error().may_have_executed()) << answer.status;
  }
  std::printf("measured: damaged moves: %ld answered, %ld refused\n", answered, refused);
  EXPECT_GT(refused, static_cast<int64_t>(rounds / 4));
  EXPECT_GT(answered, 0);
}

}  // namespace
}  // namespace rope::testing
