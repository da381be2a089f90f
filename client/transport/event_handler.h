// EventHandler: what a tag on a gRPC completion queue of the client points to.
#ifndef ROPE_CLIENT_TRANSPORT_EVENT_HANDLER_H_
#define ROPE_CLIENT_TRANSPORT_EVENT_HANDLER_H_

namespace rope::client {

class EventHandler {
 public:
  // `ok`: as grpc::CompletionQueue::Next sets it.
  virtual void OnEvent(bool ok) = 0;

 protected:
  ~EventHandler() = default;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_EVENT_HANDLER_H_
