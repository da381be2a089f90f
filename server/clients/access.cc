#include "server/clients/access.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kIdentityNameBytesMax = 128;
constexpr std::pair<Right, const char*> kRights[] = {
    {Right::kRotate, "rotate"}, {Right::kDescribe, "describe"}, {Right::kInspect, "inspect"}};

absl::Status Wrong(absl::string_view path, absl::string_view got, absl::string_view want) {
  return InvalidField(absl::StrCat("access_file.", path), got, want);
}

// What a person finds in an error: the value, cut.
std::string Shown(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return ShortText(value.dump(-1, ' ', true, Json::error_handler_t::replace), 64);
}

absl::StatusOr<std::vector<std::string>> ReadTexts(const Json& object, const char* key,
                                                   const std::string& path) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end()) return texts;
  const std::string where = absl::StrCat(path, ".", key);
  if (!found->is_array()) return Wrong(where, Shown(*found), "a list of texts");
  for (const Json& item : *found) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
      return Wrong(where, Shown(item), "a text");
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

absl::StatusOr<int64_t> ReadLimit(const Json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  if (found == object.end()) return Account::kNoLimit;
  if (!found->is_number_integer() || found->get<int64_t>() < 0) {
    return Wrong(absl::StrCat(path, ".", key), Shown(*found), "a number, 0 or more");
  }
  return found->get<int64_t>();
}

absl::Status CheckKeys(const Json& object, const std::set<std::string>& known,
                       const std::string& path) {
  for (const auto& [key, value] : object.items()) {
    if (known.contains(key)) continue;
    std::string want;
    for (const std::string& name : known) absl::StrAppend(&want, want.empty() ? "" : ", ", name);
    return Wrong(absl::StrCat(path.empty() ? "" : absl::StrCat(path, "."), ShortText(key, 64)),
                 "an unknown key", absl::StrCat("one of ", want));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReadRights(const Json& object, const std::string& path) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ReadTexts(object, "rights", path));
  uint32_t rights = 0;
  for (const std::string& name : names) {
    uint32_t one = 0;
    for (const auto& [right, known] : kRights) {
      if (name == known) one = static_cast<uint32_t>(right);
    }
    if (one == 0) {
      return Wrong(absl::StrCat(path, ".rights"), ShortText(name, 64),
                   "rotate, describe or inspect");
    }
    rights |= one;
  }
  return rights;
}

}  // namespace

const char* Name(Right right) {
  return std::ranges::find(kRights, right, [](const auto& each) { return each.first; })->second;
}

// Reads one file.
class AccessParser {
 public:
  using List = Access::List;

  explicit AccessParser(Accounts& accounts) : accounts_(accounts) {}

  absl::StatusOr<std::shared_ptr<const List>> Parse(const std::string& text) {
    bool is_twice = false;  // a key in one object
    std::vector<std::set<std::string>> keys;
    const auto note = [&](int, Json::parse_event_t event, Json& value) {
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key) {
        is_twice = is_twice || !keys.back().insert(value.get<std::string>()).second;
      }
      return true;
    };
    const Json root = Json::parse(text, note, /*allow_exceptions=*/false);
    if (is_twice) return InvalidField("access_file", "a key twice in one object", "each key once");
    if (!root.is_object()) {
      return InvalidField("access_file", "no JSON object", "{\"identities\": [...]}");
    }
    ROPE_RETURN_IF_ERROR(CheckKeys(root, {"identities"}, ""));
    const auto found = root.find("identities");
    if (found == root.end() || !found->is_array()) {
      return Wrong("identities", found == root.end() ? "nothing" : Shown(*found), "a list");
    }
    if (found->size() > Access::kIdentitiesMax) {
      return Wrong("identities", absl::StrCat(found->size()),
                   absl::StrCat("at most ", Access::kIdentitiesMax));
    }
    for (size_t i = 0; i < found->size(); ++i) {
      ROPE_RETURN_IF_ERROR(ReadIdentity((*found)[i], absl::StrCat("identities[", i, "]")));
    }
    return list_;
  }

 private:
  absl::Status ReadIdentity(const Json& object, const std::string& path) {
    if (!object.is_object()) return Wrong(path, Shown(object), "an object");
    ROPE_RETURN_IF_ERROR(CheckKeys(
        object,
        {"name", "tokens_sha256", "certificates", "uids", "rights", "max_requests", "max_bytes"},
        path));
    const auto name = object.find("name");
    if (name == object.end() || !name->is_string() || name->get_ref<const std::string&>().empty() ||
        name->get_ref<const std::string&>().size() > kIdentityNameBytesMax) {
      return Wrong(absl::StrCat(path, ".name"), name == object.end() ? "nothing" : Shown(*name),
                   absl::StrCat("a text of 1 to ", kIdentityNameBytesMax, " bytes"));
    }
    const auto identity = std::make_shared<Identity>();
    identity->name = name->get<std::string>();
    if (!names_.insert(identity->name).second) {
      return Wrong(absl::StrCat(path, ".name"), identity->name, "each name once");
    }
    ROPE_ASSIGN_OR_RETURN(identity->rights, ReadRights(object, path));
    ROPE_ASSIGN_OR_RETURN(identity->requests_max, ReadLimit(object, "max_requests", path));
    ROPE_ASSIGN_OR_RETURN(identity->bytes_max, ReadLimit(object, "max_bytes", path));
    identity->account = accounts_.Of(absl::StrCat("id:", identity->name));
    list_->identities.push_back(identity);
    return ReadCredentials(object, path, identity);
  }

  absl::Status ReadCredentials(const Json& object, const std::string& path,
                               const Access::IdentityPtr& identity) {
    ROPE_ASSIGN_OR_RETURN(const auto digests, ReadTexts(object, "tokens_sha256", path));
    for (const std::string& digest : digests) {
      ROPE_RETURN_IF_ERROR(AddToken(digest, absl::StrCat(path, ".tokens_sha256"), identity));
    }
    ROPE_ASSIGN_OR_RETURN(const auto certificates, ReadTexts(object, "certificates", path));
    for (const std::string& name : certificates) {
      if (!list_->certificates.emplace(name, identity).second) {
        return Wrong(absl::StrCat(path, ".certificates"), name, "each name once");
      }
    }
    const auto uids = object.find("uids");
    const bool has_uids = uids != object.end();
    if (has_uids && !uids->is_array()) {
      return Wrong(absl::StrCat(path, ".uids"), Shown(*uids), "a list of numbers");
    }
    for (const Json& uid : has_uids ? *uids : Json::array()) {
      const bool legal =
          uid.is_number_unsigned() && uid.get<uint64_t>() < std::numeric_limits<uint32_t>::max();
      if (!legal ||
          !list_->owners.emplace(absl::StrCat("uid:", uid.get<uint64_t>()), identity).second) {
        return Wrong(absl::StrCat(path, ".uids"), Shown(uid), "numbers of users, each once");
      }
    }
    if (digests.empty() && certificates.empty() && (!has_uids || uids->empty())) {
      return Wrong(path, "nothing to know it by", "tokens_sha256, certificates or uids");
    }
    return absl::OkStatus();
  }

  absl::Status AddToken(const std::string& text, const std::string& path,
                        const Access::IdentityPtr& identity) {
    Access::Digest digest{};
    bool legal = text.size() == 2 * digest.size();
    for (size_t i = 0; legal && i < digest.size(); ++i) {
      const char* const end = text.data() + 2 * i + 2;
      legal = std::from_chars(end - 2, end, digest[i], 16).ptr == end;
    }
    if (!legal) {
      return Wrong(path, absl::StrCat(text.size(), " characters"), "64 hexadecimal digits each");
    }
    if (!digests_.insert(digest).second) return Wrong(path, "one for the second time", "each once");
    if (list_->tokens.size() == Access::kTokensMax) {
      return Wrong(path, absl::StrCat(Access::kTokensMax + 1, " in the file"),
                   absl::StrCat("at most ", Access::kTokensMax));
    }
    list_->tokens.emplace_back(digest, identity);
    return absl::OkStatus();
  }

  Accounts& accounts_;
  const std::shared_ptr<List> list_ = std::make_shared<List>();
  std::set<std::string> names_;
  std::set<Access::Digest> digests_;
};

absl::StatusOr<std::unique_ptr<Access>> Access::Load(const std::string& path, Accounts& accounts) {
  std::unique_ptr<Access> access(new Access(path, accounts));  // owned by the result
  ROPE_RETURN_IF_ERROR(access->file_.Load());
  return access;
}

absl::StatusOr<LogLine> Access::Read() {
  ROPE_ASSIGN_OR_RETURN(const std::string text, ReadFile("--access_file", path_, kFileBytesMax));
  ROPE_ASSIGN_OR_RETURN(std::shared_ptr<const List> list, AccessParser(accounts_).Parse(text));
  for (const IdentityPtr& identity : list->identities) {
    identity->account->SetLimits(identity->requests_max, identity->bytes_max);
  }
  LogLine line("access file: read again,");
  line.Number("identities", static_cast<int64_t>(list->identities.size()));
  proto::MutexLock lock(&mutex_);
  list_.swap(list);  // the one before goes after the lock
  return line;
}

// Every token is compared with every digest to its end, so that the time says nothing of them.
const Access::IdentityPtr* Access::Find(const List& list, const Credentials& credentials) {
  for (const std::string& name : credentials.certificates) {
    const auto found = list.certificates.find(name);
    if (found != list.certificates.end()) return &found->second;
  }
  if (!credentials.token.empty()) {
    Digest digest{};
    SHA256(reinterpret_cast<const uint8_t*>(credentials.token.data()), credentials.token.size(),
           digest.data());
    const IdentityPtr* match = nullptr;
    for (const auto& [known, identity] : list.tokens) {
      if (CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0) match = &identity;
    }
    return match;  // a token that was taken from the file must not pass as the user who has it
  }
  const auto found = list.owners.find(credentials.owner);
  return found == list.owners.end() ? nullptr : &found->second;
}

absl::StatusOr<std::shared_ptr<const Identity>> Access::Admit(const Credentials& credentials,
                                                              Right right) const {
  const std::shared_ptr<const List> current = list();
  const IdentityPtr* const identity = Find(*current, credentials);
  if (identity == nullptr) {
    std::string got = "a connection without any";
    if (!credentials.certificates.empty()) got = "a certificate that nobody has";
    if (!credentials.token.empty()) got = "a token that nobody has";
    return MakeError(Reason::kCredentials, "credentials", got,
                     "those of an identity of the server's access file");
  }
  if (((*identity)->rights & static_cast<uint32_t>(right)) != 0) return *identity;
  return MakeError(Reason::kPermission, "identity", (*identity)->name,
                   absl::StrCat("one with the right \"", Name(right), "\""));
}

}  // namespace rope::server
