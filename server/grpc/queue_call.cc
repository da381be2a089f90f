#include "server/grpc/queue_call.h"

#include <grpc/grpc_security_constants.h>

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/clients/peers.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

// A client cancels a call when its deadline ends, which may be a little earlier than here.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);

}  // namespace

absl::string_view QueueCall::Header(const char* name) const {
  const auto [first, end] = context_.client_metadata().equal_range(name);
  if (first == end) return {};
  const grpc::string_ref value = std::prev(end)->second;
  return {value.data(), value.size()};
}

// The counts fall after the deletion, so that a drained server has no call left.
void QueueCall::Delete() {
  CallsInFlight& in_flight = *parts_.in_flight;
  const bool was_counted = is_counted_;
  delete this;
  if (was_counted) in_flight.Remove();
  in_flight.Close();
}

void QueueCall::Arrived(bool ok) {
  if (!ok) return Delete();  // shutdown before a call came: gRPC sends no done notification
  connection_ = parts_.connections->Of(context_.peer());
  origin_ = connection_->account();
  if (connection_->is_proxy()) {
    origin_ = parts_.connections->accounts().Of(
        ForwardedOwner(Header("x-forwarded-client-cert"), Header("x-forwarded-for")));
  }
  account_ = origin_;
  connection_->BeginCall();
  if (of_.counts != nullptr) of_.counts->Begin();
  arming_->Take();
  const absl::Status admitted = Admit();
  if (admitted.ok()) {
    OnArrived();
  } else {
    refused_ = true;
    releases_left_ = 2;  // its last step and its done notification
    FinishWithoutMessage(admitted);
  }
  arming_->ArmIfFew();
}

// A refusal is a line for the operator, since the client may not be who it should.
absl::Status QueueCall::Admit() {
  if (parts_.access == nullptr || !of_.right.has_value()) return absl::OkStatus();
  const Credentials credentials = {CertificateNames(), Token(), origin()};
  auto identity = parts_.access->Admit(credentials, *of_.right);
  if (identity.ok()) {
    identity_ = *std::move(identity);
    account_ = identity_->account;
    return absl::OkStatus();
  }
  LogLimited(LogKind::kRefusal, spdlog::level::warn,
             LogLine("audit: refused")
                 .Word("method", of_.name)
                 .Text("peer", origin())
                 .Word("code", absl::StatusCodeToString(identity.status().code()))
                 .Text("message", identity.status().message()));
  return identity.status();
}

// A header that is not one bearer token matches no identity.
std::string QueueCall::Token() const {
  constexpr absl::string_view kBearer = "Bearer ";
  const std::string header(Header("authorization"));
  if (context_.client_metadata().count("authorization") > 1)
    return absl::StrCat("several: ", header);
  const bool has_token =
      header.size() > kBearer.size() && absl::StartsWithIgnoreCase(header, kBearer);
  return has_token ? header.substr(kBearer.size()) : header;
}

// A proxy that is trusted has verified its client's certificate.
std::vector<std::string> QueueCall::CertificateNames() const {
  if (connection_->is_proxy()) {
    absl::string_view forwarded = origin();
    if (absl::ConsumePrefix(&forwarded, "cert:")) return {std::string(forwarded)};
    return {};
  }
  std::vector<std::string> names;
  const std::shared_ptr<const grpc::AuthContext> about = context_.auth_context();
  if (connection_->is_unix() || about == nullptr || !about->IsPeerAuthenticated()) return names;
  const auto add = [&](const char* property) {
    for (const grpc::string_ref& name : about->FindPropertyValues(property)) {
      names.emplace_back(name.data(), name.size());
    }
  };
  add(GRPC_PEER_URI_PROPERTY_NAME);
  add(GRPC_PEER_DNS_PROPERTY_NAME);
  // An authority may check one name and let its clients choose the common name.
  if (about->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME).empty()) {
    add(GRPC_X509_CN_PROPERTY_NAME);
  }
  return names;
}

void QueueCall::Ended(bool ok) {
  if (!refused_) return OnEnded(ok);
  if (ok) arming_->Refill();
  Release();
}

void QueueCall::Read(bool ok) {
  if (ok) connection_->CountMessage(static_cast<int64_t>(message_.Length()));
  parts_.reads->Leave(*this);
  OnRead(ok);
}

void QueueCall::Done(bool) {
  if (context_.IsCancelled()) {
    cancelled_->store(true, std::memory_order_relaxed);
    if (time_left() > kDeadlineSlack) connection_->LoseCall();
  }
  connection_->EndCall();
  if (!refused_) return OnDone();
  Release();
}

void CallArming::ArmUpTo(int count) {
  for (; armed_ < count; ++armed_) make_(shared_from_this()).release()->Request(request_);
}

// Only handled calls count as in flight.
void UnaryCall::OnRead(bool ok) {
  if (!read_ended()) {
    Count();
    if (ok) {
      method_.handler(*this);
    } else {
      FinishWithoutMessage(InvalidField("request", "no message", "one"));
    }
  }
  Release();
}

void UnaryCall::Finish(const absl::Status& status, const grpc::ByteBuffer& reply, Permit permit) {
  permit_ = std::move(permit);
  connection().OweReply(permit_.bytes());
  if (!status.ok()) return StartFinish(status);
  stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc::Status::OK, &ended_);
}

void UnaryCall::OnEnded(bool ok) {
  connection().PayReply(permit_.bytes(), ok);
  permit_ = Permit();
  if (ok) arming_->Refill();  // not ok: the server may be shutting down
  Release();
}

}  // namespace rope::server
