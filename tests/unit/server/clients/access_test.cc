#include "server/clients/access.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::testing::HasSubstr;

std::string DigestOf(const std::string& token) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string FileOf(const std::string& identities) {
  return absl::StrCat("{\"identities\": [", identities, "]}");
}

std::string WithToken(const std::string& name, const std::string& token,
                      const std::string& rights) {
  return absl::StrCat("{\"name\": \"", name, "\", \"tokens_sha256\": [\"", DigestOf(token),
                      "\"], \"rights\": [", rights, "]}");
}

class AccessTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  absl::StatusOr<std::unique_ptr<Access>> Load(const std::string& text) {
    Write(text);
    return Access::Load(path_, clients_.accounts);
  }
  // The name of the identity that is admitted, or the error.
  static std::string Who(Access& access, const Credentials& credentials,
                         Right right = Right::kRotate) {
    const auto identity = access.Admit(credentials, right);
    return identity.ok() ? (*identity)->name : std::string(identity.status().message());
  }

  const std::string path_ = testing::TemporaryFolder() + "/access.json";
  testing::TestClients clients_{{.requests = 9, .request_bytes = 9}};
};

TEST_F(AccessTest, CertificateCountsBeforeTokenAndTokenBeforeUser) {
  ASSERT_OK(access, Load(FileOf(absl::StrCat(WithToken("by_token", "secret", "\"rotate\""), R"(,
    {"name": "by_name", "certificates": ["spiffe://a/b", "host"], "rights": ["rotate"]},
    {"name": "by_user", "uids": [7, 8], "rights": ["rotate"]})"))));
  EXPECT_EQ(Who(**access, {.certificates = {"other", "host"}, .token = "secret"}), "by_name");
  EXPECT_EQ(Who(**access, {.certificates = {"other"}, .token = "secret", .owner = "uid:7"}),
            "by_token");
  EXPECT_EQ(Who(**access, {.owner = "uid:8"}), "by_user");
  EXPECT_THAT(Who(**access, {.certificates = {"other"}}), HasSubstr("a certificate that nobody"));
  EXPECT_THAT(Who(**access, {.token = "Secret", .owner = "uid:7"}),
              HasSubstr("a token that nobody"))
      << "a token that is not known does not pass as its user";
  for (const char* owner : {"", "uid:9", "ip:loopback", "unknown"}) {
    EXPECT_THAT(Who(**access, {.owner = owner}), HasSubstr("a connection without any")) << owner;
  }
}

TEST_F(AccessTest, EachRightIsOfItself) {
  constexpr Right kAll[] = {Right::kRotate, Right::kDescribe, Right::kInspect};
  for (const Right has : kAll) {
    ASSERT_OK(access, Load(FileOf(WithToken("one", "t", absl::StrCat("\"", Name(has), "\"")))));
    for (const Right needs : kAll) {
      const auto admitted = (*access)->Admit({.token = "t"}, needs);
      EXPECT_EQ(admitted.ok(), has == needs) << Name(has) << " " << Name(needs);
      if (has == needs) continue;
      EXPECT_THAT(admitted,
                  StatusIs(absl::StatusCode::kPermissionDenied,
                           HasSubstr(absl::StrCat("identity: got one, want one with the right \"",
                                                  Name(needs), "\""))));
    }
  }
  ASSERT_OK(access, Load(FileOf(WithToken("one", "t", ""))));
  EXPECT_THAT((*access)->Admit({.token = "x"}, Right::kRotate),
              StatusIs(absl::StatusCode::kUnauthenticated, ::testing::_));
}

TEST_F(AccessTest, ChangedFileIsReadAtTheNextLook) {
  ASSERT_OK(access, Load(FileOf(WithToken("old", "a", "\"rotate\""))));
  Write(FileOf(absl::StrCat(WithToken("new", "b", "\"rotate\""), ",",
                            WithToken("more", "c", "\"rotate\""))));
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "b"}), "new");
  EXPECT_EQ(Who(**access, {.token = "c"}), "more");
  EXPECT_THAT(Who(**access, {.token = "a"}), HasSubstr("a token that nobody has")) << "revoked";
}

TEST_F(AccessTest, FileThatIsWrongChangesNothing) {
  ASSERT_OK(access, Load(FileOf(WithToken("old", "a", "\"rotate\""))));
  Write("{");
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  (*access)->file().Reload();
  EXPECT_EQ((*access)->file().failures(), 2);
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  Write(FileOf(WithToken("new", "b", "\"rotate\"")));
  (*access)->file().Reload();
  EXPECT_EQ(Who(**access, {.token = "b"}), "new");
}

TEST_F(AccessTest, FileThatIsGoneForAWhileChangesNothing) {
  ASSERT_OK(access, Load(FileOf(WithToken("old", "a", "\"rotate\""))));
  std::filesystem::rename(path_, path_ + "x");
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  Write(FileOf(WithToken("new", "b", "\"rotate\"")));
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "b"}), "new");
}

TEST_F(AccessTest, UseOutlivesAReload) {
  const std::string limited =
      R"({"name": "one", "uids": [1], "rights": ["rotate"], "max_requests": 1})";
  ASSERT_OK(access, Load(FileOf(limited)));
  ASSERT_OK(before, (*access)->Admit({.owner = "uid:1"}, Right::kRotate));
  EXPECT_THAT((*before)->account->Take(Resource::kRequests, 1), testing::IsOk());
  (*access)->file().Reload();
  ASSERT_OK(after, (*access)->Admit({.owner = "uid:1"}, Right::kRotate));
  EXPECT_THAT((*after)->account->Take(Resource::kRequests, 1),
              testing::IsExhausted("queue: got request 2 of id:one, want at most 1"));
  (*before)->account->Give(Resource::kRequests, 1);
}

TEST_F(AccessTest, FilesThatAreWrongAreRefusedByKey) {
  const std::string digest = DigestOf("t");
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "access_file: got no JSON object"},
      {"{}", "access_file.identities: got nothing, want a list"},
      {R"({"identities": 3})", "access_file.identities: got 3, want a list"},
      {R"({"identities": [], "other": 1})",
       "access_file.other: got an unknown key, want one of identities"},
      {FileOf("3"), "access_file.identities[0]: got 3, want an object"},
      {FileOf(R"({"rights": []})"), "access_file.identities[0].name: got nothing"},
      {FileOf(R"({"name": ""})"), "access_file.identities[0].name: got \"\""},
      {FileOf(R"({"name": "a", "rights": ["read"], "uids": [1]})"),
       "access_file.identities[0].rights: got read, want rotate, describe or inspect"},
      {FileOf(R"({"name": "a", "right": ["rotate"], "uids": [1]})"),
       "access_file.identities[0].right: got an unknown key"},
      {FileOf(R"({"name": "a", "rights": ["rotate"]})"),
       "access_file.identities[0]: got nothing to know it by"},
      {FileOf(R"({"name": "a", "tokens_sha256": ["12"]})"),
       "access_file.identities[0].tokens_sha256: got 2 characters, want 64 hexadecimal digits"},
      {FileOf(R"({"name": "a", "tokens_sha256": [")" + digest.substr(1) + R"(g"]})"),
       "access_file.identities[0].tokens_sha256: got 64 characters, want 64 hexadecimal digits"},
      {FileOf(R"({"name": "a", "tokens_sha256": "12"})"),
       "access_file.identities[0].tokens_sha256: got \"12\", want a list of texts"},
      {FileOf(R"({"name": "a", "uids": [-1]})"),
       "access_file.identities[0].uids: got -1, want numbers of users"},
      {FileOf(R"({"name": "a", "uids": [1, 1]})"), "access_file.identities[0].uids: got 1"},
      {FileOf(R"({"name": "a", "uids": [1]}, {"name": "a", "uids": [2]})"),
       "access_file.identities[1].name: got a, want each name once"},
      {FileOf(R"({"name": "a", "uids": [1]}, {"name": "b", "uids": [1]})"),
       "access_file.identities[1].uids: got 1"},
      {FileOf(R"({"name": "a", "certificates": ["x"]}, {"name": "b", "certificates": ["x"]})"),
       "access_file.identities[1].certificates: got x, want each name once"},
      {FileOf(absl::StrCat(WithToken("a", "t", ""), ",", WithToken("b", "t", ""))),
       "access_file.identities[1].tokens_sha256: got one for the second time, want each once"},
      {FileOf(R"({"name": "a", "uids": [1], "rights": [], "rights": ["rotate"]})"),
       "access_file: got a key twice in one object"},
      {FileOf(R"({"name": "a", "uids": [1], "rights": [["rotate"]]})"),
       "access_file.identities[0].rights: got a list, want a text"},
      {FileOf(R"({"name": "a", "uids": [1], "max_bytes": "1MiB"})"),
       "access_file.identities[0].max_bytes: got \"1MiB\", want a number, 0 or more"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(Load(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error))) << text;
  }
  EXPECT_THAT(Load(""),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("want a file with content")));
  EXPECT_THAT(Access::Load(path_ + "x", clients_.accounts),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--access_file: got ")));
}

}  // namespace
}  // namespace rope::server
