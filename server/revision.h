// The revision of the sources that this program was built from.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REVISION_H_
#define ROPE_SERVER_REVISION_H_

namespace rope::server {

// What CMake was told (ROPE_REVISION), or git's short hash when CMake last ran; else "unknown".
const char* Revision();

}  // namespace rope::server

#endif  // ROPE_SERVER_REVISION_H_
