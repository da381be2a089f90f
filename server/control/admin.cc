#include "server/control/admin.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/clients/peers.h"
#include "server/error.h"
#include "server/telemetry/log.h"
#include "server/telemetry/process.h"

namespace rope::server {
namespace {

constexpr int kPageSizeMax = 1000;

absl::StatusOr<int> PageSizeOf(int32_t page_size) {
  if (page_size < 0) return InvalidField("page_size", page_size, "a number >= 0");
  return page_size == 0 ? kPageSizeMax : std::min(page_size, kPageSizeMax);
}

// Users without a number in the server's namespace are one owner, which may be the server's user.
bool MaySeeAll(const std::string& owner) {
  const std::string nobody = ReadTextFile("/proc/sys/fs/overflowuid");
  if (owner == absl::StrCat("uid:", absl::StripAsciiWhitespace(nobody))) return false;
  return owner == OwnerOfUser(0) || owner == OwnerOfUser(geteuid());
}

void Write(const Connection& connection, v1::Connection& message) {
  const Connection::Counts counts = connection.counts();
  message.set_connection_id(connection.id());
  message.set_owner(connection.owner());
  message.set_transport(connection.is_unix() ? "unix" : "tcp");
  message.set_calls(counts.calls);
  message.set_calls_in_flight(counts.calls_in_flight());
  message.set_calls_cancelled(counts.calls_lost);
  message.set_message_bytes(counts.message_bytes);
  message.set_reply_bytes(counts.reply_bytes);
  if (const auto traffic = connection.traffic()) message.set_read_bytes(traffic->read_bytes);
}

}  // namespace

// A page's token is the name of its predecessor's last model. The page ends at a model that it has
// no room for.
absl::StatusOr<v1::ListModelsResponse> ListModels(const v1::ListModelsRequest& request,
                                                  const ModelRegistry& registry) {
  ROPE_ASSIGN_OR_RETURN(const int count, PageSizeOf(request.page_size()));
  v1::ListModelsResponse response;
  int64_t bytes = 0;
  const auto& models = registry.models();
  for (auto it = models.upper_bound(request.page_token()); it != models.end(); ++it) {
    const v1::Model& model = it->second.shown;
    bytes += static_cast<int64_t>(model.ByteSizeLong());
    const bool full = response.models_size() == count || bytes > kModelsPageBytesMax;
    if (full && response.models_size() > 0) {
      response.set_next_page_token(std::prev(it)->first);
      return response;
    }
    *response.add_models() = model;
  }
  return response;
}

// A page's token is the id of its predecessor's last connection.
absl::StatusOr<v1::ListConnectionsResponse> ListConnections(
    const v1::ListConnectionsRequest& request, const std::string& owner,
    const Connections& connections) {
  ROPE_ASSIGN_OR_RETURN(const int count, PageSizeOf(request.page_size()));
  uint64_t last = 0;
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &last)) {
    return InvalidField("page_token",
                        Quoted(ShortText(request.page_token(), limits::kErrorPartBytesMax)),
                        "next_page_token of the page before");
  }
  v1::ListConnectionsResponse response;
  const bool sees_all = MaySeeAll(owner);
  if (!sees_all) response.set_owner(owner);
  for (const auto& connection : connections.Open()) {
    const bool is_listed = sees_all || connection->owner() == owner;
    if (!is_listed || connection->id() <= last) continue;
    if (response.connections_size() == count) {
      const auto& shown = response.connections(count - 1);
      response.set_next_page_token(absl::StrCat(shown.connection_id()));
      return response;
    }
    Write(*connection, *response.add_connections());
  }
  return response;
}

v1::TableCacheStatistics WriteStatistics(const kernels::TableCache& tables) {
  const kernels::TableCache::Statistics statistics = tables.statistics();
  v1::TableCacheStatistics message;
  message.set_hits(statistics.hits);
  message.set_misses(statistics.misses);
  message.set_builds(statistics.builds);
  message.set_evictions(statistics.evictions);
  message.set_bytes(statistics.bytes);
  message.set_budget_bytes(tables.budget_bytes());
  message.set_tables(statistics.tables);
  message.set_pages(statistics.pages);
  return message;
}

}  // namespace rope::server
