// The control plane's answers: models, memory regions, table-cache statistics.
//
// Threading:  Functions only; the registry and the cache are thread-safe. RegisterModel parses a
//             config.json of at most limits::kConfigJsonBytesMax, which takes milliseconds; nothing
//             else here takes long.
// Errors:     As ModelRegistry::Register and ModelRegistry::Unregister; as RegionTable.
#ifndef ROPE_SERVER_ADMIN_H_
#define ROPE_SERVER_ADMIN_H_

#include "absl/status/statusor.h"
#include "kernels/table_cache.h"
#include "rope/v1/admin.pb.h"
#include "server/model_registry.h"
#include "server/regions.h"

namespace rope::server {

v1::ListModelsResponse ListModels(const ModelRegistry& registry);

absl::StatusOr<v1::RegisterModelResponse> RegisterModel(const v1::RegisterModelRequest& request,
                                                        ModelRegistry& registry);

absl::StatusOr<v1::UnregisterModelResponse> UnregisterModel(
    const v1::UnregisterModelRequest& request, ModelRegistry& registry);

absl::StatusOr<v1::RegisterRegionResponse> RegisterRegion(const v1::RegisterRegionRequest& request,
                                                          uint64_t session, RegionTable& regions);

absl::StatusOr<v1::UnregisterRegionResponse> UnregisterRegion(
    const v1::UnregisterRegionRequest& request, uint64_t session, RegionTable& regions);

v1::ListRegionsResponse ListRegions(uint64_t session, const RegionTable& regions);

v1::TableCacheStatistics WriteStatistics(const kernels::TableCache& tables);

}  // namespace rope::server

#endif  // ROPE_SERVER_ADMIN_H_
