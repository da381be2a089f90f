// Rows about tensors in memory that client and server share, through the client library:
//   shared_memory/in_place_42MB          in place against the same rotation in process
//   shared_memory/in_place_42MB_inline   the same against a call with the bytes in its message
//   shared_memory/added_1MiB             a call less the rotation in process, against an empty call
//   shared_memory/decode_token           a decode token through the ring against an empty call
//   shared_memory/imported_16MiB         K of the program moved in place, against the arena
//   shared_memory/imported_16MiB_staged  copies of it, against the same
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#include "rope/client.h"
#include "tests/bench/library_client.h"
#include "tests/bench/measure.h"
#include "tests/bench/servers.h"
#include "tests/bench/shared_tensor.h"
#include "tests/bench/workload.h"

namespace rope::bench {
namespace {

constexpr int64_t kManyTokens = 4096;  // 42 MB
constexpr int64_t kMebibyteTokens = (int64_t{1} << 20) / kTokenBytes;

// The same rotation without a server: existing rows, the same number of threads.
class InProcess {
 public:
  explicit InProcess(int64_t tokens)
      : workload_(tokens, kernels::DType::kBFloat16, kernels::Pairing::kHalf),
        backend_(kernels::CreateBackend("cpu", {.threads = Threads()}).value()),
        job_(workload_.job(true)) {}

  void Rotate() const { ROPE_CHECK(backend_->Rotate({&job_, 1}).ok()); }
  double bytes() const { return static_cast<double>(workload_.bytes()); }

 private:
  const Workload workload_;
  const std::unique_ptr<kernels::Backend> backend_;
  const kernels::RotateJob job_;
};

Measurement AgainstInProcess() {
  const SharedTensor shared(client::Transport::kRing, kManyTokens);
  const InProcess own(kManyTokens);
  const std::vector<double> seconds =
      MedianSeconds({[&] { shared.Call(); }, [&] { own.Rotate(); }}, 501);
  return {.value = own.bytes() / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = absl::StrFormat("in process %s, %d threads",
                                       GigabytesPerSecond(own.bytes(), seconds[1]), Threads()),
          .ratio = seconds[1] / seconds[0]};
}

Measurement AgainstInline() {
  const SharedTensor shared(client::Transport::kRing, kManyTokens);
  const Workload memory(kManyTokens, kernels::DType::kBFloat16, kernels::Pairing::kHalf);
  const client::RotateRequest request =
      Prepared(shared.client(), LibraryRequest(kManyTokens, memory.input(), memory.output()));
  const std::vector<double> seconds = MedianSeconds(
      {[&] { shared.Call(); }, [&] { ROPE_CHECK(shared.client().Rotate(request).ok()); }}, 101);
  const auto bytes = static_cast<double>(memory.bytes());
  return {.value = bytes / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = "inline on the same connection " + GigabytesPerSecond(bytes, seconds[1]),
          .ratio = seconds[1] / seconds[0]};
}

Measurement AddedTime() {
  const SharedTensor shared(client::Transport::kRing, kMebibyteTokens);
  const InProcess own(kMebibyteTokens);
  const std::vector<double> seconds = MedianSeconds(
      {[&] { shared.Call(); }, [&] { own.Rotate(); }, [&] { shared.CallEmpty(); }}, 2001);
  const double added = seconds[0] - seconds[1];
  return {.value = added * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("call %.1f us, in process %.1f us, empty call %.1f us",
                                       seconds[0] * 1e6, seconds[1] * 1e6, seconds[2] * 1e6),
          .ratio = added / seconds[2]};
}

Measurement DecodeToken() {
  const SharedTensor shared(client::Transport::kRing, 1);
  const std::vector<double> seconds =
      MedianSeconds({[&] { shared.Call(); }, [&] { shared.CallEmpty(); }}, 20001);
  return {.value = seconds[0] * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("empty call on the same ring %.2f us", seconds[1] * 1e6),
          .ratio = seconds[0] / seconds[1]};
}

// 16 MiB of K, moved by 1000 positions in place.
class MovedChunk {
 public:
  static constexpr int64_t kTokens = 8192;
  static constexpr int64_t kBytes = kTokens * 8 * 128 * 2;

  MovedChunk(client::Client client, void* memory) : client_(std::move(client)) {
    std::memset(memory, 0x3c, kBytes);
    request_.rope.model = "llama-3.1-8b";
    request_.operation = client::Operation::kReposition;
    request_.positions.start = 1000;
    request_.reposition = {.from = {.start = 0}};
    request_.tensors = {{.role = client::Role::kK,
                         .layout = "SHD",
                         .dtype = client::DType::kBFloat16,
                         .shape = {kTokens, 8, 128},
                         .data = memory,
                         .output = memory}};
  }
  void Call() const { ROPE_CHECK(client_.Rotate(request_).ok()); }

 private:
  const client::Client client_;
  client::RotateRequest request_;
};

// Seconds of a call on imported memory, and in the arena or on memory that is staged. Only these
// two take turns. Staging fills the caches with its copies, so a third kind would become slower.
std::vector<double> MoveChunks(bool against_arena) {
  const std::string target = Target(Kind::kSharedMemory, Socket::kUnix);
  const int file = memfd_create("rope_bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ROPE_CHECK(posix_fallocate(file, 0, MovedChunk::kBytes) == 0);
  ROPE_CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const client::Client importing = ConnectClient(target);
  const auto mine = importing.ImportMemory({.fd = file, .bytes = MovedChunk::kBytes}).value();
  close(file);
  ROPE_CHECK(mine.transport().transport == client::Transport::kRing);
  const client::Client with_arena = ConnectClient(target, {.arena_bytes = MovedChunk::kBytes});
  const client::Slot slot = with_arena.arena().Allocate(MovedChunk::kBytes).value();
  std::vector<char> own(MovedChunk::kBytes);
  const MovedChunk imported(importing, mine.data());
  const MovedChunk arena(with_arena, slot.data());
  const MovedChunk staged(ConnectClient(target), own.data());
  const MovedChunk& other = against_arena ? arena : staged;
  return MedianSeconds({[&] { imported.Call(); }, [&] { other.Call(); }}, 101);
}

Measurement ImportedChunk() {
  const std::vector<double> seconds = MoveChunks(/*against_arena=*/true);
  return {.value = seconds[0] * 1e3,
          .unit = "ms",
          .yardstick = absl::StrFormat("arena %.2f ms", seconds[1] * 1e3),
          .ratio = seconds[0] / seconds[1]};
}

Measurement StagedChunk() {
  const std::vector<double> seconds = MoveChunks(/*against_arena=*/false);
  return {.value = seconds[1] * 1e3,
          .unit = "ms",
          .yardstick = absl::StrFormat("imported %.2f ms", seconds[0] * 1e3),
          .ratio = seconds[1] / seconds[0]};
}

}  // namespace

std::vector<Row> SharedMemoryRows() {
  return {
      {"shared_memory/in_place_42MB", ">= 0.9", AgainstInProcess},
      {"shared_memory/in_place_42MB_inline", ">= 8", AgainstInline},
      {"shared_memory/added_1MiB", "<= 1.25", AddedTime},
      {"shared_memory/decode_token", "<= 1.5", DecodeToken},
      {"shared_memory/imported_16MiB", "<= 1.1", ImportedChunk},
      {"shared_memory/imported_16MiB_staged", ">= 3", StagedChunk},
  };
}

}  // namespace rope::bench
