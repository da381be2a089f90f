#include "proto/version.h"

namespace rope::proto {

const char* const kVersion = ROPE_VERSION_TEXT;
const char* const kRevision = ROPE_REVISION_TEXT;

}  // namespace rope::proto
