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

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/calls/event_loop.h"
#include "client/codec/borrowed_slices.h"
#include "client/codec/codec.h"
#include "client/transport/connector.h"
#include "client/transport/ring_watch.h"
#include "proto/mutex.h"
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

  void OnAnswer(uint64_t number, Result<ReceivedReply> reply) override;
  void OnLost() override;

  uint64_t NewNumber();
  // Waits for room for one more request and reserves it.
  Status ReserveRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends a request that is among the unanswered and counted in in_ring_ where it is for the ring.
  void Send(Message message);
  // The RPC's next write, where one is due; marks it as under way. Start starts it, without mu_.
  Write NextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(Write write);
  // Finds the request of a reply; what belongs to none breaks the stream.
  void Match(const grpc::ByteBuffer& buffer);
  // Removes the request of that number, which is answered; null: it is not there any more.
  std::unique_ptr<Request> RemoveUnanswered(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break(Status status);
  // How the stream ended. REQUIRES: the RPC has finished.
  Status EndOfStream() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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

  // Of rpc_, as long as that lives: until the stream has finished and no write is under way.
  grpc::GenericClientAsyncReaderWriter* stream_ = nullptr;

  // Of the queue's thread alone.
  grpc::ByteBuffer incoming_;
  grpc::Status rpc_status_;
  // Room of the request whose callback runs, for what that sends.
  int64_t credit_requests_ = 0;
  int64_t credit_bytes_ = 0;

  proto::Mutex mu_;
  proto::CondVar changed_;                         // room came, or the stream ended or is over
  std::unique_ptr<Rpc> rpc_ ABSL_GUARDED_BY(mu_);  // goes on the queue's thread only
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
  std::deque<Message> unwritten_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::unique_ptr<Request>> unanswered_ ABSL_GUARDED_BY(mu_);
  int64_t requests_ ABSL_GUARDED_BY(mu_) =
      0;  // in flight: from ReserveRoom to the end of the callback
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t in_ring_ ABSL_GUARDED_BY(mu_) = 0;       // requests there
  bool open_ ABSL_GUARDED_BY(mu_) = false;         // started, and not known to have failed
  bool writing_ ABSL_GUARDED_BY(mu_) = false;      // a write or the half-close is under way
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;    // nothing more is sent
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;  // at least asked for
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Status> broken_ ABSL_GUARDED_BY(mu_);  // by a reply that makes no sense
  std::optional<Status> ended_ ABSL_GUARDED_BY(mu_);   // no answer comes any more
  bool may_have_run_ ABSL_GUARDED_BY(mu_) =
      true;                                 // whether what was sent and is unanswered then may have
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // and every callback has run
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_STREAM_CALL_H_
