// The config_id of a rotary embedding: a hash of what it means.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_MODELS_CONFIG_ID_H_
#define ROPE_SERVER_MODELS_CONFIG_ID_H_

#include <string>

#include "kernels/describe.h"

namespace rope::server {

// The first 128 bits of a SHA-256, as 32 hex digits. It covers the config as the spec's `compat`
// interprets it, the precision, the pairing, the layer type, whether the layer rotates, and a
// format version. Names of models, warnings and the way the config was given are not in it. So
// equal embeddings have one id on every server, and nobody can find a config for a given id.
std::string ConfigIdOf(const kernels::LayerRope& rope);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_CONFIG_ID_H_
