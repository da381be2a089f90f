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
