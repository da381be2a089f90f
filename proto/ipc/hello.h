// The hello: an optional exchange at the start of a connection on a Unix socket, before HTTP/2. The
// client passes a memory region, a memfd sealed against shrinking; the server answers with the
// region's id. The client may also pass a ring (ring.h), a second memfd sealed in the same way.
//
//   1. client -> server: one sendmsg of 32 bytes with one descriptor (SCM_RIGHTS), or two with a
//      ring. The client sends nothing else until it has the answer.
//      magic "RoPEmem1", u32 version = 2, u32 flags = 0, u64 bytes, u64 ring_bytes (0: no ring)
//   2. server -> client: 32 bytes. If the server serves the ring, with one descriptor: the
//      doorbell, with which the client wakes the server.
//      magic "RoPEmem1", u32 version = 2, u32 code (google.rpc.Code), u64 session, u64 region_id
//   3. HTTP/2, whatever the code. If it is not OK, the connection has no shared memory.
//
// Integers are little-endian. An HTTP/2 preface begins with "P", a hello with "R": the server
// distinguishes them by the first byte, and a client without memory skips the exchange.
//
// Threading:  Functions only.
// Ownership:  The caller keeps its sockets and descriptors.
#ifndef ROPE_PROTO_IPC_HELLO_H_
#define ROPE_PROTO_IPC_HELLO_H_

#include <sys/types.h>

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
  uint64_t bytes = 0;       // size of the region's file
  uint64_t ring_bytes = 0;  // size of the ring's file; 0: no ring
};

struct ServerHello {
  absl::StatusCode code = absl::StatusCode::kOk;  // not OK: why the region was refused
  uint64_t session = 0;                           // unique per connection
  uint64_t region_id = 0;                         // for Array.region; 0 if code is not OK
};

HelloBytes Encode(const ClientHello& hello);
HelloBytes Encode(const ServerHello& hello);

// INVALID_ARGUMENT: not a hello. UNIMPLEMENTED: another version, or unknown flags.
absl::StatusOr<ClientHello> DecodeClientHello(const HelloBytes& bytes);
absl::StatusOr<ServerHello> DecodeServerHello(const HelloBytes& bytes);

// Sends the 32 bytes with `descriptors`. `flags` are those of sendmsg. False: not all was sent.
// REQUIRES: at most kHelloDescriptorsMax descriptors.
bool SendHello(int socket, const HelloBytes& bytes, absl::Span<const int> descriptors, int flags);

// A hello that is being received: a stream socket may deliver it in parts.
struct PartialHello {
  HelloBytes bytes = {};
  size_t have = 0;
  std::vector<FileDescriptor> descriptors;  // the first kHelloDescriptorsMax
  bool has_more_descriptors = false;        // further ones came, and were closed

  bool is_complete() const { return have == bytes.size(); }
  // Receives more of the hello with one recvmsg. `flags` and the result are those of recvmsg.
  ssize_t ReceiveSome(int socket, int flags);
};

struct HelloAnswer {
  ServerHello hello;
  FileDescriptor doorbell;  // empty: the server does not serve the ring
};

// The client's side, on a blocking socket: sends `hello` with the descriptors of the region and, if
// there is one, of the ring; then reads the answer.
// UNAVAILABLE: the connection ended, or the socket's timeout (SO_RCVTIMEO) passed; close the
// socket. INVALID_ARGUMENT, UNIMPLEMENTED: as DecodeServerHello.
absl::StatusOr<HelloAnswer> ExchangeHello(int socket, const ClientHello& hello,
                                          absl::Span<const int> descriptors);

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_HELLO_H_
