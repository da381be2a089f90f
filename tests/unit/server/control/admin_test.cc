#include "server/control/admin.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"
#include "tests/unit/server/test_connection.h"

namespace rope::server {
namespace {

using ::rope::testing::TestConnection;

constexpr char kOwner[] = "uid:1000";  // who runs no test

TEST(AdminTest, PagesHoldEveryModelOnceInOrder) {
  const auto registry = ModelRegistry::Create({}).value();
  const v1::ListModelsResponse all = *ListModels({}, *registry);
  EXPECT_EQ(all.next_page_token(), "");
  for (const int size : {1, 7, all.models_size() - 1, all.models_size(), all.models_size() + 1}) {
    v1::ListModelsRequest request;
    request.set_page_size(size);
    std::vector<std::string> names;
    do {
      const v1::ListModelsResponse page = *ListModels(request, *registry);
      ASSERT_GE(page.models_size(), 1);
      ASSERT_LE(page.models_size(), size);
      for (const v1::Model& model : page.models()) names.push_back(model.name());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    ASSERT_EQ(names.size(), static_cast<size_t>(all.models_size())) << size;
    for (int i = 0; i < all.models_size(); ++i) {
      EXPECT_EQ(names[static_cast<size_t>(i)], all.models(i).name());
    }
  }
}

TEST(AdminTest, PageEndsAtAMebibyte) {
  constexpr int kModels = 130;  // of 64 layer types with names of 128 bytes: 8 KiB in a page
  std::vector<ModelRegistry::ModelFile> files;
  for (int i = 0; i < kModels; ++i) {
    files.push_back({absl::StrCat("aaa", i), testing::ConfigOfManyLayerTypes()});
  }
  const auto registry = ModelRegistry::Create(files).value();
  v1::ListModelsRequest request;
  std::vector<int> pages;
  do {
    const v1::ListModelsResponse page = *ListModels(request, *registry);
    EXPECT_LE(static_cast<int64_t>(page.ByteSizeLong()), kModelsPageBytesMax + 1024);
    pages.push_back(page.models_size());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  ASSERT_THAT(pages, SizeIs(2));
  EXPECT_LT(pages[0], kModels);
  EXPECT_EQ(static_cast<size_t>(pages[0] + pages[1]), registry->models().size());
}

TEST(AdminTest, ConnectionsAreThoseOfTheCallersOwnerOrAllForRootInPages) {
  testing::TestClients clients;
  Connections& connections = clients.connections;
  const TestConnection first(connections, kOwner);
  const TestConnection tcp(connections, "ip:192.0.2.7", TestConnection::Transport::kTcp);
  const TestConnection third(connections, kOwner);
  first.connection()->BeginCall();
  first.connection()->BeginCall();
  first.connection()->EndCall();
  first.connection()->CountMessage(77);
  ASSERT_OK(own, ListConnections({}, kOwner, connections));
  EXPECT_EQ(own->owner(), kOwner);
  ASSERT_EQ(own->connections_size(), 2);
  EXPECT_THAT(own->connections(0).ShortDebugString(),
              EndsWith("owner: \"uid:1000\" transport: \"unix\" calls: 2 calls_in_flight: 1 "
                       "message_bytes: 77"));
  v1::ListConnectionsRequest request;
  request.set_page_size(2);
  ASSERT_OK(page, ListConnections(request, "uid:0", connections));
  EXPECT_EQ(page->owner(), "");
  ASSERT_EQ(page->connections_size(), 2);
  EXPECT_EQ(page->connections(1).transport(), "tcp");
  request.set_page_token(page->next_page_token());
  ASSERT_OK(last, ListConnections(request, "uid:0", connections));
  ASSERT_EQ(last->connections_size(), 1);
  EXPECT_EQ(last->connections(0).connection_id(), third.connection()->id());
  EXPECT_EQ(last->next_page_token(), "");
  ASSERT_OK(nobodys, ListConnections({}, "uid:65534", connections));
  EXPECT_EQ(nobodys->owner(), "uid:65534");
  request.set_page_token("x");
  EXPECT_THAT(ListConnections(request, kOwner, connections), IsInvalid("page_token: got \"x\""));
  request.set_page_size(-1);
  EXPECT_THAT(ListConnections(request, kOwner, connections), IsInvalid("page_size: got -1"));
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
