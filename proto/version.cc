#include "proto/version.h"

namespace rope::proto {

const char* const kVersion = ROPE_VERSION_TEXT;

}  // namespace rope::proto
