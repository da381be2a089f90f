// What the pointers of rope.h point to.
//
// Threading:  As the C++ object in each.
#ifndef ROPE_CLIENT_C_OBJECTS_H_
#define ROPE_CLIENT_C_OBJECTS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "rope/client.h"
#include "rope/rope.h"

struct rope_client {
  rope::client::Client client;
};

struct rope_prepared {
  rope::client::PreparedRotation rotation;
};

struct rope_reply {
  rope::client::RotateReply reply;
  std::vector<bool> given_away = {};  // by index of a tensor; shorter: none after its end

  bool IsGivenAway(size_t index) const { return index < given_away.size() && given_away[index]; }
};

struct rope_slot {
  rope::client::Slot slot;
};

struct rope_tables {
  rope::client::TablesReply tables;
};

namespace rope::c {

inline Status CheckGiven(const void* pointer, const char* field) {
  return pointer != nullptr ? Status() : Invalid(field, "null", "a pointer");
}

// Gives a result away as an object of C.
template <typename Object, typename T>
Status Give(Result<T> result, Object** object) {
  if (!result.ok()) return result.status();
  *object = std::make_unique<Object>(Object{*std::move(result)}).release();
  return {};
}

inline Status GivenAwayBefore(size_t index) {
  return WrongState("tensors[" + std::to_string(index) + "]", "a result that was given away",
                    "one that the reply has");
}

inline const char* TextAt(const std::vector<std::string>& texts, size_t index) {
  return index < texts.size() ? texts[index].c_str() : nullptr;
}

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_OBJECTS_H_
