// Configs of other projects, as a config.json that says the same.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_MISTRAL_PARAMS_H_
#define ROPE_KERNELS_CONFIG_MISTRAL_PARAMS_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/remark.h"

namespace rope::kernels {

// Rewrites `file` if it is Mistral's params.json, the config beside consolidated weights, whose
// pairs are interleaved, or TensorRT-LLM's config.json of a checkpoint. A note says so.
// Invalid values are left for the reader of a config.json, which names them by its own keys.
// INVALID_ARGUMENT names a format that is known and not read: Meta's params.json, TensorRT-LLM's
// config.json of an engine, Megatron's arguments.
absl::StatusOr<std::vector<Remark>> ReadForeignFormat(nlohmann::json& file);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MISTRAL_PARAMS_H_
