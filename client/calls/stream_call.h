// StreamCall: one RotateStream RPC with many requests in flight. Writes start on the thread that
// sends, answers are matched by number and handed over on the queue's thread.
//
//   Rotate -> room -> to be written -> written -> answer -> memory given back -> callback -> room
//
// A request is named "NUMBER:REQUEST_ID" on the wire, so that answers are told apart whatever the
// callers' ids are, and the server's log still shows those.
//
// Where the session has a ring, requests whose tensors lie in its region go through that, and only
// others through the RPC, which says how the stream ends for all of them.
//
// Threading:  Thread-safe; callbacks and events on the queue's threads, one at a time. No lock of
//             the stream is held while a callback runs or gRPC writes.
// Ownership:  The queue owns the stream until its last event and callback; a handle may keep it
//             longer.
#ifndef ROPE_CLIENT_CALLS_STREAM_CALL_H_
#define ROPE_CLIENT_CALLS_STREAM_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/calls/event_loop.h"
#include "client/codec/borrowed_slices.h"
#include "client/codec/codec.h"
#include "client/transport/connector.h"
#include "client/transport/ring_watch.h"
#include "rope/async.h"

namespace rope::client {

class StreamCall final : public LiveCall,
                         public RingWatch::Waiting,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  static std::shared_ptr<StreamCall> Open(std::shared_ptr<Connector> connector,
                                          std::shared_ptr<const Session> session,
                                          std::shared_ptr<EventQueue> queue,
                                          const StreamOptions& options);
  StreamCall(std::shared_ptr<Connector> connector, std::shared_ptr<const Session> session,
             std::shared_ptr<EventQueue> queue, const StreamOptions& options);

  // As RotateStream says.
  Status Rotate(const RotateRequest& request, RotateCallback callback);
  Status Finish();
  void Cancel() override;
  // Cancels and waits, but not on the queue's thread.
  void Abandon();

 private:
  // Hands an event of one kind to its function.
  struct Step final : EventHandler {
    Step(StreamCall* stream, void (StreamCall::*step)(bool ok)) : call(stream), function(step) {}
    void OnEvent(bool ok) override { (call->*function)(ok); }
    StreamCall* const call;
    void (StreamCall::*const function)(bool ok);
  };

  // A request in flight.
  struct Request {
    std::string request_id;
    std::vector<WantedTensor> wanted;
    StagedRun staged;
    RegionIds::Lease region_id;
    RotateCallback callback;
    BorrowedSlices borrowed;
    int64_t bytes = 0;
    bool sent = false;     // handed to gRPC
    bool in_ring = false;  // handed to the ring
  };
  // What gRPC keeps bytes of until it is destroyed.
  struct Rpc {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  };
  struct Message {
    uint64_t number = 0;
    grpc::ByteBuffer bytes = {};  // for the RPC
    std::string ring_bytes = {};  // for the ring, instead
  };
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);

  void OnAnswer(uint64_t number, Result<ReceivedReply> reply) override;
  void OnLost() override;

  // Sends a request that is among the unanswered. `lock`: of mu_, held.
  void Send(Message message, std::unique_lock<std::mutex> lock);
  // Waits for room and takes it. OK: taken.
  Status TakeRoom(std::unique_lock<std::mutex>& lock, int64_t bytes);
  bool HasRoom(int64_t bytes) const;
  // Starts the next write, or closes this side, if either is due.
  void StartWrite(std::unique_lock<std::mutex> lock);
  // Finds the request of a reply; what belongs to none breaks the stream.
  void Match(const grpc::ByteBuffer& buffer);
  // The request of that number, which is answered; null: it is not there any more. REQUIRES: mu_ is
  // held.
  std::unique_ptr<Request> TakeUnanswered(uint64_t number);
  void Break(Status status);
  // How the stream ended. REQUIRES: mu_ is held, the RPC has finished.
  Status EndOfStream() const;
  // Once gRPC is done with the stream: lets go of it and ends what is unanswered.
  void EndIfQuiet();
  // Runs the callback once the caller's memory is free.
  void Deliver(std::unique_ptr<Request> request, Result<ReceivedReply> reply);
  void RunCallback(Request& request, const Result<ReceivedReply>& reply);
  // Leaves the queue after the last event and callback.
  void RemoveIfOver();

  const std::shared_ptr<Connector> connector_;
  const std::shared_ptr<const Session> session_;
  const std::shared_ptr<EventQueue> queue_;
  const std::shared_ptr<RingWatch> watch_;  // null: no ring
  const StreamOptions options_;
  Step started_{this, &StreamCall::OnStarted};
  Step read_{this, &StreamCall::OnRead};
  Step written_{this, &StreamCall::OnWritten};
  Step finished_{this, &StreamCall::OnFinished};

  // Of the queue's thread alone.
  grpc::ByteBuffer incoming_;
  grpc::Status rpc_status_;
  // Room of the request whose callback runs, for what that sends.
  int64_t credit_requests_ = 0;
  int64_t credit_bytes_ = 0;

  std::mutex mu_;
  std::condition_variable changed_;  // room came, or the stream ended or is over
  // All below are guarded by mu_.
  std::unique_ptr<Rpc> rpc_;  // goes on the queue's thread only
  uint64_t next_number_ = 1;
  std::deque<Message> unwritten_;
  std::map<uint64_t, std::unique_ptr<Request>> unanswered_;
  int64_t requests_ = 0;  // in flight: from TakeRoom to the end of the callback
  int64_t bytes_ = 0;
  int64_t in_ring_ = 0;       // requests there
  bool open_ = false;         // started, and not known to have failed
  bool writing_ = false;      // a write or the half-close is under way
  bool finishing_ = false;    // nothing more is sent
  bool half_closed_ = false;  // at least asked for
  bool cancelled_ = false;
  std::optional<Status> broken_;  // by a reply that makes no sense
  std::optional<Status> ended_;   // no answer comes any more
  bool may_have_run_ = true;      // whether what was sent and is unanswered then may have
  bool over_ = false;             // and every callback has run
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_STREAM_CALL_H_
