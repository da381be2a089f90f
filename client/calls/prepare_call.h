// Asks a link's server to prepare again what it has forgotten. Does nothing while another
// question about the same rotation is under way.
//
// Of several servers the next in turn is asked, and not the one that has forgotten. One to four
// questions follow each other, by `random` in [0, 1): a fixed number of calls for each rotation
// could meet the same servers for ever.
//
// Threading:  As documented at each function. No lock is held while the server works.
// Errors:     None are returned: without the preparation, the next call goes whole too.
#ifndef ROPE_CLIENT_CALLS_PREPARE_CALL_H_
#define ROPE_CLIENT_CALLS_PREPARE_CALL_H_

#include <functional>
#include <memory>

#include "client/calls/event_loop.h"
#include "client/transport/connector.h"
#include "rope/prepared.h"

namespace rope::client {

// Waits for the answer, for at most half a second.
void PrepareAgain(const Link& link, const PreparedRotation& rotation, const RpcOptions& options,
                  const std::function<double()>& random);
// Returns at once; the answer arrives on the queue's thread.
void StartPrepareAgain(const std::shared_ptr<const Link>& link,
                       const std::shared_ptr<EventQueue>& queue, const PreparedRotation& rotation,
                       const Metadata& metadata, const std::function<double()>& random);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_PREPARE_CALL_H_
