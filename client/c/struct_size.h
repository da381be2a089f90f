// Reads and writes the structs of programs that were compiled with another version of rope.h.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_C_STRUCT_SIZE_H_
#define ROPE_CLIENT_C_STRUCT_SIZE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "client/c/error.h"

namespace rope::c {

// No version will have a larger struct: a larger size is a mistake, and is not read.
constexpr size_t kStructBytesMax = 4096;

inline size_t StructSize(const void* source) {
  size_t size = 0;
  std::memcpy(&size, source, sizeof(size));
  return size;
}

// Reads `source` into `known`, with zeros in the fields that its struct_size lacks. `field`: the
// path of the struct, for errors. INVALID_ARGUMENT: a struct_size that no struct has, or bytes
// past the known fields that are not 0.
template <typename T>
Status ReadStruct(const T* source, std::string_view field, T* known) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (source == nullptr) return Invalid(std::string(field), "null", "a struct");
  const size_t size = StructSize(source);
  if (size == sizeof(T)) {
    *known = *source;
    return {};
  }
  if (size < sizeof(size_t) || size > kStructBytesMax || size % alignof(size_t) != 0) {
    return Invalid(std::string(field) + ".struct_size", std::to_string(size),
                   "the size of the struct");
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(source);
  if (size > sizeof(T) &&
      !std::all_of(bytes + sizeof(T), bytes + size, [](std::byte b) { return b == std::byte{}; })) {
    return Invalid(std::string(field) + ".struct_size",
                   std::to_string(size) + ", with fields that are not 0 after byte " +
                       std::to_string(sizeof(T)),
                   "fields that this version of the library knows");
  }
  *known = T{};
  std::memcpy(known, bytes, std::min(size, sizeof(T)));
  return {};
}

// Writes the fields of `known` that `target` has. INVALID_ARGUMENT: as ReadStruct.
template <typename T>
Status WriteStruct(T known, std::string_view field, T* target) {
  T before;
  if (Status status = ReadStruct(target, field, &before); !status.ok()) return status;
  known.struct_size = before.struct_size;
  std::memcpy(target, &known, std::min(known.struct_size, sizeof(T)));
  return {};
}

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_STRUCT_SIZE_H_
