#include "client/message_connection.h"

#include <google/protobuf/message.h>

#include <utility>

#include "absl/strings/match.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::client {

Result<PreparedRotation> MessageConnection::Prepare(const RotateRequest& request,
                                                    const std::string& open_axis,
                                                    const CallOptions& options) {
  return Prepare(Preparation::Create(request, open_axis), options);
}

Result<PreparedRotation> MessageConnection::PrepareJson(const std::string& request,
                                                        const CallOptions& options) {
  v1::PrepareRequest message;
  ROPE_RETURN_IF_ERROR(FromJson(request, message));
  const auto preparation = Preparation::Create(std::move(message));
  if (!preparation.ok()) return Within("rotate", preparation.status());
  return Prepare(preparation, options);
}

Result<PreparedRotation> MessageConnection::Prepare(
    const Result<std::shared_ptr<const Preparation>>& preparation, const CallOptions& options) {
  if (!preparation.ok()) return preparation.status();
  ROPE_ASSIGN_OR_RETURN(
      auto prepared,
      ReadPrepared(*preparation, CallMethod("Prepare", BytesOf((*preparation)->message()),
                                            /*idempotent=*/true, options)));
  return PreparedState::RotationOf(std::move(prepared));
}

namespace {

std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor* type) {
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  return std::unique_ptr<google::protobuf::Message>(factory->GetPrototype(type)->New());
}

}  // namespace

Result<std::string> MessageConnection::CallJson(const std::string& method,
                                                const std::string& request,
                                                const CallOptions& options) {
  const auto* found = v1::GetServerInfoRequest::descriptor()
                          ->file()
                          ->FindServiceByName("RopeService")
                          ->FindMethodByName(method);
  if (found == nullptr || found->client_streaming()) {
    return InvalidField("method", method, "a unary method of rope.v1.RopeService");
  }
  const auto message = NewMessage(found->input_type());
  ROPE_RETURN_IF_ERROR(FromJson(request, *message));
  // Rotations may be in place, and a region is registered once.
  const bool idempotent = method != "Rotate" && !absl::EndsWith(method, "Region");
  const auto answer = NewMessage(found->output_type());
  ROPE_RETURN_IF_ERROR(
      ReadMessage(CallMethod(method.c_str(), BytesOf(*message), idempotent, options), *answer));
  return ToJson(*answer);
}

Result<DescribeReply> MessageConnection::Describe(const DescribeRequest& request,
                                                  const CallOptions& options) {
  ROPE_ASSIGN_OR_RETURN(const v1::DescribeRequest message, ToMessage(request));
  ROPE_ASSIGN_OR_RETURN(const auto reply,
                        MessageOf<v1::DescribeResponse>(CallMethod("Describe", BytesOf(message),
                                                                   /*idempotent=*/true, options)));
  return FromMessage(reply);
}

Result<TablesReply> MessageConnection::GetTables(const TablesRequest& request,
                                                 const CallOptions& options) {
  ROPE_ASSIGN_OR_RETURN(const v1::GetTablesRequest message, ToMessage(request));
  ROPE_ASSIGN_OR_RETURN(const auto reply,
                        MessageOf<v1::GetTablesResponse>(CallMethod("GetTables", BytesOf(message),
                                                                    /*idempotent=*/true, options)));
  return FromMessage(reply);
}

}  // namespace rope::client
