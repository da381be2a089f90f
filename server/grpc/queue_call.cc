#include "server/grpc/queue_call.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <deque>
#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/clients/peers.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

// A client cancels a call when its deadline ends, which may be a little earlier than here.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);
constexpr absl::Duration kEndsKept = absl::Seconds(1);

}  // namespace

// The reads form a doubly linked list through their calls, ordered by the time at which they began:
// Enter appends to the newest end, so a walk from oldest_ can stop at the first that began too
// late. Enter and Leave are O(1) and allocate nothing, because every message pays for them.

void MessageReads::Enter(Entry& entry, absl::string_view owner, bool is_open_stream) {
  entry.owner_ = owner;
  entry.is_open_stream_ = is_open_stream;
  entry.began_ = clock_.Now();
  entry.ended_at_ = absl::InfiniteFuture();
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(!entry.entered_);
  entry.entered_ = true;
  entry.older_ = newest_;
  entry.newer_ = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = &entry;
  newest_ = &entry;
  if (!is_open_stream) count_.fetch_add(1, std::memory_order_relaxed);
  has_new_.store(true, std::memory_order_relaxed);
}

void MessageReads::Leave(Entry& entry) {
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(entry.entered_);
  entry.entered_ = false;
  (entry.older_ == nullptr ? oldest_ : entry.older_->newer_) = entry.newer_;
  (entry.newer_ == nullptr ? newest_ : entry.newer_->older_) = entry.older_;
  if (!entry.is_open_stream_) count_.fetch_sub(1, std::memory_order_relaxed);
}

int64_t MessageReads::CountAll() const {
  int64_t all = 0;
  proto::MutexLock lock(&mutex_);
  for (const Entry* entry = oldest_; entry != nullptr; entry = entry->newer_) ++all;
  return all;
}

int64_t MessageReads::EndSince(absl::Time before, const absl::Status& status) {
  int64_t ended = 0;
  proto::MutexLock lock(&mutex_);
  for (Entry* entry = oldest_; entry != nullptr && entry->began_ < before; entry = entry->newer_) {
    if (entry->is_open_stream_ || entry->read_ended()) continue;
    End(*entry, status);
    if (++ended == kEndedAtOnce) break;
  }
  return ended;
}

void MessageReads::CancelEnded(absl::Time ended_before) {
  proto::MutexLock lock(&mutex_);
  for (Entry* entry = oldest_; entry != nullptr; entry = entry->newer_) {
    if (entry->ended_at_ >= ended_before) continue;
    entry->ended_at_ = clock_.Now();
    entry->CancelRead();
  }
}

int64_t MessageReads::EndOfGreediest(absl::Time before, int64_t wanted, bool of_anybody,
                                     const absl::Status& status) {
  proto::MutexLock lock(&mutex_);
  std::erase_if(ends_, [forgotten = clock_.Now() - kEndsKept](const auto& ends) {
    return ends.second.last < forgotten;
  });
  const int64_t ended = EndOfGreediest(before, wanted, of_anybody, /*streams=*/false, status);
  if (ended > 0 || !of_anybody) return ended;
  return EndOfGreediest(before, wanted, of_anybody, /*streams=*/true, status);
}

int64_t MessageReads::EndOfGreediest(absl::Time before, int64_t wanted, bool of_anybody,
                                     bool streams, const absl::Status& status) {
  struct Owner {
    absl::Duration took;
    std::deque<Entry*> late = {};
  };
  const absl::Time now = clock_.Now();
  absl::flat_hash_map<absl::string_view, Owner> owners;  // names of calls and of ends_
  if (!of_anybody) {
    for (const auto& [owner, ends] : ends_) owners[owner].took = ends.took;
  }
  for (Entry* entry = oldest_; entry != nullptr && entry->began_ < before; entry = entry->newer_) {
    if (entry->is_open_stream_ != streams || entry->read_ended()) continue;
    Owner& owner = owners[entry->owner_];
    owner.took += now - entry->began_;
    owner.late.push_back(entry);
  }
  int64_t ended = 0;
  for (; ended < std::min(wanted, kEndedAtOnce); ++ended) {
    const auto greediest =
        std::ranges::max_element(owners, {}, [](const auto& owner) { return owner.second.took; });
    if (greediest == owners.end() || greediest->second.late.empty()) break;
    auto& [name, owner] = *greediest;
    Entry& oldest = *owner.late.front();
    owner.late.pop_front();
    const absl::Duration took = now - oldest.began_;
    if (of_anybody) owner.took -= took;
    Ends& ends = ends_[std::string(name)];
    ends.took += took;
    ends.last = now;
    End(oldest, status);
  }
  return ended;
}

void MessageReads::End(Entry& entry, const absl::Status& status) {
  entry.ended_at_ = clock_.Now();
  entry.EndRead(status);
}

absl::string_view QueueCall::Header(const char* name) const {
  const auto [first, end] = context_.client_metadata().equal_range(name);
  if (first == end) return {};
  const grpc::string_ref value = std::prev(end)->second;
  return {value.data(), value.size()};
}

void QueueCall::Arrived(bool ok) {
  if (!ok) {  // shutdown before a call came: gRPC sends no done notification
    delete this;
    return;
  }
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
  if (parts_.access == nullptr || !of_.needs.right.has_value()) return absl::OkStatus();
  const Credentials credentials = {CertificateNames(), Token(), origin()};
  auto identity = parts_.access->Admit(credentials, *of_.needs.right);
  if (identity.ok()) {
    identity_ = *std::move(identity);
    account_ = identity_->account;
    return absl::OkStatus();
  }
  LogLimited(LogKind::kRefusal, spdlog::level::warn,
             LogLine("audit: refused")
                 .Word("method", of_.needs.method)
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

}  // namespace rope::server
