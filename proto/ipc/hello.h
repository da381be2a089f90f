// The hello of a connection on a Unix socket, before the HTTP/2 preface: the client brings a memory
// region, a memfd sealed against shrinking, and the server says what it is called. The client may
// bring a ring too (ring.h), a second memfd sealed in the same way.
//
//   1. client -> server: one sendmsg of 32 bytes with exactly one descriptor (SCM_RIGHTS), or two
//      where it brings a ring, and then nothing until it is answered:
//      magic "RoPEmem1", u32 version = 1, u32 flags = 0, u64 bytes, u64 ring_bytes (0: no ring)
//   2. server -> client: 32 bytes, with one descriptor, the doorbell, where it serves the ring:
//      magic "RoPEmem1", u32 version = 1, u32 code (google.rpc.Code), u64 session, u64 region_id
//   3. HTTP/2, whatever the code was: other than OK it is a plain connection without memory.
//
// Integers are little-endian. An HTTP/2 preface begins with "P", so that one byte tells the two
// apart and a client without memory says no hello and waits for nobody.
//
// Threading:  Functions only.
// Ownership:  Sockets and descriptors stay the caller's.
#ifndef ROPE_PROTO_IPC_HELLO_H_
#define ROPE_PROTO_IPC_HELLO_H_

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/ipc/file_descriptor.h"

namespace rope::proto {

inline constexpr size_t kHelloBytes = 32;
inline constexpr size_t kHelloDescriptorsMax = 2;
inline constexpr char kHelloFirstByte = 'R';
using HelloBytes = std::array<char, kHelloBytes>;

struct ClientHello {
  uint64_t bytes = 0;       // of the region: the file's size
  uint64_t ring_bytes = 0;  // of the ring's file; 0: none
};

struct ServerHello {
  absl::StatusCode code = absl::StatusCode::kOk;  // why there is no region
  uint64_t session = 0;                           // never the same for two connections
  uint64_t region_id = 0;                         // for Array.region; 0 beside a code
};

HelloBytes Encode(const ClientHello& hello);
HelloBytes Encode(const ServerHello& hello);

// INVALID_ARGUMENT: not a hello. UNIMPLEMENTED: another version, or flags.
absl::StatusOr<ClientHello> DecodeClientHello(const HelloBytes& bytes);
absl::StatusOr<ServerHello> DecodeServerHello(const HelloBytes& bytes);

// Sends 32 bytes with descriptors; `flags` are those of sendmsg. False: they did not all go.
// REQUIRES: at most kHelloDescriptorsMax descriptors.
bool SendHello(int socket, const HelloBytes& bytes, absl::Span<const int> descriptors, int flags);

// Those that came with a message which recvmsg has filled, the caller's from then on.
std::vector<FileDescriptor> DescriptorsOf(msghdr& message);

struct HelloAnswer {
  ServerHello hello;
  FileDescriptor doorbell;  // none: the server does not serve the ring
};

// The client's half on a blocking socket: sends `hello` with the region's memfd, and the ring's
// where there is one, and reads the answer.
// UNAVAILABLE: the connection ended, or a time that was set on the socket (SO_RCVTIMEO) has passed;
// the socket is of no further use. INVALID_ARGUMENT, UNIMPLEMENTED: as DecodeServerHello.
absl::StatusOr<HelloAnswer> ExchangeHello(int socket, const ClientHello& hello,
                                          absl::Span<const int> descriptors);

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_HELLO_H_
