// Access: who may do what. An access file names identities, how each is recognised, its rights and
// its limits:
//
//   {"identities": [
//     {"name": "pipeline", "tokens_sha256": ["9f86d0..."], "rights": ["rotate", "describe"]},
//     {"name": "engine", "certificates": ["spiffe://cluster/engine"], "rights": ["rotate"],
//      "max_requests": 64, "max_bytes": 268435456},
//     {"name": "operator", "uids": [1000], "rights": ["rotate", "inspect"]}]}
//
// A call's certificate counts before its token, and its token before the user at the other end of
// its Unix socket. A certificate that no identity has leaves it to the token; a token that no
// identity has is refused, and so is a call that matches none. Tokens are compared as SHA-256
// digests, in a time that does not depend on their bytes, and the file does not tell them.
//
// Threading:  Thread-safe.
// Errors:     Load: NOT_FOUND, INVALID_ARGUMENT with the path of the key. Admit:
//             UNAUTHENTICATED, PERMISSION_DENIED.
// Limits:     kIdentitiesMax identities, kTokensMax tokens, a file of kFileBytesMax.
#ifndef ROPE_SERVER_CLIENTS_ACCESS_H_
#define ROPE_SERVER_CLIENTS_ACCESS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/mutex.h"
#include "server/clients/account.h"
#include "server/file_watch.h"

namespace rope::server {

// What a call does.
enum class Right {
  kRotate = 1,    // Rotate, RotateStream, Prepare, RegisterRegion, UnregisterRegion, rings
  kDescribe = 2,  // Describe, Fingerprint, GetTables, ListModels
  kInspect = 4,   // GetServerInfo, ListConnections, ListRegions
};

// "rotate", "describe" or "inspect".
const char* Name(Right right);

// Somebody of the access file.
struct Identity {
  std::string name;
  uint32_t rights = 0;               // of Right
  std::shared_ptr<Account> account;  // of the owner "id:NAME", never null
  // Bounds of the account, which it has once the whole file is right.
  int64_t requests_max = Account::kNoLimit;
  int64_t bytes_max = Account::kNoLimit;
};

// What a client shows.
struct Credentials {
  // Names in its verified certificate: URIs, DNS names, the common name. Empty: it has none.
  std::vector<std::string> certificates = {};
  std::string token = {};        // of "authorization: Bearer TOKEN"; empty: none
  absl::string_view owner = {};  // "uid:1000" at a Unix socket; anything else is nobody
};

class Access {
 public:
  static constexpr int64_t kFileBytesMax = int64_t{1} << 20;
  static constexpr size_t kIdentitiesMax = 1000;
  static constexpr size_t kTokensMax = 2000;  // each call with a token is compared with all

  // Reads the file. `accounts` must outlive the result.
  static absl::StatusOr<std::unique_ptr<Access>> Load(const std::string& path, Accounts& accounts);

  // Reads it again. After an error the identities stay as they were.
  FileWatch& file() { return file_; }

  // The identity of a call that needs `right`. UNAUTHENTICATED: nobody is known by these
  // credentials. PERMISSION_DENIED: the identity lacks the right.
  absl::StatusOr<std::shared_ptr<const Identity>> Admit(const Credentials& credentials,
                                                        Right right) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  using IdentityPtr = std::shared_ptr<const Identity>;
  struct List {
    std::vector<IdentityPtr> identities;
    std::vector<std::pair<Digest, IdentityPtr>> tokens;
    std::map<std::string, IdentityPtr, std::less<>> certificates;
    std::map<std::string, IdentityPtr, std::less<>> owners;  // by "uid:1000"
  };
  friend class AccessParser;

  Access(const std::string& path, Accounts& accounts)
      : accounts_(accounts),
        path_(path),
        file_({path}, "access file: kept as it was: ", [this] { return Read(); }) {}
  absl::StatusOr<LogLine> Read() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<const List> list() const {
    proto::MutexLock lock(&mutex_);
    return list_;
  }
  static const IdentityPtr* Find(const List& list, const Credentials& credentials);

  Accounts& accounts_;
  const std::string path_;
  FileWatch file_;
  mutable proto::Mutex mutex_;
  std::shared_ptr<const List> list_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_ACCESS_H_
