#include "rope/rope.h"

const char* rope_version(void) {
  return ROPE_VERSION_TEXT;
}
