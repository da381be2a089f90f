// Calls whose replies the client does not read, and what became of them.
//
// Threading:  Functions only; a peer is confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_UNREAD_REPLIES_H_
#define ROPE_TESTS_SUPPORT_UNREAD_REPLIES_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <string>
#include <string_view>

#include "tests/support/http2_peer.h"

namespace rope::testing {

// The calls of one connection, by their state.
struct UnreadReplies {
  int held = 0;
  int refused = 0;
  int refused_with_pushback = 0;
  int cancelled = 0;  // by the server, because others were refused
};

inline UnreadReplies CountUnread(const Http2Peer& peer) {
  UnreadReplies count;
  for (const auto& [id, stream] : peer.streams()) {
    if (stream.held()) ++count.held;
    const bool refused = stream.code == grpc::StatusCode::RESOURCE_EXHAUSTED;
    if (stream.ended() && !refused) ++count.cancelled;
    if (!refused) continue;
    ++count.refused;
    if (!stream.pushback.empty()) ++count.refused_with_pushback;
  }
  return count;
}

// Starts `count` calls and does not read the replies. Returns once each call is refused, or held
// unread, or has waited 20 seconds.
inline void CallWithoutReading(Http2Peer& peer, std::string_view path, const std::string& message,
                               int count) {
  for (int i = 0; i < count && !peer.lost(); ++i) {
    const uint32_t stream = peer.StartCall(path);
    peer.SendPart(stream, message, message.size(), /*last=*/true);
    const auto settled = [&] { return peer.stream(stream).held() || peer.IsOver(stream); };
    if (!peer.Await(settled, std::chrono::seconds(20))) return;
  }
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_UNREAD_REPLIES_H_
