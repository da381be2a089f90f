#include "server/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::HasSubstr;

v1::RegisterModelRequest RegisterRequest(const std::string& name, double theta) {
  v1::RegisterModelRequest request;
  request.set_name(name);
  request.mutable_rope()->mutable_config()->set_rope_theta(theta);
  request.mutable_rope()->set_pairing(v1::PAIRING_INTERLEAVED);
  return request;
}

TEST(AdminTest, RegisterListAndUnregisterGoThroughTheRegistry) {
  const auto registry = ModelRegistry::Create("test", {}).value();
  const int before = ListModels(*registry).models_size();
  const auto registered = RegisterModel(RegisterRequest("aaa", 2500), *registry);
  ASSERT_THAT(registered, IsOk());
  EXPECT_EQ(registered->model().rope_theta(), 2500);
  EXPECT_EQ(registered->model().head_dim(), 0);  // the tensor's
  const v1::ListModelsResponse list = ListModels(*registry);
  ASSERT_EQ(list.models_size(), before + 1);
  EXPECT_EQ(list.models(0).SerializeAsString(), registered->model().SerializeAsString());
  v1::UnregisterModelRequest unregister;
  unregister.set_name("aaa");
  EXPECT_THAT(UnregisterModel(unregister, *registry), IsOk());
  EXPECT_THAT(UnregisterModel(unregister, *registry),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("name: got \"aaa\"")));
  EXPECT_EQ(ListModels(*registry).models_size(), before);
}

TEST(AdminTest, RefusalsOfTheRegistryComeThrough) {
  const auto registry = ModelRegistry::Create("test", {}).value();
  EXPECT_THAT(RegisterModel(RegisterRequest("", 2500), *registry),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name: got")));
  EXPECT_THAT(RegisterModel(v1::RegisterModelRequest(), *registry),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name: got")));
}

TEST(AdminTest, StatisticsAreThoseOfTheCache) {
  kernels::TableCache tables(1 << 20);
  const auto resolved = kernels::Resolve(kernels::RopeConfig{}, 64).value();
  const auto frequencies = resolved->ForSeqLen(1, kernels::Multiplier::kOne);
  kernels::TokenRows rows;
  ASSERT_THAT(tables.AppendRows(*frequencies, {0, 1, 70, 5}, rows), IsOk());
  const v1::TableCacheStatistics statistics = WriteStatistics(tables);
  EXPECT_EQ(statistics.misses(), 2);
  EXPECT_EQ(statistics.hits(), 1);
  EXPECT_EQ(statistics.builds(), 2);
  EXPECT_EQ(statistics.evictions(), 0);
  EXPECT_EQ(statistics.pages(), 2);
  EXPECT_EQ(statistics.tables(), 1);
  EXPECT_EQ(statistics.budget_bytes(), 1 << 20);
  EXPECT_EQ(statistics.bytes(), tables.statistics().bytes);
  EXPECT_GT(statistics.bytes(), 2 * 64 * 2 * 32 * 4);
}

}  // namespace
}  // namespace rope::server
