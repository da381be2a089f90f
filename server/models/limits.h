// Bounds of models and specs.
#ifndef ROPE_SERVER_MODELS_LIMITS_H_
#define ROPE_SERVER_MODELS_LIMITS_H_

#include <cstdint>

#include "server/limits.h"

namespace rope::server::limits {

inline constexpr int64_t kConfigJsonBytesMax = 1 * kMiB;
// A larger one always goes to another thread; a smaller one only if its spec is not cached.
inline constexpr int64_t kConfigJsonHereBytesMax = 16 * kKiB;
// Memory of the embeddings of these layers: two types of layers have some 20 KiB.
inline constexpr int64_t kLayersBytesMax = 32 * kMiB;
// Specs whose resolution is kept, and so the most config_ids. The byte limits of specs and prepared
// requests cap their shares of --memory_bytes (DivideMemory).
inline constexpr int64_t kSpecsMax = 4096;

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_MODELS_LIMITS_H_
