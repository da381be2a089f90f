// Calls that do not wait: a callback or a future in place of a thread, one RPC each
// (Client::RotateAsync) or many on one stream (Client::OpenStream).
//
// Threading:  Thread-safe. Callbacks run on the connection's background thread, which sleeps while
//             there is nothing to do; with a ring (Transport::kRing) there is a second one for
//             streams, and the two take turns. Do not block in a callback: all other answers of the
//             connection wait behind it. Calling the client from one is fine, and so is starting
//             the next call or destroying the last copy of the client.
// Ownership:  The request is copied, its tensors' memory is borrowed until the callback runs (the
//             future is ready). From then on nothing refers to that memory, and `output` is not
//             written any more, cancelled or not.
// Errors:     As Client::Rotate, and CANCELLED.
// Limits:     One background thread at a time copies the answers of a connection to their outputs:
//             for more than that, open more connections. A server that stops taking bytes in the
//             middle of a request holds that request's memory, and with it the callback, as
//             client.h says.
#ifndef ROPE_ASYNC_H_
#define ROPE_ASYNC_H_

#include <functional>
#include <future>
#include <memory>

#include "rope/options.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

class AsyncCall;
class Client;
class StreamCall;

// Takes the reply or why there is none.
using RotateCallback = std::function<void(Result<RotateReply>)>;

// Handle of one asynchronous call. Dropping it changes nothing.
class Call {
 public:
  Call() = default;  // of no call

  // Asks for the end of the call: its callback gets CANCELLED soon, or the reply if that was
  // faster. Any time, any number of times.
  void Cancel() const;

 private:
  friend class Client;
  explicit Call(std::weak_ptr<AsyncCall> call);

  std::weak_ptr<AsyncCall> call_;
};

// A stream of requests. Answers come in the order in which the server finishes; an error of one
// request ends that request only. Nothing is retried: what an error may have left done is in
// detail().executed.
//
// When the stream breaks, every unanswered request ends with the stream's status. `executed` is
// then false for a request that was not sent, or where the server says that nothing ran, else true.
class RotateStream {
 public:
  RotateStream(RotateStream&&) = default;
  RotateStream& operator=(RotateStream&& other) noexcept;
  // Cancels what is unanswered and waits until every callback has run; from a callback it does not
  // wait.
  ~RotateStream();

  // Sends a request. OK: `callback` runs exactly once; else it does not run at all.
  //
  // Where a bound of StreamOptions is reached the call blocks until there is room. In a callback it
  // does not block: the room of the request just answered is free for what its callback sends, and
  // beyond it the call fails with RESOURCE_EXHAUSTED.
  // INVALID_ARGUMENT: as Client::Rotate, or request_id of more than 100 bytes. FAILED_PRECONDITION:
  // after Finish. Else the status with which the stream ended.
  Status Rotate(const RotateRequest& request, RotateCallback callback);
  // The same with a future, which also takes what Rotate would have returned.
  std::future<Result<RotateReply>> RotateFuture(const RotateRequest& request);

  // Sends no more, waits for all answers and their callbacks, and returns how the stream ended.
  // FAILED_PRECONDITION: called in a callback, where it cannot wait.
  Status Finish();

  // Ends the stream: what is unanswered gets CANCELLED soon.
  void Cancel();

 private:
  friend class Client;
  explicit RotateStream(std::shared_ptr<StreamCall> call);

  std::shared_ptr<StreamCall> call_;
};

}  // namespace rope::client

#endif  // ROPE_ASYNC_H_
