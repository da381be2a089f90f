// The control plane's answers: models, memory regions, table-cache statistics.
//
// Threading:  Functions only; the registry and the cache are thread-safe. RegisterModel parses a
//             config.json of at most limits::kConfigJsonBytesMax, which takes milliseconds; nothing
//             else here takes long.
// Errors:     As ModelRegistry::Register and ModelRegistry::Unregister; as RegionTable.
//             INVALID_ARGUMENT: an id to register again beside an object to register.
#ifndef ROPE_SERVER_CONTROL_ADMIN_H_
#define ROPE_SERVER_CONTROL_ADMIN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/tables/table_cache.h"
#include "rope/v1/admin.pb.h"
#include "server/memory/regions.h"
#include "server/models/model_registry.h"

namespace rope::server {

v1::ListModelsResponse ListModels(const ModelRegistry& registry);

// `owner`: whose call it is (peers.h).
absl::StatusOr<v1::RegisterModelResponse> RegisterModel(const v1::RegisterModelRequest& request,
                                                        const std::string& owner,
                                                        ModelRegistry& registry);

absl::StatusOr<v1::UnregisterModelResponse> UnregisterModel(
    const v1::UnregisterModelRequest& request, const std::string& owner, ModelRegistry& registry);

absl::StatusOr<v1::RegisterRegionResponse> RegisterRegion(const v1::RegisterRegionRequest& request,
                                                          uint64_t session, RegionTable& regions);

// Calls `done` once: before it returns, or where the request waits as RegionTable::Unregister says.
using UnregisterRegionDone = std::function<void(absl::StatusOr<v1::UnregisterRegionResponse>)>;
void UnregisterRegion(const v1::UnregisterRegionRequest& request, uint64_t session,
                      RegionTable& regions, const UnregisterRegionDone& done);

v1::ListRegionsResponse ListRegions(uint64_t session, const RegionTable& regions);

v1::TableCacheStatistics WriteStatistics(const kernels::TableCache& tables);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_ADMIN_H_
