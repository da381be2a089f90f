#include "server/grpc/reflection.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/duration.pb.h>

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"
#include "rope/v1/status_details.pb.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/rope_codec.h"
#include "server/request/request.h"

namespace rope::server {
namespace {

using google::protobuf::DescriptorProto;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// Gives the types that the message's fields refer to the names that google.rpc gives them.
void Rename(DescriptorProto& message) {
  for (auto& field : *message.mutable_field()) {
    absl::string_view type = field.type_name();
    if (absl::ConsumePrefix(&type, ".rope.v1.")) {
      field.set_type_name(absl::StrCat(".google.rpc.", type));
    }
  }
  for (DescriptorProto& nested : *message.mutable_nested_type()) Rename(nested);
}

const google::protobuf::ServiceDescriptor& OwnService() {
  return *ServerReflectionRequest::descriptor()->file()->FindServiceByName("ServerReflection");
}

// Adds the file and then all that it imports.
void AddFiles(const FileDescriptor& file, std::set<const FileDescriptor*>& seen,
              ServerReflectionResponse& response) {
  if (!seen.insert(&file).second) return;
  FileDescriptorProto descriptor;
  file.CopyTo(&descriptor);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(
      descriptor.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFiles(*file.dependency(i), seen, response);
}

}  // namespace

// One stream. Its steps follow each other, so that they need no lock:
//
//   armed -> arrived -> read <-> write -> finish
//
// Each step is in `receiving_`, which ends the stream if the step takes too long. The stream
// deletes itself when its last step and gRPC's done notification are back.
class Reflection::Stream final : private Transfers::Transfer {
 public:
  ~Stream() override {
    if (counted_) reflection_.streams_.fetch_sub(1);
  }

  static void Arm(Reflection& reflection, grpc::ServerCompletionQueue& queue) {
    auto stream = std::unique_ptr<Stream>(new Stream(reflection, queue));  // owned by itself below
    Stream& armed = *stream.release();
    armed.context_.AsyncNotifyWhenDone(&armed.done_);
    reflection.request_(&armed.context_, &armed.stream_, &queue, &armed.arrived_);
  }

 private:
  Stream(Reflection& reflection, grpc::ServerCompletionQueue& queue)
      : Transfers::Transfer(/*may_idle=*/false),
        open_call_(reflection.in_flight_),
        reflection_(reflection),
        queue_(queue),
        stream_(&context_) {}

  void OnArrived(bool ok) {
    if (!ok) {
      delete this;
      return;
    }
    Arm(reflection_, queue_);
    session_ = SessionOfPeer(context_.peer());
    counted_ = true;
    if (reflection_.streams_.fetch_add(1) < kStreamsMax) return Read();
    Finish(RetryLater(Reason::kBudgetFull, "stream", absl::StrCat("more than ", kStreamsMax),
                      "a retry later"));
  }

  void Read() {
    reflection_.receiving_.Enter(*this, session_);
    stream_.Read(&message_, &read_);
  }

  void OnRead(bool ok) {
    reflection_.receiving_.Leave(*this);
    if (!ok) return Finish(absl::OkStatus());
    ServerReflectionRequest request;
    const absl::Status status = DecodeShortMessage(message_, request);
    if (!status.ok()) return Finish(status);
    const grpc::ByteBuffer answer = EncodeMessage(reflection_.Answer(request));
    reflection_.receiving_.Enter(*this, session_);
    stream_.Write(answer, &written_);
  }

  void OnWritten(bool ok) {
    reflection_.receiving_.Leave(*this);
    ok ? Read() : Finish(absl::OkStatus());
  }

  void Finish(const absl::Status& status) {
    stream_.Finish(ToGrpcStatus(status, context_), &ended_);
  }
  void OnEnded(bool) { Release(); }
  void OnDone(bool) { Release(); }

  // Any thread. The step that is under way then fails.
  void EndTransfer(const absl::Status&) override { context_.TryCancel(); }
  void AbortTransfer() override { context_.TryCancel(); }
  void Retain() override { open_.fetch_add(1); }
  void Release() override {
    if (open_.fetch_sub(1) == 1) delete this;
  }

  const CallsInFlight::Open open_call_;  // first, because it ends last
  Reflection& reflection_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  RawStream stream_;
  grpc::ByteBuffer message_;
  uint64_t session_ = 0;
  bool counted_ = false;
  std::atomic<int> open_{2};  // last step and done
  CallEvent<Stream> arrived_{this, &Stream::OnArrived};
  CallEvent<Stream> read_{this, &Stream::OnRead};
  CallEvent<Stream> written_{this, &Stream::OnWritten};
  CallEvent<Stream> ended_{this, &Stream::OnEnded};
  CallEvent<Stream> done_{this, &Stream::OnDone};
};

Reflection::Reflection(Services services, CallsInFlight& in_flight, Transfers& receiving)
    : service_(OwnService()),
      request_(service_.RequestOf("ServerReflectionInfo")),
      in_flight_(in_flight),
      receiving_(receiving),
      services_(std::move(services)) {
  for (const auto* service : services_) AddFile(*service->file());
  AddFile(*OwnService().file());
  AddErrorDetails();
}

std::vector<std::string> Reflection::service_names() const {
  std::vector<std::string> names;
  for (const auto* service : services_) names.push_back(service->full_name());
  names.push_back(OwnService().full_name());
  return names;
}

void Reflection::Arm(grpc::ServerCompletionQueue& queue) {
  Stream::Arm(*this, queue);
}

void Reflection::AddFile(const File& file) {
  if (pool_.FindFileByName(file.name()) != nullptr) return;
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i));
  FileDescriptorProto descriptor;
  file.CopyTo(&descriptor);
  ROPE_CHECK(pool_.BuildFile(descriptor) != nullptr);
}

// Made from the wire-compatible messages of rope/v1/status_details.proto.
void Reflection::AddErrorDetails() {
  const File& duration = *google::protobuf::Duration::descriptor()->file();
  AddFile(duration);
  FileDescriptorProto details;
  details.set_name("google/rpc/error_details.proto");
  details.set_package("google.rpc");
  details.set_syntax("proto3");
  details.add_dependency(duration.name());
  for (const auto* message :
       {v1::ErrorInfo::descriptor(), v1::BadRequest::descriptor(), v1::RetryInfo::descriptor()}) {
    DescriptorProto& copy = *details.add_message_type();
    message->CopyTo(&copy);
    Rename(copy);
  }
  ROPE_CHECK(pool_.BuildFile(details) != nullptr);
}

std::vector<const FieldDescriptor*> Reflection::ExtensionsOf(const std::string& type) const {
  std::vector<const FieldDescriptor*> extensions;
  const google::protobuf::Descriptor* const message = pool_.FindMessageTypeByName(type);
  if (message != nullptr) pool_.FindAllExtensions(message, &extensions);
  return extensions;
}

ServerReflectionResponse Reflection::Answer(const ServerReflectionRequest& request) const {
  using Kind = ServerReflectionRequest::MessageRequestCase;
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const File* file = nullptr;
  switch (request.message_request_case()) {
    case Kind::kListServices:
      for (const std::string& name : service_names()) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      return response;
    case Kind::kFileByFilename:
      file = pool_.FindFileByName(request.file_by_filename());
      break;
    case Kind::kFileContainingSymbol:
      file = pool_.FindFileContainingSymbol(request.file_containing_symbol());
      break;
    case Kind::kFileContainingExtension: {
      const auto& wanted = request.file_containing_extension();
      for (const auto* extension : ExtensionsOf(wanted.containing_type())) {
        if (extension->number() == wanted.extension_number()) file = extension->file();
      }
      break;
    }
    case Kind::kAllExtensionNumbersOfType: {
      const std::string& type = request.all_extension_numbers_of_type();
      if (pool_.FindFileContainingSymbol(type) == nullptr) break;
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(type);
      for (const auto* extension : ExtensionsOf(type)) {
        numbers.add_extension_number(extension->number());
      }
      return response;
    }
    case Kind::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  if (file != nullptr) {
    std::set<const File*> seen;
    AddFiles(*file, seen, response);
    return response;
  }
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response.mutable_error_response()->set_error_message(
      "request: got a name that this server's schema does not have, want one of a service that "
      "list_services shows, or of its files");
  return response;
}

}  // namespace rope::server
