#include "server/admin.h"

#include <utility>

#include "kernels/status_macros.h"

namespace rope::server {

v1::ListModelsResponse ListModels(const ModelRegistry& registry) {
  v1::ListModelsResponse response;
  for (v1::Model& model : registry.List()) *response.add_models() = std::move(model);
  return response;
}

absl::StatusOr<v1::RegisterModelResponse> RegisterModel(const v1::RegisterModelRequest& request,
                                                        ModelRegistry& registry) {
  return registry.Register(request.name(), request.rope());
}

absl::StatusOr<v1::UnregisterModelResponse> UnregisterModel(
    const v1::UnregisterModelRequest& request, ModelRegistry& registry) {
  ROPE_RETURN_IF_ERROR(registry.Unregister(request.name()));
  return v1::UnregisterModelResponse();
}

absl::StatusOr<v1::RegisterRegionResponse> RegisterRegion(const v1::RegisterRegionRequest& request,
                                                          uint64_t session, RegionTable& regions) {
  v1::RegisterRegionResponse response;
  ROPE_ASSIGN_OR_RETURN(
      const uint64_t id,
      regions.RegisterPosix(session, request.shm_name(), request.offset(), request.byte_size()));
  response.set_region_id(id);
  return response;
}

absl::StatusOr<v1::UnregisterRegionResponse> UnregisterRegion(
    const v1::UnregisterRegionRequest& request, uint64_t session, RegionTable& regions) {
  ROPE_RETURN_IF_ERROR(regions.Unregister(session, request.region_id()));
  return v1::UnregisterRegionResponse();
}

v1::ListRegionsResponse ListRegions(uint64_t session, const RegionTable& regions) {
  v1::ListRegionsResponse response;
  for (const RegionTable::Listed& listed : regions.List(session)) {
    v1::Region& region = *response.add_regions();
    region.set_region_id(listed.id);
    region.set_byte_size(listed.bytes);
    region.set_kind(listed.kind == Region::Kind::kMemfd ? "memfd" : "shm");
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
