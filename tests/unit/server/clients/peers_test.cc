#include "server/clients/peers.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "proto/ipc/file_descriptor.h"

namespace rope::server {
namespace {

// The owner that has this address, "192.0.2.7" or "fe80::1", in this zone of IPv6.
std::string OwnerAtText(const std::string& text, uint32_t scope = 0) {
  sockaddr_storage address{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, text.c_str(), &reinterpret_cast<sockaddr_in&>(address).sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    address.ss_family = AF_INET6;
    v6.sin6_scope_id = scope;
  }
  return OwnerAt(address);
}

TEST(OwnerAtTest, AddressesAreOwners) {
  EXPECT_EQ(OwnerAtText("192.0.2.7"), "ip:192.0.2.7");
  EXPECT_EQ(OwnerAtText("2001:db8:0::7"), "ip:2001:db8::7");
  EXPECT_EQ(OwnerAtText("fe80::1", 2), "ip:fe80::1%2");
  EXPECT_EQ(OwnerAtText("fe80::1", 3), "ip:fe80::1%3");
  EXPECT_EQ(OwnerAtText(""), "unknown") << "an address of another family";
}

TEST(OwnerAtTest, AddressesThatAClientMayChooseFromAreOneOwner) {
  EXPECT_EQ(OwnerAtText("127.0.0.1"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("127.9.9.9"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("::1"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("::ffff:127.0.0.2"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("::ffff:192.0.2.7"), "ip:192.0.2.7");
}

TEST(ForwardedOwnerTest, IsTheLastCertificateOrElseTheLastAddress) {
  struct Case {
    const char* certificates;
    const char* addresses;
    std::string want;
  };
  const Case cases[] = {
      {"", "192.0.2.7", "ip:192.0.2.7"},
      {"", "127.0.0.1, 198.51.100.1,192.0.2.7 ", "ip:192.0.2.7"},
      {"", "2001:db8:0::7", "ip:2001:db8::7"},
      {"", "127.0.0.9", "ip:loopback"},
      {"", "", "unknown"},
      {"", "192.0.2.7,", "unknown"},
      {"", "192.0.2.7:80", "unknown"},
      {"Hash=ab12;URI=spiffe://a/b", "192.0.2.7", "cert:spiffe://a/b"},
      {"By=x;hash=ab12", "192.0.2.7", "cert:ab12"},
      {"URI=spiffe://first, URI=spiffe://last;Hash=1", "", "cert:spiffe://last"},
      {R"(Subject="CN=a;URI=spiffe://root,\"O=\";Hash=1";Hash=ab12)", "", "cert:ab12"},
      {R"(URI=spiffe://root;By=",By=b;Hash=1;URI=spiffe://me)", "", "cert:spiffe://me"},
      {R"(URI=spiffe://root;By=",By=b;Subject="a\",";URI=spiffe://me)", "", "cert:spiffe://me"},
      {"Subject=a", "192.0.2.7", "ip:192.0.2.7"},
      {"URI=;Hash=", "192.0.2.7", "ip:192.0.2.7"},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(ForwardedOwner(each.certificates, each.addresses), each.want)
        << each.certificates << " " << each.addresses;
  }
  EXPECT_EQ(ForwardedOwner("Hash=" + std::string(256, 'a'), ""), "cert:" + std::string(256, 'a'));
  EXPECT_EQ(ForwardedOwner("Hash=" + std::string(257, 'a'), "192.0.2.7"), "unknown");
}

TEST(PeerNameTest, GrpcWritesAddressesAsUris) {
  EXPECT_EQ(PlainPeerName("ipv4:192.0.2.7:80"), "ipv4:192.0.2.7:80");
  EXPECT_EQ(PlainPeerName("ipv6:%5B2001:db8::7%5D:80"), "ipv6:[2001:db8::7]:80");
  EXPECT_EQ(PlainPeerName("ipv6:%5Bfe80::7%25eth0%5D:80"), "ipv6:[fe80::7]:80");
  EXPECT_EQ(PlainPeerName(""), "");
}

TEST(OwnerOfTest, SocketThatIsNotConnectedIsNobodys) {
  const proto::FileDescriptor socket_of_none(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(OwnerOf(socket_of_none.get(), /*is_unix=*/false), "unknown");
}

}  // namespace
}  // namespace rope::server
