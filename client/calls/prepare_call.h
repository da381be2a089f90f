// Asks a session's server to prepare a request, on the calling thread or without one.
//
// Threading:  As documented at each function. No lock is held while the server works.
// Errors:     None are returned: PreparedRequests notes them.
#ifndef ROPE_CLIENT_CALLS_PREPARE_CALL_H_
#define ROPE_CLIENT_CALLS_PREPARE_CALL_H_

#include <chrono>
#include <memory>

#include "client/calls/event_loop.h"
#include "client/codec/preparation.h"
#include "client/codec/prepared_requests.h"
#include "client/transport/connector.h"
#include "client/transport/stub.h"

namespace rope::client {

// Both do nothing unless `use` is due and its turn is free.

// Waits for the answer, for at most `timeout` and half a second.
void PrepareNow(const Session& session, const PreparedUse& use, std::chrono::microseconds timeout);
// Returns at once; the answer arrives on the queue's thread.
void StartPrepare(const std::shared_ptr<const Session>& session,
                  const std::shared_ptr<EventQueue>& queue, const PreparedUse& use);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_PREPARE_CALL_H_
