// The client at the other end of a connection.
//
// The owner identifies a client across its connections, for what one client may hold. It is the
// user of a Unix socket ("uid:1000"), or the address of a TCP socket ("ip:192.0.2.7").
//
// A client cannot choose its owner: all loopback addresses are one owner, and an IPv4-mapped IPv6
// address is the IPv4 address. Clients that the server cannot tell apart are one owner as well:
// users without a number in the server's user namespace (the kernel reports each of them as
// /proc/sys/fs/overflowuid), and clients behind one proxy, unless --trusted_proxy names it.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_CLIENTS_PEERS_H_
#define ROPE_SERVER_CLIENTS_PEERS_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace rope::server {

// The owner of connections whose peer is not known.
inline constexpr char kUnknownOwner[] = "unknown";

// The owner of a Unix socket's connections whose peer is this user.
std::string OwnerOfUser(uid_t uid);
// The owner of a call that a proxy passes on: the client's certificate ("cert:" and its URI or
// hash) if the proxy tells it, else the client's address. `certificates`: x-forwarded-client-cert.
// `addresses`: x-forwarded-for. The last entry of each counts, which the proxy has written itself.
std::string ForwardedOwner(absl::string_view certificates, absl::string_view addresses);
// The owner of a connected socket's peer.
std::string OwnerOf(int socket, bool is_unix);
// gRPC's name of a TCP socket's peer, where gRPC was not given the socket as a descriptor:
// "ipv4:192.0.2.7:1234", "ipv6:[2001:db8::1]:1234". Empty: it has none.
std::string PeerNameOf(int socket);
// What gRPC says of a peer, as PeerNameOf writes it.
std::string PlainPeerName(absl::string_view name);
// The owner of a TCP socket whose peer has this address.
std::string OwnerAt(const sockaddr_storage& address);

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_PEERS_H_
