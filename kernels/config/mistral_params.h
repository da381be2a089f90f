// Mistral's params.json, the config beside consolidated weights, as a config.json that says the
// same.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_MISTRAL_PARAMS_H_
#define ROPE_KERNELS_CONFIG_MISTRAL_PARAMS_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/remark.h"

namespace rope::kernels {

// Rewrites `file` if it is a params.json, and returns a note that says so. The pairs of
// consolidated weights are interleaved. Invalid values are left for the reader of a config.json,
// which names them by its own keys.
std::vector<Remark> ReadMistralParams(nlohmann::json& file);

// The same of every format of others that is known: that, and TensorRT-LLM's config.json of a
// checkpoint. INVALID_ARGUMENT names one that is known and not read: Meta's params.json,
// TensorRT-LLM's config.json of an engine, Megatron's arguments.
absl::StatusOr<std::vector<Remark>> ReadForeignFormat(nlohmann::json& file);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MISTRAL_PARAMS_H_
