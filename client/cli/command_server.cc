// health, info, connections: what the server says about itself.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/json_text.h"

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

void PrintConnections(const ConnectionList& list) {
  size_t width = absl::string_view("owner").size();
  for (const ClientConnection& each : list.connections) width = std::max(width, each.owner.size());
  const auto owner_width = static_cast<int>(width);
  absl::PrintF("%10s %-*s %-9s %10s %9s %9s %13s %13s %11s\n", "connection", owner_width, "owner",
               "transport", "calls", "in flight", "cancelled", "message bytes", "read bytes",
               "reply bytes");
  for (const ClientConnection& each : list.connections) {
    absl::PrintF("%10d %-*s %-9s %10d %9d %9d %13d %13s %11d\n", each.id, owner_width, each.owner,
                 each.transport, each.calls, each.calls_in_flight, each.calls_cancelled,
                 each.message_bytes, each.transport == "tcp" ? absl::StrCat(each.read_bytes) : "-",
                 each.reply_bytes);
  }
  if (list.owner.empty()) return;
  absl::PrintF("Connections of %s alone. The server's user sees all, on a Unix socket.\n",
               list.owner);
}

void PrintConnectionsJson(const ConnectionList& list) {
  Json json = {{"owner", list.owner}, {"connections", Json::array()}};
  for (const ClientConnection& each : list.connections) {
    json["connections"].push_back({{"connection_id", each.id},
                                   {"owner", each.owner},
                                   {"transport", each.transport},
                                   {"calls", each.calls},
                                   {"calls_in_flight", each.calls_in_flight},
                                   {"calls_cancelled", each.calls_cancelled},
                                   {"message_bytes", each.message_bytes},
                                   {"read_bytes", each.read_bytes},
                                   {"reply_bytes", each.reply_bytes}});
  }
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

// connections: who calls the server.

int RunConnections(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto list = client->ListConnections(CallOptionsOf(arguments));
  if (!list.ok()) return Fail(list.status());
  arguments.Has("json") ? PrintConnectionsJson(*list) : PrintConnections(*list);
  return kExitOk;
}

// models: the names that the engine knows.

namespace {

std::string_view PairingName(const Model& model) {
  return model.pairing.has_value() ? Name(*model.pairing) : "unspecified";
}

Json JsonOf(const Model& model) {
  return {{"name", model.name},
          {"origin", model.origin},
          {"rope_type", model.rope_type},
          {"rope_theta", model.rope_theta},
          {"head_dim", model.head_dim},
          {"rotary_dim", model.rotary_dim},
          {"pairing", PairingName(model)},
          {"num_heads", model.num_heads},
          {"num_kv_heads", model.num_kv_heads},
          {"max_position_embeddings", model.max_position_embeddings},
          {"layer_types", model.layer_types}};
}

void PrintTable(const std::vector<Model>& models) {
  size_t width = absl::string_view("model").size();
  for (const Model& model : models) width = std::max(width, model.name.size());
  const auto name_width = static_cast<int>(width);
  absl::PrintF("%-*s %-12s %10s %8s %6s %-11s %9s %9s %s\n", name_width, "model", "type", "theta",
               "head_dim", "rotary", "pairing", "heads q/k", "length", "origin");
  for (const Model& model : models) {
    absl::PrintF("%-*s %-12s %10g %8d %6d %-11s %9s %9d %s%s\n", name_width, model.name,
                 model.rope_type, model.rope_theta, model.head_dim, model.rotary_dim,
                 PairingName(model), absl::StrCat(model.num_heads, "/", model.num_kv_heads),
                 model.max_position_embeddings, model.origin,
                 model.layer_types.empty()
                     ? ""
                     : absl::StrCat(" (", absl::StrJoin(model.layer_types, ", "), ")"));
  }
}

}  // namespace

int RunModels(const Arguments& arguments) {
  const Result<Client> client = ConnectToAny(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto models = client->ListModels(CallOptionsOf(arguments));
  if (!models.ok()) return Fail(models.status());
  if (!arguments.Has("json")) {
    PrintTable(*models);
    return kExitOk;
  }
  Json list = Json::array();
  for (const Model& model : *models) list.push_back(JsonOf(model));
  absl::PrintF("%s", JsonText(list));
  return kExitOk;
}

}  // namespace rope::client
