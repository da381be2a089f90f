// StreamCall: one RotateStream RPC with many requests in flight. A write starts on the thread that
// calls Rotate. Replies are matched to requests by sequence number, on the queue's thread.
//
//   a request:  ReserveRoom -> unwritten -> sent -> reply -> borrowed memory returned -> callback
//               -> room free
//   the stream: started -> open -> finishing -> half-closed -> ended -> over
//
//   open:         the RPC has started; writes may begin
//   finishing:    Finish was called; queued requests are still written, new ones are refused
//   half-closed:  every request was written, and none waits by an id: the server may have forgotten
//                 it, and the request is then sent again, whole
//   ended:        gRPC has reported the RPC's status; no reply arrives any more
//   over:         every callback has run and the queue has dropped the stream
//
// Threading:  Thread-safe. Callbacks and events run on the queue's thread, one at a time. mu_ is
//             not held while a callback runs or a gRPC operation starts; the two exceptions,
//             TryCancel and Connector::Note, do not call back.
// Ownership:  The queue owns the stream until its last event and callback. A RotateStream may keep
//             it longer.
#ifndef ROPE_CLIENT_CALLS_STREAM_CALL_H_
#define ROPE_CLIENT_CALLS_STREAM_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/calls/event_loop.h"
#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/transport/connector.h"
#include "proto/mutex.h"
#include "rope/async.h"

namespace rope::client {

// INVALID_ARGUMENT: a bound that is not positive, or metadata that gRPC does not send.
Status CheckStreamOptions(const StreamOptions& options);
// Whether a request of `bytes` may be sent beside `requests` others of `used` bytes. A single one
// may exceed bytes_max.
inline bool HasRoomFor(int64_t bytes, int64_t requests, int64_t used,
                       const StreamOptions& options) {
  if (requests == 0) return true;
  return requests < options.requests_max && bytes <= options.bytes_max - used;
}
// The error of a request for which a callback would have to wait.
Status StreamIsFull(const StreamOptions& options, int64_t requests, int64_t bytes);

class StreamCall final : public LiveCall,
                         public StreamConnection,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(std::shared_ptr<Connector> connector, std::shared_ptr<const Link> link,
             std::shared_ptr<EventQueue> queue, const StreamOptions& options);

  // REQUIRES: called once, before the rest.
  void Start();
  // As RotateStream documents.
  Status Rotate(const RotateRequest& request, RotateCallback callback, uint64_t* sequence) override;
  void CancelRequest(uint64_t sequence) override;
  Status Finish() override;
  void Cancel() override;
  // Cancels the stream and waits until it is over; on a callback thread it does not wait.
  void Abandon() override;

 private:
  // The tag of one kind of event; OnEvent calls the member function for that kind.
  struct Step final : EventHandler {
    Step(StreamCall* stream, void (StreamCall::*step)(bool ok)) : call(stream), function(step) {}
    void OnEvent(bool ok) override { (call->*function)(ok); }
    StreamCall* const call;
    void (StreamCall::*const function)(bool ok);
  };

  // A request in flight.
  struct Request {
    std::vector<WantedTensor> wanted;
    StagedRun staged;
    RegionIds::Lease region_id;
    RotateCallback callback;
    BorrowedSlices borrowed;
    std::unique_ptr<const RotateRequest> by_id;  // the request; null: it was sent whole
    int64_t bytes = 0;
    bool sent = false;  // passed to gRPC's Write
  };
  // gRPC keeps references to written bytes until these objects are destroyed.
  struct Rpc {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  };
  struct Message {
    uint64_t sequence = 0;  // of the request; 0: a cancellation
    grpc::ByteBuffer bytes = {};
  };
  // A write of the RPC.
  struct Write {
    enum class Kind { kNone, kMessage, kHalfClose };
    Kind kind = Kind::kNone;
    grpc::ByteBuffer bytes = {};
    grpc::WriteOptions options = {};
  };
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);

  uint64_t NewSequence();
  // The message of an encoded request; moves the rest into `waiting`.
  static Result<Message> MessageOf(Result<EncodedRotate> encoded, uint64_t sequence,
                                   Request& waiting);
  // Adds the request to unanswered_, and its message to unwritten_.
  void Enqueue(Message message, std::unique_ptr<Request> request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for room and reserves it. On OK the request counts in requests_ and bytes_.
  Status ReserveRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts the next write, or the half-close, if one is due and none is under way.
  void WriteNext();
  // That write, which counts as under way from here on.
  Write NextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Delivers a reply to its request. A reply that matches no request breaks the stream.
  void Match(const grpc::ByteBuffer& buffer);
  // Sends a request again, whole, whose id the server has forgotten. It keeps its number and room.
  void SendWhole(uint64_t sequence, std::unique_ptr<Request> request);
  // Removes and returns the request with that number; null if it is not there.
  std::unique_ptr<Request> RemoveUnanswered(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Cancels the RPC; the stream then ends with `status`, unless it was broken before.
  void Break(Status status);
  // The status with which the stream ends. REQUIRES: the RPC has finished.
  Status EndOfStream() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Once the RPC has finished and no write is under way: destroys the RPC and fails the unanswered
  // requests.
  void EndIfQuiet();
  // Runs the callback once gRPC has returned the borrowed memory.
  void Deliver(std::unique_ptr<Request> request, Result<ReceivedReply> reply);
  void RunCallback(Request& request, const Result<ReceivedReply>& reply);
  // Removes the stream from the queue after the last event and callback.
  void RemoveIfOver();

  const std::shared_ptr<Connector> connector_;
  const std::shared_ptr<const Link> link_;
  const std::shared_ptr<EventQueue> queue_;
  const StreamOptions options_;
  Step started_{this, &StreamCall::OnStarted};
  Step read_{this, &StreamCall::OnRead};
  Step written_{this, &StreamCall::OnWritten};
  Step finished_{this, &StreamCall::OnFinished};

  // The stream of rpc_; valid until the RPC has finished and no write is under way.
  grpc::GenericClientAsyncReaderWriter* stream_ = nullptr;

  // Used on the queue's thread only.
  grpc::ByteBuffer incoming_;
  grpc::Status rpc_status_;
  // The room of the request whose callback is running; requests sent by the callback may use it.
  int64_t credit_requests_ = 0;
  int64_t credit_bytes_ = 0;

  proto::Mutex mu_;
  proto::CondVar changed_;  // signals free room, the end of the stream, and over_
  // Reset on the queue's thread only, when no operation is under way.
  std::unique_ptr<Rpc> rpc_ ABSL_GUARDED_BY(mu_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mu_) = 1;
  std::deque<Message> unwritten_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::unique_ptr<Request>> unanswered_ ABSL_GUARDED_BY(mu_);
  // Requests in flight, from ReserveRoom to the end of the callback, and their bytes.
  int64_t requests_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t by_id_ ABSL_GUARDED_BY(mu_) = 0;         // requests that may have to be sent again
  bool open_ ABSL_GUARDED_BY(mu_) = false;         // the RPC has started, not known to have failed
  bool writing_ ABSL_GUARDED_BY(mu_) = false;      // a write or the half-close is under way
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;    // Finish was called
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;  // WritesDone was called
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Status> broken_ ABSL_GUARDED_BY(mu_);  // first error of this side
  std::optional<Status> ended_ ABSL_GUARDED_BY(mu_);   // status of the stream
  // Whether requests that were sent and are unanswered at the end may have run.
  bool may_have_run_ ABSL_GUARDED_BY(mu_) = true;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // ended, and every callback has run
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_STREAM_CALL_H_
