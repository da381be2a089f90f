// What a file is before it is read: a config of another project becomes the config.json that says
// the same, and keys stand where the config class of transformers looks for them. Internal to
// config_json.
//
// Threading:  Pure functions; any thread.
// Source:     transformers 5.23.0, modeling_rope_utils.py, RotaryEmbeddingConfigMixin, and the
//             overrides of convert_rope_params_to_dict and __post_init__ in models/.
#ifndef ROPE_KERNELS_CONFIG_PLACEMENT_H_
#define ROPE_KERNELS_CONFIG_PLACEMENT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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

// A key that the config class does not read, taken out of the file.
struct UnreadKey {
  std::string key;
  nlohmann::json value;
};

struct Completed {
  std::vector<Remark> remarks;    // defaults that decide the rotation, and what the class loses
  std::vector<UnreadKey> unread;  // worth a remark if another value is used
  bool both_blocks = false;       // rope_scaling replaced rope_parameters
};

// Makes of the model of `file` (its text_config, or the file itself) what its config class does:
// keys that the class spells differently get their usual names, one block stays with the keys that
// the class reads, lists by layer become a block by layer type, and absent keys get the class's
// defaults. Models without a class of transformers keep their keys. Sizes are added to complete
// files only, which is what Hugging Face writes, and to sub-configs; a fragment without a head_dim
// takes the tensors'. `path` is that of `file` in its own file; empty: it is the file.
Completed CompleteModel(nlohmann::json& file, std::string_view path);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_PLACEMENT_H_
