// Whole exchanges over sockets: tests/fuzz/hello_fuzz_test.cc, tests/e2e/region_session_test.cc.
#include "proto/ipc/hello.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

TEST(HelloTest, ClientBytesAreAsDocumented) {
  const HelloBytes bytes = Encode(ClientHello{0x0102030405060708, 0x1112131415161718});
  constexpr char kWant[] =
      "RoPEmem1\x02\0\0\0\0\0\0\0"
      "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11";
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), std::string(kWant, sizeof(kWant) - 1));
  EXPECT_EQ(bytes[0], kHelloFirstByte);
}

TEST(HelloTest, BothComeBackAsTheyWere) {
  ASSERT_OK(client, DecodeClientHello(Encode(ClientHello{1ULL << 63, 0x8000000000000003})));
  EXPECT_EQ(client->bytes, 1ULL << 63);
  EXPECT_EQ(client->ring_bytes, 0x8000000000000003);
  ASSERT_OK(server, DecodeServerHello(Encode(ServerHello{absl::StatusCode::kFailedPrecondition,
                                                         ~0ULL, 0x8000000000000001})));
  EXPECT_EQ(server->code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(server->session, ~0ULL);
  EXPECT_EQ(server->region_id, 0x8000000000000001);
}

}  // namespace
}  // namespace rope::proto
