// Answers of the control plane: models, connections, table-cache statistics.
//
// Threading:  Functions only, all of them quick; the registry and the cache are thread-safe.
#ifndef ROPE_SERVER_CONTROL_ADMIN_H_
#define ROPE_SERVER_CONTROL_ADMIN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/tables/table_cache.h"
#include "rope/v1/admin.pb.h"
#include "server/clients/connections.h"
#include "server/limits.h"
#include "server/models/model_registry.h"

namespace rope::server {

// Bytes of a page of ListModels, unless its only model is larger. gRPC's clients accept 4 MiB.
inline constexpr int64_t kModelsPageBytesMax = 1 * limits::kMiB;

// INVALID_ARGUMENT: a negative page_size.
absl::StatusOr<v1::ListModelsResponse> ListModels(const v1::ListModelsRequest& request,
                                                  const ModelRegistry& registry);

// `owner`: of the caller, who sees the connections of this owner, or all if it is the server's own
// user or root.
// INVALID_ARGUMENT: a negative page_size; a page_token that is no connection_id.
absl::StatusOr<v1::ListConnectionsResponse> ListConnections(
    const v1::ListConnectionsRequest& request, const std::string& owner,
    const Connections& connections);

v1::TableCacheStatistics WriteStatistics(const kernels::TableCache& tables);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_ADMIN_H_
