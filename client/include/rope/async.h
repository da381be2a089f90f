// Asynchronous calls. They return at once and deliver the reply to a callback or a future:
// Client::RotateAsync as one RPC each, or through the ring without an RPC; Client::OpenStream as
// many requests on one RPC.
//
// Threading:  Thread-safe. Callbacks run on the connection's background threads, which sleep while
//             they have nothing to do: one thread for all RPCs and streams, and with
//             Transport::kRing a second one for calls through the ring. Each thread runs one
//             callback at a time; the two may run at the same time. Do not block in a callback: it
//             delays every other reply on its thread. A callback may call the client, start the
//             next call, and destroy the last copy of the client.
// Ownership:  The request is copied. The memory of its tensors is borrowed until the callback runs
//             or the future is ready. After that the library neither reads nor writes that memory,
//             even if the call was cancelled.
// Errors:     As Client::Rotate. CANCELLED: Call::Cancel, RotateStream::Cancel, or the last copy of
//             the client or the stream was destroyed.
// Limits:     The thread of a callback also copies the reply to its outputs; for more throughput,
//             open more connections. If the server stops reading in the middle of a
//             request, the request's memory and its callback are held for as long as client.h says
//             under Limits.
#ifndef ROPE_ASYNC_H_
#define ROPE_ASYNC_H_

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "rope/options.h"
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

// What makes the calls of a RotateStream; documented with its methods. Thread-safe.
class StreamConnection {
 public:
  virtual ~StreamConnection() = default;

  // `sequence` may be null.
  virtual Status Rotate(const RotateRequest& request, RotateCallback callback,
                        uint64_t* sequence) = 0;
  virtual void CancelRequest(uint64_t sequence) = 0;
  virtual Status Finish() = 0;
  virtual void Cancel() = 0;
  // What ~RotateStream does: cancels, and waits as documented there.
  virtual void Abandon() = 0;
};

// A stream of requests. Replies arrive in the order in which the server finishes the requests. An
// error affects one request only; the stream goes on. Nothing is retried:
// detail().may_have_executed says whether a failed request may have run.
//
// When the stream breaks, every unanswered request ends with the stream's status. Its
// `may_have_executed` is false if the request was not sent, or if the server says that nothing ran;
// else it is true.
class RotateStream {
 public:
  // REQUIRES: `connection` is not null.
  explicit RotateStream(std::shared_ptr<StreamConnection> connection);
  RotateStream(RotateStream&&) = default;
  RotateStream& operator=(RotateStream&& other) noexcept;
  // Cancels all unanswered requests and waits until every callback has run. In a callback it does
  // not wait.
  ~RotateStream();

  // Sends a request. If it returns OK, `callback` runs exactly once; else `callback` never runs.
  //
  // At a bound of StreamOptions the call blocks until there is room. In a callback it never blocks:
  // the callback may reuse the room of the request that it answers; beyond that room the call
  // fails with RESOURCE_EXHAUSTED.
  // INVALID_ARGUMENT: as Client::Rotate. FAILED_PRECONDITION: Finish was called. If the stream has
  // ended: the status with which it ended. `sequence`, if not null, receives the request's number,
  // before `callback` may run.
  Status Rotate(const RotateRequest& request, RotateCallback callback,
                uint64_t* sequence = nullptr);
  // The same with a future. The future also receives the error that Rotate would have returned.
  std::future<Result<RotateReply>> RotateFuture(const RotateRequest& request);

  // Asks the server to cancel one request. Its callback receives CANCELLED if the server had not
  // begun it, else the reply. No effect on a request that is answered.
  void CancelRequest(uint64_t sequence);

  // Ends sending, waits until every reply has arrived and its callback has run, and returns the
  // status of the stream. FAILED_PRECONDITION: called in a callback, where it cannot wait.
  Status Finish();

  // Ends the stream. Unanswered requests soon receive CANCELLED.
  void Cancel();

 private:
  bool is_of_parent() const;  // client.h, Forks

  std::shared_ptr<StreamConnection> connection_;
  int forks_;
};

}  // namespace rope::client

#endif  // ROPE_ASYNC_H_
