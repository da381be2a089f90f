// The version of this release, as programs and GetServerInfo say it: that of project() in the top
// CMakeLists.txt.
#ifndef ROPE_PROTO_VERSION_H_
#define ROPE_PROTO_VERSION_H_

namespace rope::proto {

extern const char* const kVersion;

}  // namespace rope::proto

#endif  // ROPE_PROTO_VERSION_H_
