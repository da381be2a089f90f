#include "server/revision.h"

namespace rope::server {

const char* Revision() {
  return ROPE_REVISION_TEXT;  // CMakeLists.txt
}

}  // namespace rope::server
