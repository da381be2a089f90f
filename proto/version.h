// What this program was built from.
#ifndef ROPE_PROTO_VERSION_H_
#define ROPE_PROTO_VERSION_H_

namespace rope::proto {

// The version of this release, as programs and GetServerInfo say it: that of project() in the top
// CMakeLists.txt.
extern const char* const kVersion;

// The revision of the sources, as the log and the metrics say it: what CMake was told
// (ROPE_REVISION), or git's short hash when CMake last ran; else "unknown".
extern const char* const kRevision;

}  // namespace rope::proto

#endif  // ROPE_PROTO_VERSION_H_
