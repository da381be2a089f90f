// The version of this release, as programs and GetServerInfo say it.
#ifndef ROPE_PROTO_VERSION_H_
#define ROPE_PROTO_VERSION_H_

namespace rope::proto {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace rope::proto

#endif  // ROPE_PROTO_VERSION_H_
