// MessageArena: the memory of the messages of one call. Small messages fit into its first block.
// All are freed together.
//
// Threading:  Confined to one thread at a time.
// Ownership:  Owns the messages.
#ifndef ROPE_PROTO_WIRE_MESSAGE_ARENA_H_
#define ROPE_PROTO_WIRE_MESSAGE_ARENA_H_

#include <google/protobuf/arena.h>

#include <array>
#include <cstddef>

namespace rope::proto {

class MessageArena {
 public:
  // The block is not zeroed.
  MessageArena() : arena_(block_.data(), block_.size()) {}

  // Returns an empty message that lives as long as the arena.
  template <typename Message>
  Message& Make() {
    return *google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

 private:
  alignas(std::max_align_t) std::array<char, 2048> block_;
  google::protobuf::Arena arena_;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_MESSAGE_ARENA_H_
