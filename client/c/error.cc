#include "client/c/error.h"

#include <new>
#include <stdexcept>

#include "client/error.h"

namespace rope::c {
namespace {

rope_error OutOfMemoryError(bool may_have_executed) {
  return {Status(StatusCode::kResourceExhausted, "not enough memory",
                 {.may_have_executed = may_have_executed, .reason = Reason::kLimitExceeded})};
}

rope_error out_of_memory[] = {OutOfMemoryError(false), OutOfMemoryError(true)};

rope_error* OutOfMemory(bool may_have_executed) {
  return &out_of_memory[may_have_executed ? 1 : 0];
}

const ErrorDetail& DetailOf(const rope_error* error) {
  static const ErrorDetail none;
  return error == nullptr ? none : error->status.detail();
}

}  // namespace

Status CheckGiven(std::initializer_list<std::pair<const void*, const char*>> pointers) {
  for (const auto& [pointer, name] : pointers) {
    if (pointer == nullptr) return client::InvalidField(name, "null", "a pointer");
  }
  return {};
}

rope_error* NewError(Status status) noexcept {
  if (status.ok()) return nullptr;
  const bool may_have_executed = status.detail().may_have_executed;
  auto* error = new (std::nothrow) rope_error{std::move(status)};  // owned by the caller
  return error == nullptr ? OutOfMemory(may_have_executed) : error;
}

rope_error* NewError(const std::exception& thrown, bool may_have_executed) noexcept {
  // The second is of a count that no container can have.
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr ||
      dynamic_cast<const std::length_error*>(&thrown) != nullptr) {
    return OutOfMemory(may_have_executed);
  }
  try {
    return NewError(Status(StatusCode::kInternal, thrown.what(),
                           {.may_have_executed = may_have_executed, .reason = Reason::kInternal}));
  } catch (const std::bad_alloc&) {
    return OutOfMemory(may_have_executed);
  }
}

}  // namespace rope::c

using rope::c::DetailOf;
using rope::c::OutOfMemory;

const char* rope_error_code(const rope_error* error) {
  return rope::Name(error == nullptr ? rope::StatusCode::kOk : error->status.code());
}

const char* rope_error_reason(const rope_error* error) {
  return error == nullptr ? "" : rope::Name(error->status.detail().reason);
}

const char* rope_error_message(const rope_error* error) {
  return error == nullptr ? "" : error->status.message().c_str();
}

const char* rope_error_field(const rope_error* error) {
  return DetailOf(error).field.c_str();
}

const char* rope_error_got(const rope_error* error) {
  return DetailOf(error).got.c_str();
}

const char* rope_error_want(const rope_error* error) {
  return DetailOf(error).want.c_str();
}

int64_t rope_error_retry_delay_ms(const rope_error* error) {
  return DetailOf(error).retry_delay_ms;
}

int32_t rope_error_may_have_executed(const rope_error* error) {
  return DetailOf(error).may_have_executed ? 1 : 0;
}

void rope_error_free(rope_error* error) {
  if (error != OutOfMemory(false) && error != OutOfMemory(true)) delete error;
}
