// The config_id of a rotary embedding: a hash of what it means.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_MODELS_CONFIG_ID_H_
#define ROPE_SERVER_MODELS_CONFIG_ID_H_

#include <string>

#include "kernels/describe.h"

namespace rope::server {

// The first 128 bits of a SHA-256, as 32 hex digits. The hash covers the config as the spec's
// `compat` interprets it, precision, pairing, channel order, layer type, whether the layer rotates,
// and a format version. It does not cover names of models, warnings or the way the config was
// given. Equal embeddings have the same id on every server.
std::string ConfigIdOf(const kernels::LayerRope& rope);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_CONFIG_ID_H_
