#include "server/grpc/google_rpc_pool.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/duration.pb.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"
#include "rope/v1/status_details.pb.h"

namespace rope::server {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::DescriptorProto;
using google::protobuf::FileDescriptorProto;

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

}  // namespace

std::unique_ptr<const DescriptorPool> MakeGoogleRpcPool() {
  FileDescriptorProto duration;
  google::protobuf::Duration::descriptor()->file()->CopyTo(&duration);
  FileDescriptorProto details;
  details.set_name(kErrorDetailsFile);
  details.set_package("google.rpc");
  details.set_syntax("proto3");
  details.add_dependency(duration.name());
  for (const auto* message :
       {v1::ErrorInfo::descriptor(), v1::BadRequest::descriptor(), v1::RetryInfo::descriptor()}) {
    DescriptorProto& copy = *details.add_message_type();
    message->CopyTo(&copy);
    Rename(copy);
  }
  auto pool = std::make_unique<DescriptorPool>();
  ROPE_CHECK(pool->BuildFile(duration) != nullptr);
  ROPE_CHECK(pool->BuildFile(details) != nullptr);
  return pool;
}

}  // namespace rope::server
