// KeptBytes: the memory that parsed configs and resolved embeddings keep, approximately.
//
// The bytes of a value are what it has allocated; those of a ResolvedRope, which is always
// allocated, include the object.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_SERVER_MODELS_KEPT_BYTES_H_
#define ROPE_SERVER_MODELS_KEPT_BYTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::server {

int64_t KeptBytes(const std::string& text);
int64_t KeptBytes(const std::vector<std::string>& texts);
int64_t KeptBytes(const kernels::RopeConfig& config);
int64_t KeptBytes(const kernels::LayerConfig& layer);
int64_t KeptBytes(const kernels::ModelConfig& config);
int64_t KeptBytes(const kernels::ResolvedRope& rope);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_KEPT_BYTES_H_
