// A real rope_server process on a free port; the destructor stops it.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_TEST_SERVER_H_
#define ROPE_TESTS_SUPPORT_TEST_SERVER_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "rope/v1/rope_service.grpc.pb.h"
#include "tests/support/process.h"

namespace rope::testing {

// Returns a channel that has its own connection and takes messages of any size.
std::shared_ptr<grpc::Channel> NewChannelTo(const std::string& target);

class TestServer {
 public:
  // Listens on a free port of 127.0.0.1, and on every address in `flags`. Runs under `limit` if
  // there is one, which must outlive the server.
  explicit TestServer(const std::vector<std::string>& flags = {},
                      Process::Errors errors = Process::Errors::kOurs,
                      const MemoryLimit* limit = nullptr,
                      const std::string& program = ServerProgram());

  // "127.0.0.1:PORT".
  const std::string& address() const { return address_; }
  // The other lines that it printed at its start, for example "metrics on ...".
  const std::vector<std::string>& lines() const { return lines_; }
  Process& process() { return process_; }

  std::shared_ptr<grpc::Channel> NewChannel() const { return NewChannelTo(address_); }
  std::unique_ptr<v1::RopeService::Stub> NewStub() const;

 private:
  Process process_;
  std::string address_;
  std::vector<std::string> lines_;
};

// A request that every server answers: (1, 0) at `position`, fp32 numbers, head_dim 2.
v1::RotateRequest UnitRequest(int64_t position);

// True when `response` is the answer to UnitRequest(1), to 1e-7.
bool IsUnitAnswer(const v1::RotateResponse& response);

// Sends the unit request and checks the answer.
bool Serves(v1::RopeService::Stub& stub);

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_TEST_SERVER_H_
