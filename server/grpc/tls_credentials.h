// TlsCredentials: the server's certificate, its key and the authorities of its clients, from files
// that may be replaced while it runs.
//
//   the files have changed (FileWatch) -> read -> do they fit together? -> the next handshake's
//                                                                     \-> those before stay
//
// gRPC's own credentials of files (FileWatcherCertificateProvider) have no certificate for a while
// when certificate and key are read from two different pairs; these keep the pair before.
//
// Threading:  Thread-safe. gRPC asks for the files on its own threads, during handshakes.
// Errors:     Load: NOT_FOUND, INVALID_ARGUMENT, with the flag's name.
#ifndef ROPE_SERVER_GRPC_TLS_CREDENTIALS_H_
#define ROPE_SERVER_GRPC_TLS_CREDENTIALS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/file_watch.h"

namespace rope::server {

// PEM files.
struct TlsFiles {
  std::string cert = {};       // the server's certificate, then those between it and an authority
  std::string key = {};        // of the first certificate
  std::string client_ca = {};  // authorities; empty: clients need no certificate

  bool enabled() const { return !cert.empty(); }
};

class TlsCredentials {
 public:
  static absl::StatusOr<std::shared_ptr<TlsCredentials>> Load(const TlsFiles& files);

  // Reads them again. After an error the files before stay in use.
  FileWatch& files() { return watch_; }
  // When the server's certificate ends.
  absl::Time expiry() const;

  // For gRPC. They keep `credentials`.
  static std::shared_ptr<grpc::ServerCredentials> ForGrpc(
      std::shared_ptr<TlsCredentials> credentials);

 private:
  explicit TlsCredentials(const TlsFiles& files)
      : files_(files),
        watch_({files.cert, files.key, files.client_ca},
               "TLS files: kept as they were: ", [this] { return Read(); }) {}

  struct Pems {
    std::string cert;
    std::string key;
    std::string client_ca;
  };
  // Reads the files for the next handshake, if they fit together and OpenSSL takes them.
  absl::StatusOr<LogLine> Read() ABSL_LOCKS_EXCLUDED(mutex_);
  // What gRPC asks for at the start and at each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* credentials, grpc_ssl_server_certificate_config** config);

  const TlsFiles files_;
  FileWatch watch_;
  mutable proto::Mutex mutex_;
  std::optional<Pems> loaded_ ABSL_GUARDED_BY(mutex_);  // that gRPC has not taken yet
  absl::Time expiry_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_TLS_CREDENTIALS_H_
