#include "server/control/admin.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/status_macros.h"
#include "server/control/limits.h"
#include "server/error.h"

namespace rope::server {
namespace {

constexpr int kPageSizeMax = 1000;
// Models that are read from the registry at once.
constexpr size_t kModelsRead = 16;

}  // namespace

// A page's token is the name of its predecessor's last model, so a model that is registered or
// unregistered between two pages moves no other one. The page ends at a model that it has no room
// for.
absl::StatusOr<v1::ListModelsResponse> ListModels(const v1::ListModelsRequest& request,
                                                  const ModelRegistry& registry) {
  if (request.page_size() < 0) {
    return InvalidField("page_size", request.page_size(), "a number >= 0");
  }
  const int count =
      request.page_size() == 0 ? kPageSizeMax : std::min(request.page_size(), kPageSizeMax);
  v1::ListModelsResponse response;
  std::string last = request.page_token();
  int64_t bytes = 0;
  while (true) {
    std::vector<v1::Model> models = registry.List(last, kModelsRead);
    for (v1::Model& model : models) {
      bytes += static_cast<int64_t>(model.ByteSizeLong());
      const bool full = response.models_size() == count || bytes > limits::kModelsPageBytesMax;
      if (full && response.models_size() > 0) {
        response.set_next_page_token(last);
        return response;
      }
      last = model.name();
      *response.add_models() = std::move(model);
    }
    if (models.size() < kModelsRead) return response;
  }
}

absl::StatusOr<v1::RegisterRegionResponse> RegisterRegion(const v1::RegisterRegionRequest& request,
                                                          uint64_t session, RegionTable& regions) {
  const bool names_object =
      !request.shm_name().empty() || request.offset() != 0 || request.byte_size() != 0;
  if (request.region_id() != 0 && names_object) {
    return InvalidField("region_id", "it and shm_name, offset or byte_size", "one of them");
  }
  v1::RegisterRegionResponse response;
  ROPE_ASSIGN_OR_RETURN(const uint64_t id,
                        request.region_id() != 0
                            ? regions.AddId(session, request.region_id())
                            : regions.RegisterPosix(session, request.shm_name(), request.offset(),
                                                    request.byte_size()));
  response.set_region_id(id);
  return response;
}

void UnregisterRegion(const v1::UnregisterRegionRequest& request, uint64_t session,
                      RegionTable& regions, const UnregisterRegionDone& done) {
  RegionTable::Released released;
  if (request.wait()) released = [done] { done(v1::UnregisterRegionResponse()); };
  const absl::Status status = regions.Unregister(session, request.region_id(), std::move(released));
  if (!status.ok()) return done(status);
  if (!request.wait()) done(v1::UnregisterRegionResponse());
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
