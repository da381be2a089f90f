// Reflection: implements grpc.reflection.v1alpha on the server's own completion queues, so that
// tools such as grpcurl can read the schema.
//
// gRPC's own plugin takes a thread for each open stream, and it reads messages of any length for as
// long as a client likes.
//
// Threading:  Thread-safe.
// Ownership:  Streams own themselves. They end when their client has closed its side or has gone.
// Errors:     Of one request: an ErrorResponse; the stream goes on. RESOURCE_EXHAUSTED: too many
//             streams, or a request that is too long.
// Limits:     kStreamsMax streams, half of them of an owner. A request or an answer that does not
//             get through within --receive_timeout ends its stream, and so does a pause that long.
#ifndef ROPE_SERVER_GRPC_REFLECTION_H_
#define ROPE_SERVER_GRPC_REFLECTION_H_

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/memory/owner_shares.h"

namespace rope::server {

class Reflection {
 public:
  using Service = RawService<grpc::reflection::v1alpha::ServerReflection>;
  using Services = std::vector<const google::protobuf::ServiceDescriptor*>;

  static constexpr int kStreamsMax = 16;

  // Shows `services` and itself, with the files that these need, and google.rpc's ErrorInfo,
  // BadRequest and RetryInfo, which errors carry.
  Reflection(Services services, const QueueCall::Parts& parts);

  Service& service() { return service_; }
  // The full names of the services that it shows.
  std::vector<std::string> service_names() const;
  void Arm(CallQueue& queue);

  grpc::reflection::v1alpha::ServerReflectionResponse Answer(
      const grpc::reflection::v1alpha::ServerReflectionRequest& request) const;

 private:
  class Stream;
  using File = google::protobuf::FileDescriptor;

  // Copies the files that it imports to the pool, then the file itself.
  void AddFile(const File& file);
  void AddErrorDetails();
  std::vector<const google::protobuf::FieldDescriptor*> ExtensionsOf(const std::string& type) const;

  Service service_;
  const RequestCall request_;
  const QueueCall::Parts parts_;
  const QueueCall::Needs needs_ = {Right::kInspect, "ServerReflectionInfo"};
  const Services services_;
  // What the server shows. It is no part of the generated pool, which a program may fill with
  // google.rpc's own files.
  google::protobuf::DescriptorPool pool_;
  OwnerShares streams_{{Reason::kBudgetFull, "stream", "reflection stream"},
                       {kStreamsMax, kStreamsMax / 2}};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_REFLECTION_H_
