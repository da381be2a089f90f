// What Server answers to GetServerInfo.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "proto/version.h"
#include "server/control/admin.h"
#include "server/limits.h"
#include "server/server.h"

namespace rope::server {

v1::GetServerInfoResponse Server::Info() const {
  v1::GetServerInfoResponse info;
  info.set_version(proto::kVersion);
  info.set_instance_id(instance_id_);
  info.set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - started_));
  for (const DeviceRouter::Device& listed : devices_->list()) {
    v1::Device& device = *info.add_devices();
    device.set_name(listed.name);
    device.set_detail(listed.detail);
  }
  info.add_transports("inline");
  if (options_.shared_memory.enabled) {
    const auto is_unix = [](const std::string& a) { return absl::StartsWith(a, kUnixPrefix); };
    if (std::ranges::any_of(options_.listen, is_unix)) {
      info.add_transports("ring");
      info.add_transports("memfd");
    }
    info.add_transports("shm");
    info.set_shm_prefix(options_.shared_memory.prefix);
  }
  const std::pair<const char*, int64_t> bounds[] = {
      {"max_message_bytes", shares_.message},
      {"position_max", limits::kPositionMax},
      {"tensors_max", limits::kTensorsMax},
      {"tokens_max", limits::kTokensMax},
      {"config_json_bytes_max", limits::kConfigJsonBytesMax},
      {"describe_positions_max", limits::kDescribePositionsMax},
      {"tables_rows_max", limits::kTablesRowsMax},
      {"tables_bytes_max", std::min(limits::kTablesBytesMax, shares_.message)},
      {"concurrent_streams_max", limits::kConcurrentStreamsMax},
      {"registered_models_max", limits::kRegisteredModelsMax},
      {"regions_max", options_.shared_memory.regions_max},
      {"session_memory_bytes", options_.shared_memory.session_bytes_max},
      {"shared_memory_bytes", options_.shared_memory.bytes_max},
  };
  for (const auto& [name, value] : bounds) {
    v1::Limit& limit = *info.add_limits();
    limit.set_name(name);
    limit.set_value(value);
  }
  for (const BudgetUse& use : Budgets()) {
    v1::Budget& budget = *info.add_budgets();
    budget.set_name(std::string(use.name));
    budget.set_limit(use.limit);
    budget.set_used(use.used);
    for (const BudgetUse::Refusal& refusal : use.refusals) {
      v1::Refusal& added = *budget.add_refusals();
      added.set_reason(std::string(refusal.reason));
      added.set_count(refusal.count);
    }
  }
  *info.mutable_table_cache() = WriteStatistics(*tables_);
  return info;
}

}  // namespace rope::server
