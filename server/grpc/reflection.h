// gRPC's reflection service, for grpcurl.
#ifndef ROPE_SERVER_GRPC_REFLECTION_H_
#define ROPE_SERVER_GRPC_REFLECTION_H_

#include <google/protobuf/descriptor.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/raw_service.h"
#include "server/grpc/transfers.h"
#include "server/grpc/unary_call.h"

namespace rope::server {

// The descriptions of google.rpc's ErrorInfo, BadRequest and RetryInfo, which errors carry under
// these names, made from the wire-compatible messages of rope/v1/status_details.proto.

// The file of these messages, where google.rpc has them too.
inline constexpr char kErrorDetailsFile[] = "google/rpc/error_details.proto";

// A pool with kErrorDetailsFile and the file that it imports. It is no part of the generated pool,
// which a program may fill with the originals, and it shares nothing with that.
std::unique_ptr<const google::protobuf::DescriptorPool> MakeGoogleRpcPool();

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
// Limits:     kStreamsMax streams. A request or an answer that does not get through within
//             --receive_timeout ends its stream, and so does a pause that long.

class Reflection {
 public:
  using Service = RawService<grpc::reflection::v1alpha::ServerReflection>;
  using Services = std::vector<const google::protobuf::ServiceDescriptor*>;

  static constexpr int kStreamsMax = 16;

  // Shows `services` and itself, with the files that these need, and the messages of google.rpc
  // that errors carry. `in_flight` and `receiving` must outlive it.
  Reflection(Services services, CallsInFlight& in_flight, Transfers& receiving);

  Service& service() { return service_; }
  // The full names of the services that it shows.
  std::vector<std::string> service_names() const;
  void Arm(grpc::ServerCompletionQueue& queue);

  grpc::reflection::v1alpha::ServerReflectionResponse Answer(
      const grpc::reflection::v1alpha::ServerReflectionRequest& request) const;

 private:
  class Stream;
  using File = google::protobuf::FileDescriptor;

  void AddFile(const File& file);
  // The file of this name, or the one that declares a symbol; null: none that this server shows.
  const File* FileNamed(const std::string& name) const;
  const File* FileOf(const std::string& symbol) const;

  Service service_;
  CallsInFlight& in_flight_;
  Transfers& receiving_;
  const Services services_;
  const std::unique_ptr<const google::protobuf::DescriptorPool> google_rpc_;
  std::map<const File*, std::string> files_;  // serialized
  std::atomic<int> streams_ = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_REFLECTION_H_
