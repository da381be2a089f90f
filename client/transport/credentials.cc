#include "client/transport/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::client {
namespace {

constexpr unsigned kLookEverySeconds = 30;  // for files that were replaced

Status CheckFile(const char* field, const std::string& path) {
  errno = 0;
  if (path.empty() || (std::ifstream(path).get() != std::ifstream::traits_type::eof())) return {};
  return InvalidField(field, proto::NoContentOf(path), "a file with content");
}

}  // namespace

Status CheckTls(const std::string& target, const TlsOptions& tls) {
  if (!UsesTls(tls)) return {};
  if (absl::StartsWith(target, "unix")) {
    return InvalidField("tls", absl::StrCat("it for ", target), "a TCP target");
  }
  if (absl::StrContains(target, ',') && tls.server_name.empty()) {
    return InvalidField("tls.server_name", absl::StrCat("nothing for ", target),
                        "the name that the certificates of several addresses have");
  }
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return InvalidField(tls.cert_file.empty() ? "tls.key_file" : "tls.cert_file", "it alone",
                        "tls.cert_file and tls.key_file");
  }
  for (const auto& [field, path] :
       {std::pair("tls.ca_file", &tls.ca_file), std::pair("tls.cert_file", &tls.cert_file),
        std::pair("tls.key_file", &tls.key_file)}) {
    ROPE_RETURN_IF_ERROR(CheckFile(field, *path));
  }
  return {};
}

// gRPC's provider reads replaced files, for connections that it makes later.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& tls) {
  if (!UsesTls(tls)) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (!tls.ca_file.empty() || !tls.cert_file.empty()) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
            tls.key_file, tls.cert_file, tls.ca_file, kLookEverySeconds));
  }
  if (!tls.ca_file.empty()) options.watch_root_certs();
  if (!tls.cert_file.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

Result<std::shared_ptr<BearerToken>> BearerToken::Make(const ConnectOptions& options) {
  if (options.token.empty() && options.token_file.empty()) return std::shared_ptr<BearerToken>();
  if (!options.token.empty() && !options.token_file.empty()) {
    return InvalidField("token_file", "it and token", "one of them");
  }
  const std::shared_ptr<BearerToken> token(new BearerToken(options.token_file));  // owned by itself
  ROPE_RETURN_IF_ERROR(options.token_file.empty() ? token->Set(options.token, "token")
                                                  : token->Read());
  return token;
}

// An error does not show the token.
Status BearerToken::Set(const std::string& token, const char* field) {
  const bool legal = !token.empty() && std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!legal) {
    return InvalidField(field, absl::StrCat("a token of ", token.size(), " bytes"),
                        "printable ASCII without spaces");
  }
  const proto::MutexLock lock(&mu_);
  header_ = absl::StrCat("Bearer ", token);
  return {};
}

Status BearerToken::Read() {
  ROPE_RETURN_IF_ERROR(CheckFile("token_file", file_));
  std::string line;
  std::getline(std::ifstream(file_), line);
  absl::StripAsciiWhitespace(&line);
  return Set(line, "token_file");
}

void BearerToken::AddTo(grpc::ClientContext& context) const {
  const proto::MutexLock lock(&mu_);
  context.AddMetadata("authorization", header_);
}

// A file that is wrong for a moment leaves the token as it was.
void BearerToken::OnRefused() {
  if (!file_.empty()) static_cast<void>(Read());
}

}  // namespace rope::client
