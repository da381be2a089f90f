// Tensors as the client takes and gives them.
//
// Threading:  Values.
// Ownership:  TensorView borrows `data` and `output` until the call that takes it has ended.
#ifndef ROPE_TENSOR_H_
#define ROPE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rope::client {

// Little-endian elements.
enum class DType { kFloat32, kFloat16, kBFloat16 };

// What a tensor is to attention.
enum class Role { kQ, kK };

// Bytes of one element.
constexpr int64_t ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// Heads [begin, end) of a tensor that holds several things (packed QKV).
struct HeadRange {
  std::optional<Role> role = {};  // unset: passes through (v)
  int64_t begin = 0;
  int64_t end = 0;
};

// A packed, row-major tensor to rotate.
struct TensorView {
  Role role = Role::kQ;  // of all heads, without head_ranges
  // A letter for each axis, outermost first: B batch, S position in the sequence, T token of a
  // packed batch, H head, L layer, D channel (last). For example "BSHD" or "THD".
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
  // Where the rotated tensor goes: as many bytes as `data`, and may be the same memory. Null: the
  // reply allocates.
  void* output = nullptr;
  // In order, without overlap; heads in none of them pass through.
  std::vector<HeadRange> head_ranges = {};
};

// A rotated tensor, of the shape and type that were asked for.
struct RotatedTensor {
  Role role = Role::kQ;
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  int64_t bytes = 0;
  const void* data = nullptr;               // TensorView::output where that was given, else `owned`
  std::unique_ptr<std::byte[]> owned = {};  // null where TensorView::output was given
};

}  // namespace rope::client

#endif  // ROPE_TENSOR_H_
