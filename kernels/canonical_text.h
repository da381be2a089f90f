// CanonicalText: what a rotary embedding means, as a text that is equal for equal embeddings.
//
// Threading:  A pure function; any thread.
#ifndef ROPE_KERNELS_CANONICAL_TEXT_H_
#define ROPE_KERNELS_CANONICAL_TEXT_H_

#include <string>

#include "kernels/describe.h"

namespace rope::kernels {

// A format version, the config as `compat` interprets it, precision, pairing, channel order, layer
// type, and whether the layer rotates; without names of models, warnings or the way the config was
// given. Numbers are exact. A config_id is the hash of this text.
std::string CanonicalText(const LayerRope& rope);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CANONICAL_TEXT_H_
