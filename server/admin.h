// The control plane's answers: models, table-cache statistics.
//
// Threading:  Functions only; the registry and the cache are thread-safe. RegisterModel parses a
//             config.json of at most limits::kConfigJsonBytesMax, which takes milliseconds; nothing
//             else here takes long.
// Errors:     As ModelRegistry::Register and ModelRegistry::Unregister.
#ifndef ROPE_SERVER_ADMIN_H_
#define ROPE_SERVER_ADMIN_H_

#include "absl/status/statusor.h"
#include "kernels/table_cache.h"
#include "rope/v1/admin.pb.h"
#include "server/model_registry.h"

namespace rope::server {

v1::ListModelsResponse ListModels(const ModelRegistry& registry);

absl::StatusOr<v1::RegisterModelResponse> RegisterModel(const v1::RegisterModelRequest& request,
                                                        ModelRegistry& registry);

absl::StatusOr<v1::UnregisterModelResponse> UnregisterModel(
    const v1::UnregisterModelRequest& request, ModelRegistry& registry);

v1::TableCacheStatistics WriteStatistics(const kernels::TableCache& tables);

}  // namespace rope::server

#endif  // ROPE_SERVER_ADMIN_H_
