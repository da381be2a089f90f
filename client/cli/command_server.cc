// health, models, info: what the server says about itself.
#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/commands.h"

namespace rope::client {
namespace {

constexpr std::chrono::nanoseconds kNoWait{0};
constexpr std::chrono::hours kWaitMax{24};

Result<ServingStatus> AskHealth(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments, {.require_serving = false});
  if (!client.ok()) return client.status();
  const std::string service =
      arguments.positional().empty() ? std::string() : arguments.positional().front();
  return client->Health(service, CallOptionsOf(arguments));
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
  absl::PrintF("%s\n", Name(*health));
  return *health == ServingStatus::kServing ? kExitOk : kExitFailed;
}

int RunModels(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto models = client->ListModels(CallOptionsOf(arguments));
  if (!models.ok()) return Fail(models.status());
  size_t width = absl::string_view("model").size();
  for (const Model& model : *models) width = std::max(width, model.name.size());
  const auto name_width = static_cast<int>(width);
  absl::PrintF("%-*s %-12s %10s %8s %6s %-11s %9s %9s %s\n", name_width, "model", "type", "theta",
               "head_dim", "rotary", "pairing", "heads q/k", "length", "origin");
  for (const Model& model : *models) {
    absl::PrintF("%-*s %-12s %10g %8d %6d %-11s %9s %9d %s%s\n", name_width, model.name,
                 model.rope_type, model.rope_theta, model.head_dim, model.rotary_dim,
                 Name(model.pairing), absl::StrCat(model.num_heads, "/", model.num_kv_heads),
                 model.max_position_embeddings, model.origin,
                 model.layer_types.empty()
                     ? ""
                     : absl::StrCat(" (", absl::StrJoin(model.layer_types, ", "), ")"));
  }
  return kExitOk;
}

int RunInfo(const Arguments& arguments) {
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  const auto info = client->GetServerInfo(CallOptionsOf(arguments));
  if (!info.ok()) return Fail(info.status());
  absl::PrintF("version     %s\ninstance    %s\nuptime      %.1f s\ntransports  %s\n",
               info->version, info->instance_id, info->uptime_seconds,
               absl::StrJoin(info->transports, ", "));
  for (const Device& device : info->devices) {
    absl::PrintF("device      %s  %s\n", device.name, device.detail);
  }
  for (const Limit& limit : info->limits) {
    absl::PrintF("limit       %s = %d\n", limit.name, limit.value);
  }
  const TableCacheStatistics& cache = info->table_cache;
  absl::PrintF("tables      %d, %d pages, %d of %d bytes\n", cache.tables, cache.pages, cache.bytes,
               cache.budget_bytes);
  absl::PrintF("pages       %d hits, %d misses, %d builds, %d evictions\n", cache.hits,
               cache.misses, cache.builds, cache.evictions);
  return kExitOk;
}

}  // namespace rope::client
