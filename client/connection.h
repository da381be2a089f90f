// Connection: a stub and the retry loop. The only place that tries again.
//
// Threading:  Thread-safe, as far as Hooks are.
// Errors:     Of the last attempt.
#ifndef ROPE_CLIENT_CONNECTION_H_
#define ROPE_CLIENT_CONNECTION_H_

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <functional>
#include <string>

#include "client/payload_loans.h"
#include "client/stub.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

class Connection {
 public:
  // What tests replace.
  struct Hooks {
    std::function<void(std::chrono::microseconds)> sleep;
    std::function<double()> random;  // in [0, 1)
  };
  static Hooks DefaultHooks();

  Connection(const std::string& target, const ConnectOptions& options,
             Hooks hooks = DefaultHooks());

  // Waits until there is a connection; why there is none the next call tells.
  void WaitForConnected(std::chrono::microseconds timeout) const;

  // `idempotent`: doing it twice is as good as once.
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                bool idempotent, const CallOptions& options) const;

  // See Stub::AwaitReturn.
  void AwaitReturn(const PayloadLoans& loans) const { stub_.AwaitReturn(loans); }

 private:
  const Stub stub_;
  const int attempts_max_;
  const Hooks hooks_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CONNECTION_H_
