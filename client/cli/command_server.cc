// health, info: what the server says about itself.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/json_output.h"

namespace rope::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::nanoseconds kNoWait{0};
constexpr std::chrono::hours kWaitMax{24};

Result<ServingStatus> AskHealth(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments, {.require_serving = false});
  if (!client.ok()) return client.status();
  const std::string service =
      arguments.positional().empty() ? std::string() : arguments.positional().front();
  return client->Health(service, CallOptionsOf(arguments));
}

void PrintInfo(const ServerInfo& info, const ChosenTransport& transport,
               const std::vector<SharedRegion>& regions) {
  absl::PrintF("version     %s\ninstance    %s\nuptime      %.1f s\ntransports  %s\n", info.version,
               info.instance_id, info.uptime_seconds, absl::StrJoin(info.transports, ", "));
  absl::PrintF("this call   %s%s\n", Name(transport.transport),
               transport.reason.empty() ? "" : absl::StrCat(" (", transport.reason, ")"));
  for (const SharedRegion& region : regions) {
    absl::PrintF("region      %s, %d bytes of this connection\n", region.kind, region.bytes);
  }
  for (const Device& device : info.devices) {
    absl::PrintF("device      %s  %s\n", device.name, device.detail);
  }
  for (const Limit& limit : info.limits) {
    absl::PrintF("limit       %s = %d\n", limit.name, limit.value);
  }
  const TableCacheStatistics& cache = info.table_cache;
  absl::PrintF("tables      %d, %d pages, %d of %d bytes\n", cache.tables, cache.pages, cache.bytes,
               cache.budget_bytes);
  absl::PrintF("pages       %d hits, %d misses, %d builds, %d evictions\n", cache.hits,
               cache.misses, cache.builds, cache.evictions);
}

void PrintInfoJson(const ServerInfo& info, const ChosenTransport& transport,
                   const std::vector<SharedRegion>& regions) {
  Json json = {{"version", info.version},
               {"instance_id", info.instance_id},
               {"uptime_seconds", info.uptime_seconds},
               {"transports", info.transports},
               {"transport", Name(transport.transport)},
               {"transport_reason", transport.reason},
               {"regions", Json::array()},
               {"devices", Json::array()},
               {"limits", Json::object()}};
  for (const SharedRegion& region : regions) {
    json["regions"].push_back({{"byte_size", region.bytes}, {"kind", region.kind}});
  }
  for (const Device& device : info.devices) {
    json["devices"].push_back({{"name", device.name}, {"detail", device.detail}});
  }
  for (const Limit& limit : info.limits) json["limits"][limit.name] = limit.value;
  const TableCacheStatistics& cache = info.table_cache;
  json["table_cache"] = {{"hits", cache.hits},     {"misses", cache.misses},
                         {"builds", cache.builds}, {"evictions", cache.evictions},
                         {"bytes", cache.bytes},   {"budget_bytes", cache.budget_bytes},
                         {"tables", cache.tables}, {"pages", cache.pages}};
  absl::PrintF("%s", JsonText(json));
}

}  // namespace

int RunHealth(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  if (arguments.positional().size() > 1) return Misuse("got two services, want one at most");
  const auto end = Clock::now() + std::min<std::chrono::nanoseconds>(
                                      arguments.Duration("wait").value_or(kNoWait), kWaitMax);
  Result<ServingStatus> health = AskHealth(arguments);
  while ((!health.ok() || *health != ServingStatus::kServing) && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    health = AskHealth(arguments);
  }
  if (!health.ok()) return Fail(health.status());
  if (arguments.Has("json")) {
    absl::PrintF("%s", JsonText({{"status", Name(*health)}}));
  } else {
    absl::PrintF("%s\n", Name(*health));
  }
  return *health == ServingStatus::kServing ? kExitOk : kExitFailed;
}

int RunInfo(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto info = client->GetServerInfo(CallOptionsOf(arguments));
  if (!info.ok()) return Fail(info.status());
  const auto regions = client->ListRegions(CallOptionsOf(arguments));
  if (!regions.ok()) return Fail(regions.status());
  const auto print = arguments.Has("json") ? &PrintInfoJson : &PrintInfo;
  print(*info, client->transport(), *regions);
  return kExitOk;
}

}  // namespace rope::client
