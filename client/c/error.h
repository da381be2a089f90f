// Errors of the C API as values, and the border that no exception crosses.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_C_ERROR_H_
#define ROPE_CLIENT_C_ERROR_H_

#include <exception>
#include <initializer_list>
#include <utility>

#include "rope/rope.h"
#include "rope/status.h"

struct rope_error {
  rope::Status status;
};

namespace rope::c {

// INVALID_ARGUMENT: one of these pointers, with their names, is null.
Status CheckGiven(std::initializer_list<std::pair<const void*, const char*>> pointers);

// Null for OK. Without memory: RESOURCE_EXHAUSTED, an error that exists from the start.
rope_error* NewError(Status status) noexcept;
// As without memory, or INTERNAL, of an exception that the library does not throw on purpose.
rope_error* NewError(const std::exception& thrown, bool may_have_executed) noexcept;

// Runs `call`, which returns a Status, and turns what it returns or throws into an error. A call
// sets `*began` before it asks for a rotation: what is thrown then may have executed.
template <typename Call>
rope_error* Guarded(const Call& call, const bool* began = nullptr) noexcept {
  try {
    return NewError(call());
  } catch (const std::exception& thrown) {
    return NewError(thrown, began != nullptr && *began);
  }
}

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_ERROR_H_
