// The accounts and the connections of a server.
//
// Threading:  As its members; Of is confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_TEST_CLIENTS_H_
#define ROPE_TESTS_SUPPORT_TEST_CLIENTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/clients/account.h"
#include "server/clients/connections.h"
#include "server/clients/regions.h"
#include "server/request/request.h"
#include "tests/support/fake_clock.h"

namespace rope::testing {

struct TestClients {
  static constexpr int64_t kMany = int64_t{1} << 40;

  explicit TestClients(const server::Accounts::Budgets& budgets = {.connections = kMany,
                                                                   .requests = kMany,
                                                                   .request_bytes = kMany,
                                                                   .region_bytes = kMany},
                       server::RegionTotals::Options options = {.enabled = true},
                       std::vector<std::string> proxies = {})
      : accounts(budgets, clock),
        totals(options),
        connections(accounts, totals, std::move(proxies)) {}

  // A connection with this id, of the owner "uid:ID", which no list has.
  server::Connection& Of(uint64_t id) {
    std::shared_ptr<server::Connection>& connection = made[id];
    if (connection == nullptr) {
      connection = std::make_shared<server::Connection>(
          server::Connection::About{.id = id, .account = accounts.Of(absl::StrCat("uid:", id))},
          totals);
    }
    return *connection;
  }
  // Gives a request what its session names.
  void Fill(server::Arrival& arrival) {
    arrival.connection = &Of(arrival.session);
    arrival.account = arrival.connection->account().get();
  }
  int64_t region_bytes() const { return accounts.held(server::Resource::kRegionBytes); }

  FakeClock clock;
  server::Accounts accounts;
  server::RegionTotals totals;
  server::Connections connections;
  std::map<uint64_t, std::shared_ptr<server::Connection>> made;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_TEST_CLIENTS_H_
