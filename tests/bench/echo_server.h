// EchoServer: the yardstick of every row about calls. It has the same queues, spinning, allocator
// and channel options as the real server. It answers each Rotate, and each message of a
// RotateStream, with the received bytes, copied once into a pooled buffer.
//
// Threading:  Create and the destructor on one thread.
#ifndef ROPE_TESTS_BENCH_ECHO_SERVER_H_
#define ROPE_TESTS_BENCH_ECHO_SERVER_H_

#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/clients/buffer_pool.h"
#include "server/clients/connections.h"
#include "server/clients/regions.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/grpc/stream_call.h"
#include "server/ipc/listener.h"
#include "server/limits.h"
#include "tests/bench/echo_call.h"

namespace rope::bench {

// Serves as a process of modes.h.
[[noreturn]] void ServeEcho(const std::string& path);

class EchoServer {
 public:
  // Listens on a free port of 127.0.0.1 and at unix:`path`.
  EchoServer(const std::string& path, int threads, absl::Duration spin);
  ~EchoServer();

  // "127.0.0.1:PORT".
  const std::string& address() const { return listeners_.front()->address(); }

 private:
  // Consumes the bytes of `message`.
  grpc::ByteBuffer Echo(grpc::ByteBuffer& message);

  server::BufferPool pool_;
  server::CallsInFlight in_flight_;
  EchoCall::Method rotate_;
  const server::SteadyClock clock_;
  server::MessageReads reads_{clock_};
  server::Accounts accounts_{{.connections = 2 * server::limits::kMaxConnectionsCeiling}, clock_};
  server::RegionTotals regions_{{}};  // no regions
  server::Connections connections_{accounts_, regions_};
  server::StreamCall::Method rotate_stream_;
  server::OpenStreams open_streams_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<server::PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<server::Listener>> listeners_;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_ECHO_SERVER_H_
