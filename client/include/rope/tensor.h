// Tensors as the client takes and gives them.
//
// Threading:  Values. OutputMemory may go on any thread.
// Ownership:  TensorView borrows `data` and `output` until the call that takes it has ended, an
//             ArrayView until that call has returned. OutputMemory is its holder's alone and may
//             outlive the Client; when it goes, the connection it came from may keep it for
//             another reply (ConnectOptions::pooled_bytes).
#ifndef ROPE_TENSOR_H_
#define ROPE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rope::client {

class OutputPool;

// Little-endian elements. Tensors are kFloat32, kFloat16 or kBFloat16; kFloat64 is for rows that
// the caller brings, the last two for outputs.
enum class DType { kFloat32, kFloat16, kBFloat16, kFloat64, kFloat8E4M3, kFloat8E5M2 };

// What a tensor is to attention.
enum class Role { kQ, kK };

// Bytes of one element.
constexpr int64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;
  }
  return 1;
}

// Heads [begin, end) of a tensor that holds several things (packed QKV).
struct HeadRange {
  std::optional<Role> role = {};  // unset: passes through (v)
  int64_t begin = 0;
  int64_t end = 0;
};

// A packed, row-major array beside the tensors: cos and sin, norm weights.
struct ArrayView {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
};

// RMS norm over each head before it is rotated: x * weight / sqrt(mean(x * x) + eps).
struct HeadNorm {
  double eps = 0;         // > 0
  ArrayView weight = {};  // [head_dim]
};

// A tensor to rotate, row-major.
struct TensorView {
  Role role = Role::kQ;  // of all heads, without head_ranges
  // A letter for each axis, outermost first: B batch, S position in the sequence, T token of a
  // packed batch, H head, L layer, D channel (last). For example "BSHD" or "THD".
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
  // Where the rotated tensor goes, packed; may be `data` itself where that is large enough. Null:
  // the reply allocates.
  void* output = nullptr;
  // In order, without overlap; heads in none of them pass through.
  std::vector<HeadRange> head_ranges = {};
  // Elements between neighbours of each axis of `data`, >= 0; bytes in between are sent too. Empty:
  // packed.
  std::vector<int64_t> strides = {};
  // The same letters in another order, D last. Empty: `layout`.
  std::string output_layout = {};
  std::optional<HeadNorm> norm = {};
  std::optional<double> scale = {};  // multiplies the result, for example the softmax scale on q
  // q times 1 + beta * ln(1 + floor(position / original length)), as Llama 4 does without rotation.
  std::optional<double> llama_4_scaling_beta = {};
  std::optional<double> fp8_scale = {};  // 8-bit outputs are divided by it; unset: by 1
};

// Gives memory back to where it came from.
class OutputDeleter {
 public:
  OutputDeleter() = default;  // of new[]
  OutputDeleter(std::shared_ptr<OutputPool> pool, int64_t piece_bytes);
  void operator()(std::byte* data) const;

 private:
  std::shared_ptr<OutputPool> pool_;
  int64_t piece_bytes_ = 0;
};

// Memory of a reply, with undefined contents behind RotatedTensor::bytes. What release() gives is
// an array of new[]; what is not from a reply has no place in it.
using OutputMemory = std::unique_ptr<std::byte[], OutputDeleter>;

// A rotated tensor, of the shape and type that were asked for.
struct RotatedTensor {
  Role role = Role::kQ;
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  int64_t bytes = 0;
  const void* data = nullptr;            // TensorView::output where that was given, else `owned`
  OutputMemory owned = {};               // null where TensorView::output was given
  std::optional<double> fp8_scale = {};  // what an 8-bit output was divided by
};

}  // namespace rope::client

#endif  // ROPE_TENSOR_H_
