#include "tests/bench/soak_hostile.h"

#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <utility>

#include "proto/ipc/hello.h"
#include "proto/wire/stream_message.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/raw_ring.h"
#include "tests/support/region_client.h"
#include "tests/support/test_server.h"

namespace rope::bench {
namespace {

using testing::Http2Peer;

constexpr std::chrono::seconds kPatience{10};  // for an answer that the server must give
constexpr std::chrono::milliseconds kSendPatience{
    20};  // for room where the server may stop reading
constexpr size_t kHalfMessageBytes = size_t{1} << 20;
constexpr int64_t kAnswerBytes = int64_t{1} << 20;
constexpr int kUnreadAnswers = 8;
constexpr int kResetCalls = 8;
constexpr size_t kIds = 70;  // more regions than a connection may have
constexpr size_t kMemoryBytes = 4096;

std::string SmallRequest() {
  return testing::SmallRequestForLargeAnswer(kAnswerBytes).SerializeAsString();
}

}  // namespace

const std::array<HostileClient::Kind, HostileClient::kActs> HostileClient::kKinds = {{
    {"half-sent", &HostileClient::SendHalf, 200},
    {"unread", &HostileClient::LeaveUnread, 100},
    {"regions", &HostileClient::RegisterRegions, 20},
    {"broken rings", &HostileClient::BreakRing, 150},
    {"garbage", &HostileClient::SendGarbage, 200},
    {"reset", &HostileClient::ResetCalls, 100},
}};

HostileClient::HostileClient(std::string tcp, std::string unix_path, uint64_t seed)
    : tcp_(std::move(tcp)), unix_path_(std::move(unix_path)), random_(seed) {}

const char* HostileClient::NameOf(size_t act) {
  return kKinds[act].name;
}

void HostileClient::Do(size_t act) {
  ++counts_.acts[act];
  (this->*kKinds[act].act)();
}

void HostileClient::ActOnce() {
  uint64_t shares = 0;
  for (const Kind& kind : kKinds) shares += kind.share;
  uint64_t dice = random_.Below(shares);
  size_t act = 0;
  while (dice >= kKinds[act].share) dice -= kKinds[act++].share;
  Do(act);
}

void HostileClient::ActAll() {
  for (size_t act = 0; act < kActs; ++act) Do(act);
}

void HostileClient::Leave() {
  held_.clear();
  pending_.clear();
}

// A socket over TCP or Unix, at random; Http2Peer works with both.
proto::FileDescriptor HostileClient::Connect() {
  return random_.OneIn(2) ? testing::ConnectTcp(tcp_) : testing::ConnectUnix(unix_path_);
}

void HostileClient::Hold(std::unique_ptr<Http2Peer> peer) {
  held_.push_back(std::move(peer));
  if (held_.size() > kHeldMax) held_.pop_front();
}

grpc::Status HostileClient::Call(const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::Status status = call(context);
  const bool lost = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                    status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    status.error_code() == grpc::StatusCode::INTERNAL ||
                    status.error_code() == grpc::StatusCode::UNKNOWN;
  if (lost && ++counts_.unanswered == 1) {
    std::fprintf(stderr, "rope_soak: hostile client: %s\n", testing::Text(status).c_str());
  }
  return status;
}

void HostileClient::SendHalf() {
  auto peer = std::make_unique<Http2Peer>(Connect());
  const std::string message(kHalfMessageBytes, '\1');
  const uint32_t stream =
      peer->StartCall(random_.OneIn(2) ? Http2Peer::kRotate : Http2Peer::kRotateStream);
  peer->SendPart(stream, message, random_.Below(message.size()), /*last=*/false, kSendPatience);
  if (random_.OneIn(2)) Hold(std::move(peer));  // otherwise it disconnects at once
}

void HostileClient::LeaveUnread() {
  auto peer = std::make_unique<Http2Peer>(Connect(), /*window=*/0);
  const std::string message = SmallRequest();
  const bool unary = random_.OneIn(2);
  const uint32_t stream = unary ? 0 : peer->StartCall(Http2Peer::kRotateStream);
  for (int i = 0; i < kUnreadAnswers; ++i) {
    if (unary) {
      peer->Call(message);
    } else {
      const std::string numbered =
          proto::StreamPrefix(static_cast<uint64_t>(i) + 1, static_cast<int64_t>(message.size())) +
          message;
      peer->SendPart(stream, numbered, numbered.size(), /*last=*/false, kSendPatience);
    }
  }
  Hold(std::move(peer));
}

// Registers one memory under id after id. Every second id is unregistered; the others end with
// their connection.
void HostileClient::RegisterRegions() {
  testing::RegionClient client(unix_path_, kMemoryBytes);
  std::vector<uint64_t> ids = {client.id()};
  while (ids.size() < kIds) {
    v1::RegisterRegionRequest request;
    request.set_region_id(ids.back());
    v1::RegisterRegionResponse response;
    const grpc::Status status = Call([&](grpc::ClientContext& context) {
      return client.stub().RegisterRegion(&context, request, &response);
    });
    if (!status.ok()) break;
    ids.push_back(response.region_id());
  }
  for (size_t i = 0; i < ids.size(); i += 2) {
    v1::UnregisterRegionRequest request;
    request.set_region_id(ids[i]);
    v1::UnregisterRegionResponse response;
    Call([&](grpc::ClientContext& context) {
      return client.stub().UnregisterRegion(&context, request, &response);
    });
  }
}

void HostileClient::BreakRing() {
  testing::RawRing ring;
  testing::RegionClient client(unix_path_, testing::SharedMemory::Memfd(kMemoryBytes),
                               &ring.memory());
  ring.set_doorbell(client.TakeDoorbell());
  ring.Send(1, testing::UnitRequest(1).SerializeAsString());
  switch (random_.Below(3)) {
    case 0:
      ring.Submit(proto::kRingSlots + static_cast<uint32_t>(random_.Below(1000)));
      break;
    case 1:
      ring.Write(2, "x");
      ring.slot(2).message_bytes.store(proto::kRingMessageBytes + 1);
      ring.Submit(2);
      break;
    default:
      ring.shared().submitted.fetch_add(proto::kRingSlots + 1);
  }
  ring.RingDoorbell();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!ring.IsClosed() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  if (!ring.IsClosed()) ++counts_.unanswered;
}

void HostileClient::SendGarbage() {
  proto::FileDescriptor connection = Connect();
  const proto::HelloBytes encoded = proto::Encode(proto::ClientHello{kMemoryBytes});
  const std::string hello(encoded.begin(), encoded.end());
  std::string bytes;
  switch (random_.Below(4)) {
    case 0:
      bytes = random_.RandomBytes(1 + random_.Below(2000));
      break;
    case 1:
      bytes = std::string(testing::kHttp2Preface) + random_.RandomBytes(random_.Below(2000));
      break;
    case 2:  // often without some of its descriptors
      bytes = hello.substr(0, random_.OneIn(2) ? hello.size() : random_.Below(hello.size()));
      break;
    default:
      bytes = hello;
      random_.Damage(bytes);
  }
  send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (!random_.OneIn(4)) return;
  pending_.push_back(std::move(connection));
  if (pending_.size() > kHeldMax) pending_.pop_front();
}

void HostileClient::ResetCalls() {
  Http2Peer peer(Connect());
  const std::string message = SmallRequest();
  for (int i = 0; i < kResetCalls; ++i) peer.Reset(peer.Call(message));
}

}  // namespace rope::bench
