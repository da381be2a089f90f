// health, info, connections, models: what the server says about itself.
#include <chrono>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/commands.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

constexpr std::chrono::hours kWaitMax{24};

Result<ServingStatus> AskHealth(const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectTo(arguments, {.require_serving = false}));
  const std::string service =
      arguments.positional().empty() ? std::string() : arguments.positional().front();
  return client.Health(service, CallOptionsOf(arguments));
}

Result<Json> Ask(const Client& client, const Arguments& arguments, const std::string& method,
                 const std::string& request = "{}") {
  ROPE_ASSIGN_OR_RETURN(const std::string reply,
                        client.CallJson(method, request, CallOptionsOf(arguments)));
  return Json::parse(reply);
}

// The answer with all pages of its list.
Result<Json> AskAll(const Client& client, const Arguments& arguments, const std::string& method,
                    const char* list) {
  ROPE_ASSIGN_OR_RETURN(Json all, Ask(client, arguments, method));
  Json token = all.at("next_page_token");
  while (token != "") {
    ROPE_ASSIGN_OR_RETURN(const Json page,
                          Ask(client, arguments, method, Json({{"page_token", token}}).dump()));
    for (const Json& item : page.at(list)) all.at(list).push_back(item);
    token = page.at("next_page_token");
  }
  return all;
}

std::string Text(const Json& message, const char* field) {
  return message.at(field).get<std::string>();
}

// Protobuf's JSON has 64-bit numbers as texts.
int64_t Number(const Json& message, const char* field) {
  int64_t number = 0;
  static_cast<void>(absl::SimpleAtoi(Text(message, field), &number));
  return number;
}

// A message whose fields are 64-bit numbers, except `others`.
Json WithNumbers(const Json& message, absl::Span<const absl::string_view> others = {}) {
  Json json = message;
  for (const auto& [field, value] : message.items()) {
    if (absl::c_linear_search(others, field)) continue;
    json[field] = Number(message, field.c_str());
  }
  return json;
}

void PrintInfo(const Json& info, const ChosenTransport& transport, const Json& regions) {
  absl::PrintF("version     %s\ninstance    %s\nuptime      %.1f s\ntransports  %s\n",
               Text(info, "version"), Text(info, "instance_id"),
               info.at("uptime_seconds").get<double>(),
               absl::StrJoin(info.at("transports").get<std::vector<std::string>>(), ", "));
  absl::PrintF("this call   %s%s\n", Name(transport.transport),
               transport.reason.empty() ? "" : absl::StrCat(" (", transport.reason, ")"));
  for (const Json& region : regions) {
    absl::PrintF("region      %s, %d bytes of this connection\n", Text(region, "kind"),
                 Number(region, "byte_size"));
  }
  for (const Json& device : info.at("devices")) {
    absl::PrintF("device      %s  %s\n", Text(device, "name"), Text(device, "detail"));
  }
  for (const Json& limit : info.at("limits")) {
    absl::PrintF("limit       %s = %d\n", Text(limit, "name"), Number(limit, "value"));
  }
  const Json& cache = info.at("table_cache");
  absl::PrintF("tables      %d, %d pages, %d of %d bytes\n", Number(cache, "tables"),
               Number(cache, "pages"), Number(cache, "bytes"), Number(cache, "budget_bytes"));
  absl::PrintF("pages       %d hits, %d misses, %d builds, %d evictions\n", Number(cache, "hits"),
               Number(cache, "misses"), Number(cache, "builds"), Number(cache, "evictions"));
}

void PrintInfoJson(const Json& info, const ChosenTransport& transport, const Json& regions) {
  Json json = {{"version", info.at("version")},
               {"instance_id", info.at("instance_id")},
               {"uptime_seconds", info.at("uptime_seconds").get<double>()},
               {"transports", info.at("transports")},
               {"transport", Name(transport.transport)},
               {"transport_reason", transport.reason},
               {"regions", Json::array()},
               {"devices", info.at("devices")},
               {"limits", Json::object()}};
  for (const Json& region : regions) {
    json["regions"].push_back(
        {{"byte_size", Number(region, "byte_size")}, {"kind", region.at("kind")}});
  }
  for (const Json& limit : info.at("limits")) {
    json["limits"][Text(limit, "name")] = Number(limit, "value");
  }
  json["table_cache"] = WithNumbers(info.at("table_cache"));
  absl::PrintF("%s", JsonText(json));
}

void PrintConnections(const Json& list) {
  size_t width = absl::string_view("owner").size();
  for (const Json& each : list.at("connections"))
    width = std::max(width, Text(each, "owner").size());
  const auto owner_width = static_cast<int>(width);
  absl::PrintF("%10s %-*s %-9s %10s %9s %9s %13s %13s %11s\n", "connection", owner_width, "owner",
               "transport", "calls", "in flight", "cancelled", "message bytes", "read bytes",
               "reply bytes");
  for (const Json& each : list.at("connections")) {
    const std::string transport = Text(each, "transport");
    absl::PrintF("%10s %-*s %-9s %10d %9d %9d %13d %13s %11d\n", Text(each, "connection_id"),
                 owner_width, Text(each, "owner"), transport, Number(each, "calls"),
                 Number(each, "calls_in_flight"), Number(each, "calls_cancelled"),
                 Number(each, "message_bytes"), transport == "tcp" ? Text(each, "read_bytes") : "-",
                 Number(each, "reply_bytes"));
  }
  const std::string owner = Text(list, "owner");
  if (owner.empty()) return;
  absl::PrintF("Connections of %s alone. The server's user sees all, on a Unix socket.\n", owner);
}

void PrintConnectionsJson(const Json& list) {
  Json json = {{"owner", list.at("owner")}, {"connections", Json::array()}};
  for (const Json& each : list.at("connections")) {
    json["connections"].push_back(WithNumbers(each, {"owner", "transport"}));
  }
  absl::PrintF("%s", JsonText(json));
}

Result<int> RunHealth(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  if (arguments.positional().size() > 1) return Misused("got two services, want one at most");
  const auto wait = arguments.Duration("wait").value_or(std::chrono::nanoseconds(0));
  const auto end = Clock::now() + std::min<std::chrono::nanoseconds>(wait, kWaitMax);
  Result<ServingStatus> health = AskHealth(arguments);
  while ((!health.ok() || *health != ServingStatus::kServing) && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    health = AskHealth(arguments);
  }
  if (!health.ok()) return health.status();
  absl::PrintF("%s", arguments.Has("json") ? JsonText({{"status", Name(*health)}})
                                           : absl::StrCat(Name(*health), "\n"));
  return *health == ServingStatus::kServing ? kExitOk : kExitFailed;
}

Result<int> RunInfo(const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectTo(arguments));
  ROPE_ASSIGN_OR_RETURN(const Json info, Ask(client, arguments, "GetServerInfo"));
  ROPE_ASSIGN_OR_RETURN(const Json regions, Ask(client, arguments, "ListRegions"));
  const auto print = arguments.Has("json") ? &PrintInfoJson : &PrintInfo;
  print(info, client.transport(), regions.at("regions"));
  return kExitOk;
}

Result<int> RunConnections(const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectTo(arguments));
  ROPE_ASSIGN_OR_RETURN(const Json list,
                        AskAll(client, arguments, "ListConnections", "connections"));
  arguments.Has("json") ? PrintConnectionsJson(list) : PrintConnections(list);
  return kExitOk;
}

std::string PairingName(const Json& model) {
  const Json& pairing = model.at("pairing");
  if (!pairing.is_string()) return "unspecified";  // of a newer server
  return absl::AsciiStrToLower(absl::StripPrefix(pairing.get<std::string>(), "PAIRING_"));
}

Json JsonOf(const Json& model) {
  Json json =
      WithNumbers(model, {"name", "origin", "rope_type", "rope_theta", "pairing", "layer_types"});
  json["rope_theta"] = model.at("rope_theta").get<double>();
  json["pairing"] = PairingName(model);
  return json;
}

void PrintTable(const Json& models) {
  size_t width = absl::string_view("model").size();
  for (const Json& model : models) width = std::max(width, Text(model, "name").size());
  const auto name_width = static_cast<int>(width);
  absl::PrintF("%-*s %-12s %10s %8s %6s %-11s %9s %9s %s\n", name_width, "model", "type", "theta",
               "head_dim", "rotary", "pairing", "heads q/k", "length", "origin");
  for (const Json& model : models) {
    const auto types = model.at("layer_types").get<std::vector<std::string>>();
    absl::PrintF("%-*s %-12s %10g %8d %6d %-11s %9s %9d %s%s\n", name_width, Text(model, "name"),
                 Text(model, "rope_type"), model.at("rope_theta").get<double>(),
                 Number(model, "head_dim"), Number(model, "rotary_dim"), PairingName(model),
                 absl::StrCat(Text(model, "num_heads"), "/", Text(model, "num_kv_heads")),
                 Number(model, "max_position_embeddings"), Text(model, "origin"),
                 types.empty() ? "" : absl::StrCat(" (", absl::StrJoin(types, ", "), ")"));
  }
}

Result<int> RunModels(const Arguments& arguments) {
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectToAny(arguments));
  ROPE_ASSIGN_OR_RETURN(const Json models, AskAll(client, arguments, "ListModels", "models"));
  if (!arguments.Has("json")) {
    PrintTable(models.at("models"));
    return kExitOk;
  }
  Json list = Json::array();
  for (const Json& model : models.at("models")) list.push_back(JsonOf(model));
  absl::PrintF("%s", JsonText(list));
  return kExitOk;
}

}  // namespace

Command HealthCommand() {
  return {"health",
          "[SERVICE]",
          "Prints the server's state; status 0 only if it is SERVING.",
          {{"wait", FlagKind::kDuration, "DURATION", "Wait that long for SERVING."}, kJsonFlag},
          &RunHealth};
}

Command InfoCommand() {
  return {"info",
          "",
          "Version, devices, limits, table cache and shared memory of the server.",
          {kJsonFlag},
          &RunInfo};
}

Command ConnectionsCommand() {
  return {"connections",
          "",
          "Lists the connections of the server's clients: owner, transport, calls, bytes.",
          {kJsonFlag},
          &RunConnections};
}

Command ModelsCommand() {
  return {"models",    "",         "Lists the models that the engine knows by name.",
          {kJsonFlag}, &RunModels, Command::Asks::kAny};
}

}  // namespace rope::client
