// A tensor in memory that the client library shares with the server.
//
// Threading:  As its memory is.
#ifndef ROPE_TESTS_BENCH_SHARED_TENSOR_H_
#define ROPE_TESTS_BENCH_SHARED_TENSOR_H_

#include <cstdint>
#include <cstring>

#include "kernels/check.h"
#include "rope/client.h"
#include "tests/bench/library_client.h"
#include "tests/bench/servers.h"
#include "tests/bench/workload.h"

namespace rope::bench {

// A connection with one tensor in its arena, rotated in place by calls of prepared requests.
class SharedTensor {
 public:
  SharedTensor(client::Transport transport, int64_t tokens)
      : client_(ConnectClient(Target(Kind::kSharedMemory, Socket::kUnix),
                              {.arena_bytes = tokens * kTokenBytes, .transports = {transport}})),
        slot_(client_.arena().Allocate(tokens * kTokenBytes).value()),
        request_(Prepared(client_, LibraryRequest(tokens, slot_.data(), slot_.data()))),
        empty_(Prepared(client_, LibraryRequest(0, slot_.data(), slot_.data()))) {
    std::memset(slot_.data(), 0x3c, static_cast<size_t>(slot_.bytes()));
  }

  void Call() const { ROPE_CHECK(client_.Rotate(request_).ok()); }
  void CallEmpty() const { ROPE_CHECK(client_.Rotate(empty_).ok()); }
  const client::Client& client() const { return client_; }

 private:
  client::Client client_;
  client::Slot slot_;
  client::RotateRequest request_;
  client::RotateRequest empty_;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SHARED_TENSOR_H_
