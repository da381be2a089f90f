// Asynchronous calls (Client::RotateAsync). They return at once and deliver the reply to a callback
// or a future: as one RPC each, or through the ring without an RPC.
//
// Threading:  Thread-safe. Callbacks run on the connection's background threads, which sleep while
//             they have nothing to do: one thread for all RPCs, and with
//             Transport::kRing a second one for calls through the ring. Each thread runs one
//             callback at a time; the two may run at the same time. Do not block in a callback: it
//             delays every other reply on its thread. A callback may call the client, start the
//             next call, and destroy the last copy of the client.
// Ownership:  The request is copied. The memory of its tensors is borrowed until the callback runs
//             or the future is ready. After that the library neither reads nor writes that memory,
//             even if the call was cancelled.
// Errors:     As Client::Rotate. CANCELLED: Call::Cancel, or the last copy of the client was
//             destroyed.
// Limits:     The thread of a callback also copies the reply to its outputs; for more throughput,
//             open more connections. If the server stops reading in the middle of a
//             request, the request's memory and its callback are held for as long as client.h says
//             under Limits.
#ifndef ROPE_ASYNC_H_
#define ROPE_ASYNC_H_

#include <functional>
#include <utility>

#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

// Receives the reply, or the status of the failed call.
using RotateCallback = std::function<void(Result<RotateReply>)>;

// Handle of one asynchronous call, used only to cancel it. Destroying it does not affect the call.
class Call {
 public:
  Call() = default;  // refers to no call
  // `cancel` is thread-safe and may run repeatedly, also after the call has ended.
  explicit Call(std::function<void()> cancel) : cancel_(std::move(cancel)) {}

  // Requests cancellation. The callback soon receives CANCELLED, or the reply if that comes first.
  // May be called at any time and repeatedly.
  void Cancel() const {
    if (cancel_ != nullptr) cancel_();
  }

 private:
  std::function<void()> cancel_;
};

}  // namespace rope::client

#endif  // ROPE_ASYNC_H_
