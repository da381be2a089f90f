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
//   arrived -> read <-> write -> finish
//
// Each step counts as a read, whose time is bounded: a client that does not take the answer holds
// one of few places. Its last step and gRPC's done notification release the stream.
class Reflection::Stream final : public QueueCall {
 public:
  static void Arm(Reflection& reflection, CallQueue& queue) {
    CallArming::Start(queue, reflection.request_, /*wanted=*/1,
                      [&reflection](std::shared_ptr<CallArming> arming) {
                        return std::unique_ptr<QueueCall>(
                            new Stream(reflection, std::move(arming)));  // owned by the result
                      });
  }

 private:
  Stream(Reflection& reflection, std::shared_ptr<CallArming> arming)
      : QueueCall(reflection.parts_, std::move(arming), /*releases=*/2), reflection_(reflection) {}

  const Needs& needs() const override { return reflection_.needs_; }

  void OnArrived() override {
    auto place = reflection_.streams_.Take(owner());
    if (!place.ok()) return StartFinish(place.status());
    place_ = *std::move(place);
    StartRead();
  }

  void OnRead(bool ok) override {
    if (!ok) return StartFinish(absl::OkStatus());
    ServerReflectionRequest request;
    const absl::Status status = DecodeShortMessage(message_, request);
    if (!status.ok()) return StartFinish(status);
    const grpc::ByteBuffer answer = EncodeMessage(reflection_.Answer(request));
    EnterReads(/*may_idle=*/false);
    StartWrite(answer);
  }

  void OnWritten(bool ok) override {
    LeaveReads();
    if (!ok) return StartFinish(absl::OkStatus());
    if (!arming_->queue().must_look()) return StartRead();
    arming_->queue().Defer(looked_);
  }
  void OnLooked(bool) { StartRead(); }

  Reflection& reflection_;
  OwnerShares::Place place_;
  CallEvent<Stream> looked_{this, &Stream::OnLooked};
};

Reflection::Reflection(Services services, const QueueCall::Parts& parts)
    : service_(OwnService()),
      request_(service_.RequestOf("ServerReflectionInfo")),
      parts_(parts),
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

void Reflection::Arm(CallQueue& queue) {
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
