// Errors of the C API as values, and the border that no exception crosses.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_C_ERROR_H_
#define ROPE_CLIENT_C_ERROR_H_

#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <utility>

#include "rope/rope.h"
#include "rope/status.h"

struct rope_error {
  rope::Status status;
};

namespace rope::c {

// INVALID_ARGUMENT: one of these pointers, with their names, is null.
Status CheckGiven(std::initializer_list<std::pair<const void*, const char*>> pointers);

// Null for OK. Never throws: without memory it returns OutOfMemory().
rope_error* NewError(Status status) noexcept;
// INTERNAL, of an exception that the library does not throw on purpose.
rope_error* NewError(const std::exception& unexpected, bool may_have_executed) noexcept;
// RESOURCE_EXHAUSTED. It exists from the start, and rope_error_free leaves it alone.
rope_error* OutOfMemory(bool may_have_executed = false) noexcept;

// Runs `call`, which returns a Status, and turns what it returns or throws into an error. A call
// sets `*began` before it asks for a rotation: what is thrown then may have executed.
template <typename Call>
rope_error* Guarded(const Call& call, const bool* began = nullptr) noexcept {
  const auto has_begun = [began] { return began != nullptr && *began; };
  try {
    return NewError(call());
  } catch (const std::bad_alloc&) {
    return OutOfMemory(has_begun());
  } catch (const std::length_error&) {  // a count that no container can have
    return OutOfMemory(has_begun());
  } catch (const std::exception& error) {
    return NewError(error, has_begun());
  }
}

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_ERROR_H_
