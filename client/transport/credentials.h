// What a client shows to a server, and asks of it: TLS, and a bearer token (ConnectOptions).
//
// Threading:  Functions only; BearerToken is thread-safe.
// Errors:     INVALID_ARGUMENT, of a field of ConnectOptions.
#ifndef ROPE_CLIENT_TRANSPORT_CREDENTIALS_H_
#define ROPE_CLIENT_TRANSPORT_CREDENTIALS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

inline bool UsesTls(const TlsOptions& tls) {
  return tls.enabled || !tls.ca_file.empty() || !tls.cert_file.empty() || !tls.key_file.empty() ||
         !tls.server_name.empty();
}

// INVALID_ARGUMENT: TLS for a Unix target, a certificate without its key, a file that cannot be
// read.
Status CheckTls(const std::string& target, const TlsOptions& tls);

// REQUIRES: CheckTls has returned OK.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& tls);

// The token that goes with each RPC.
class BearerToken {
 public:
  // Null: the options have none. INVALID_ARGUMENT: both kinds of it, a file that cannot be read, a
  // token that gRPC does not send.
  static Result<std::shared_ptr<BearerToken>> Make(const ConnectOptions& options);

  void AddTo(grpc::ClientContext& context) const;
  // The server has refused the token: reads the file again.
  void OnRefused();

 private:
  explicit BearerToken(std::string file) : file_(std::move(file)) {}
  Status Set(const std::string& token, const char* field);
  Status Read();

  const std::string file_;  // empty: the token does not change
  mutable proto::Mutex mu_;
  std::string header_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_CREDENTIALS_H_
