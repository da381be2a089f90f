#include "server/grpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr int64_t kPemBytesMax = int64_t{1} << 20;

using OwnedBio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using OwnedCertificate = std::unique_ptr<X509, decltype(&X509_free)>;
using OwnedKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

OwnedBio BioOf(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free};
}

// The first certificate of `pem`; null: there is none.
OwnedCertificate CertificateOf(const std::string& pem) {
  return {PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr), &X509_free};
}

// A key without a passphrase; null: it is none.
OwnedKey KeyOf(const std::string& pem) {
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  return {PEM_read_bio_PrivateKey(BioOf(pem).get(), nullptr, no_passphrase, nullptr),
          &EVP_PKEY_free};
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

// What gRPC does with them: OpenSSL refuses keys that are too short, and old digests.
bool IsUsable(X509* certificate, EVP_PKEY* key) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  &SSL_CTX_free);
  const bool usable = SSL_CTX_use_certificate(context.get(), certificate) == 1 &&
                      SSL_CTX_use_PrivateKey(context.get(), key) == 1;
  ERR_clear_error();
  return usable;
}

// gRPC's C++ has no server credentials that ask for their files; its C core has.
class AskingCredentials final : public grpc::ServerCredentials {
 public:
  AskingCredentials(std::shared_ptr<void> keeps, grpc_server_credentials* credentials)
      : keeps_(std::move(keeps)), credentials_(credentials, &grpc_server_credentials_release) {}

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_.get());
  }

  const std::shared_ptr<void> keeps_;
  const std::unique_ptr<grpc_server_credentials, decltype(&grpc_server_credentials_release)>
      credentials_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TlsCredentials>> TlsCredentials::Load(const TlsFiles& files) {
  const std::shared_ptr<TlsCredentials> credentials(new TlsCredentials(files));  // owned by itself
  ROPE_RETURN_IF_ERROR(credentials->watch_.Load());
  return credentials;
}

absl::StatusOr<LogLine> TlsCredentials::Read() {
  Pems pems;
  ROPE_ASSIGN_OR_RETURN(pems.cert, ReadFile("--tls_cert", files_.cert, kPemBytesMax));
  ROPE_ASSIGN_OR_RETURN(pems.key, ReadFile("--tls_key", files_.key, kPemBytesMax));
  const OwnedCertificate certificate = CertificateOf(pems.cert);
  const OwnedKey key = KeyOf(pems.key);
  if (certificate == nullptr) {
    return InvalidField("--tls_cert", files_.cert, "a file with a certificate in PEM");
  }
  if (key == nullptr) {
    return InvalidField("--tls_key", files_.key, "a file with a key in PEM, without a passphrase");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return InvalidField("--tls_key", absl::StrCat(files_.key, ", of another certificate"),
                        absl::StrCat("the key of ", files_.cert));
  }
  if (!IsUsable(certificate.get(), key.get())) {
    return InvalidField("--tls_cert", absl::StrCat(files_.cert, ", which OpenSSL refuses"),
                        "a key of at least 2048 bits, or 224 of a curve, and SHA-256 or better");
  }
  if (!files_.client_ca.empty()) {
    ROPE_ASSIGN_OR_RETURN(pems.client_ca,
                          ReadFile("--tls_client_ca", files_.client_ca, kPemBytesMax));
    if (CertificateOf(pems.client_ca) == nullptr) {
      return InvalidField("--tls_client_ca", files_.client_ca, "a file with certificates in PEM");
    }
  }
  proto::MutexLock lock(&mutex_);
  expiry_ = TimeOf(X509_get0_notAfter(certificate.get()));
  loaded_ = std::move(pems);
  return LogLine(
      absl::StrCat("TLS files: read again, the certificate ends ", absl::FormatTime(expiry_)));
}

absl::Time TlsCredentials::expiry() const {
  proto::MutexLock lock(&mutex_);
  return expiry_;
}

grpc_ssl_certificate_config_reload_status TlsCredentials::Fetch(
    void* credentials, grpc_ssl_server_certificate_config** config) {
  auto& self = *static_cast<TlsCredentials*>(credentials);
  std::optional<Pems> pems;
  {
    proto::MutexLock lock(&self.mutex_);
    pems.swap(self.loaded_);
  }
  if (!pems.has_value()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {pems->key.c_str(), pems->cert.c_str()};
  // gRPC wants authorities even if clients need no certificate; these are then not used.
  const std::string& authorities = pems->client_ca.empty() ? pems->cert : pems->client_ca;
  *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials::ForGrpc(
    std::shared_ptr<TlsCredentials> credentials) {
  const auto request = credentials->files_.client_ca.empty()
                           ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                           : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  grpc_ssl_server_credentials_options* const options =  // taken by the credentials
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          request, &TlsCredentials::Fetch, credentials.get());
  grpc_server_credentials* const made = grpc_ssl_server_credentials_create_with_options(options);
  return std::make_shared<AskingCredentials>(std::move(credentials), made);
}

}  // namespace rope::server
