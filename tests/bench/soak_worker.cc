#include "tests/bench/soak_worker.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <thread>
#include <utility>

#include "proto/ipc/ring.h"
#include "tests/bench/library_client.h"

namespace rope::bench {
namespace {

constexpr uint64_t kInFlightMax = 3;
constexpr int64_t kHeads = 8;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kTokenBytes = kHeads * kHeadDim * 2;
constexpr int64_t kTensorBytesMax = int64_t{16} << 20;
constexpr int64_t kTokensMax = kTensorBytesMax / kTokenBytes;
constexpr uint64_t kPeers = 5;  // inline over TCP and Unix, memfd, staged, ring
constexpr int64_t kStagedBytes = 3 * kTensorBytesMax;

client::ConnectOptions WithArena(client::Transport transport) {
  return {.arena_bytes = 2 * kTensorBytesMax, .transports = {transport}};
}
client::ConnectOptions WithStaging() {
  return {.staged_bytes = kStagedBytes,
          .transports = {client::Transport::kRing, client::Transport::kMemfd}};
}

}  // namespace

const int64_t SoakWorker::kMappedBytesMax =
    2 * (2 * kTensorBytesMax) + 2 * kStagedBytes + 3 * sizeof(proto::Ring);

// A connection, and memory for an input and an output: of its arena, or where it has none, the
// program's.
struct SoakWorker::Peer {
  Peer(const std::string& target, const client::ConnectOptions& options)
      : client(ConnectClient(target, options)) {
    if (options.arena_bytes > 0) {
      slots = {client.arena().Allocate(kTensorBytesMax).value(),
               client.arena().Allocate(kTensorBytesMax).value()};
      input = static_cast<uint16_t*>(slots[0].data());
      output = static_cast<uint16_t*>(slots[1].data());
    } else {
      memory.resize(kTensorBytesMax);
      input = memory.data();
      output = input + kTensorBytesMax / 2;
    }
    std::fill_n(input, kTensorBytesMax / 2, uint16_t{0x3f80});
  }

  client::Client client;
  std::array<client::Slot, 2> slots;
  std::vector<uint16_t> memory;
  uint16_t* input = nullptr;
  uint16_t* output = nullptr;
};

SoakWorker::SoakWorker(std::string tcp, std::string unix, uint64_t seed, SoakCounts& counts)
    : tcp_(std::move(tcp)), unix_(std::move(unix)), random_(seed), counts_(counts) {
  peers_.push_back(std::make_unique<Peer>(tcp_, WithArena(client::Transport::kInline)));
  peers_.push_back(std::make_unique<Peer>(unix_, WithArena(client::Transport::kInline)));
  peers_.resize(kPeers);
  peers_[3] = std::make_unique<Peer>(unix_, WithStaging());
  ConnectMemfd();
  ConnectRing();
}

SoakWorker::~SoakWorker() = default;

void SoakWorker::SendMost() {
  for (const auto& peer : peers_) {
    peer_ = peer.get();
    Set(kTokensMax);
    SendAtOnce(kInFlightMax, false);
  }
}

void SoakWorker::SendOne() {
  const uint64_t dice = Below(100);
  if (Below(2000) == 0) ConnectMemfd();
  if (Below(2000) == 0) ConnectRing();
  peer_ = peers_[Below(kPeers)].get();
  Set(RandomTokens());
  if (dice < 5) return Invalid();
  if (dice < 10) return Cancelled();
  const client::Client& client = peer_->client;
  if (dice < 70) return Count(client.Rotate(request_).status(), Fate::kAnswered);
  if (dice < 85) {
    return Count(client.RotateFuture(request_).get().status(), Fate::kAnswered);
  }
  SendAtOnce(1 + Below(kInFlightMax), Below(20) == 0);
}

// The previous client must be destroyed first: its memory goes with it.
void SoakWorker::ConnectMemfd() {
  peers_[2].reset();
  peers_[2] = std::make_unique<Peer>(unix_, WithArena(client::Transport::kMemfd));
}
void SoakWorker::ConnectRing() {
  peers_[4].reset();
  peers_[4] = std::make_unique<Peer>(unix_, WithArena(client::Transport::kRing));
}

int64_t SoakWorker::RandomTokens() {
  const uint64_t dice = Below(1000);
  if (dice < 900) return 1 + static_cast<int64_t>(Below(8));
  if (dice < 980) return 1 + static_cast<int64_t>(Below(64));
  if (dice < 998) return 1 + static_cast<int64_t>(Below(kTokensMax / 16));
  return kTokensMax;
}

void SoakWorker::Set(int64_t tokens) {
  request_ = {};
  request_.rope.config.emplace();
  request_.rope.config->head_dim = kHeadDim;
  request_.rope.config->rope_theta = 10000 + static_cast<double>(Below(5000));
  request_.rope.pairing = client::Pairing::kHalf;
  request_.positions.start = static_cast<int64_t>(Below(1'000'000));
  request_.tensors.push_back({.layout = "SHD",
                              .dtype = client::DType::kBFloat16,
                              .shape = {tokens, kHeads, kHeadDim},
                              .data = peer_->input,
                              .output = peer_->output});
}

void SoakWorker::Invalid() {
  switch (Below(4)) {
    case 0:
      request_.tensors[0].layout = "XHD";
      break;
    case 1:
      request_.positions.start = -1;
      break;
    case 2:
      request_.rope.config->rope_theta = -1;
      break;
    default:
      request_.positions.position_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  }
  Count(peer_->client.Rotate(request_).status(), Fate::kInvalid);
}

void SoakWorker::Cancelled() {
  std::promise<Status> ended;
  const client::Call call = peer_->client.RotateAsync(
      request_, [&](const Result<client::RotateReply>& reply) { ended.set_value(reply.status()); });
  if (Below(2) == 0) std::this_thread::yield();
  call.Cancel();
  Count(ended.get_future().get(), Fate::kCancelled);
}

void SoakWorker::SendAtOnce(uint64_t requests, bool dropped) {
  const client::RotateRequest call = Prepared(peer_->client, request_);
  std::vector<std::promise<Status>> ended(requests);
  std::vector<client::Call> calls;
  for (std::promise<Status>& end : ended) {
    calls.push_back(peer_->client.RotateAsync(
        call, [&end](const Result<client::RotateReply>& reply) { end.set_value(reply.status()); }));
  }
  for (const client::Call& each : calls) {
    if (dropped) each.Cancel();
  }
  for (std::promise<Status>& end : ended) {
    Count(end.get_future().get(), dropped ? Fate::kCancelled : Fate::kAnswered);
  }
}

void SoakWorker::Count(const Status& status, Fate fate) {
  if (fate == Fate::kInvalid && status.code() == StatusCode::kInvalidArgument) {
    ++counts_.invalid;
  } else if (fate == Fate::kCancelled && status.code() == StatusCode::kCancelled) {
    ++counts_.cancelled;
  } else if (fate != Fate::kInvalid && status.ok()) {
    ++counts_.ok;
  } else if (++counts_.wrong == 1) {
    std::fprintf(stderr, "rope_soak: %s\n", status.ToString().c_str());
  }
}

}  // namespace rope::bench
