#include "rope/arena.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "rope/client.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

class ArenaTest : public ::testing::Test {
 protected:
  Client Connected() const {
    return Client::Connect(server_.target(), {.arena_bytes = 4096}).value();
  }

  FakeServer server_;
};

TEST_F(ArenaTest, SlotGivesItsMemoryBackOnce) {
  const Arena arena = Connected().arena();
  Slot slot = arena.Allocate(100).value();
  EXPECT_EQ(slot.bytes(), 100);
  EXPECT_EQ(arena.used_bytes(), 128);
  Slot moved = std::move(slot);
  EXPECT_EQ(arena.used_bytes(), 128);
  moved = arena.Allocate(200).value();
  EXPECT_EQ(arena.used_bytes(), 256);
  moved = Slot();
  EXPECT_EQ(arena.used_bytes(), 0);
}

TEST_F(ArenaTest, SlotOutlivesItsClient) {
  std::optional<Client> client = Connected();
  const Slot slot = client->arena().Allocate(4096).value();
  client.reset();
  static_cast<char*>(slot.data())[4095] = 1;
}

TEST_F(ArenaTest, SizesAtTheBounds) {
  const Arena arena = Connected().arena();
  EXPECT_EQ(arena.Allocate(0).value().data(), nullptr);
  EXPECT_EQ(arena.Allocate(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(arena.Allocate(4097).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena.Allocate(4096).ok());
}

}  // namespace
}  // namespace rope::client
