// Tensors of requests and replies.
//
// Threading:  Values. OutputMemory may be destroyed on any thread.
// Ownership:  A TensorView borrows `data` and `output` until the call that takes it has ended; an
//             ArrayView borrows `data` until that call has returned; rows in memory that the server
//             shares, which in process is all, until it has ended. OutputMemory belongs to its
//             holder and may outlive the Client. When it is destroyed, its connection may keep the
//             memory for a later reply (ConnectOptions::pooled_bytes).
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

// Element type, little-endian. kFloat64 is for Rows, norm weights and GetTables, never a tensor.
enum class DType { kFloat32, kFloat16, kBFloat16, kFloat64, kFloat8E4M3, kFloat8E5M2 };

// "fp32", "fp16", "bf16", "fp64", "fp8_e4m3" or "fp8_e5m2".
constexpr const char* Name(DType dtype) {
  constexpr const char* kNames[] = {"fp32", "fp16", "bf16", "fp64", "fp8_e4m3", "fp8_e5m2"};
  return kNames[static_cast<int>(dtype)];
}

// Where a tensor lies: in host memory, or in memory of a GPU, for Client::Enqueue.
enum class Memory { kHost, kCuda };

// Query or key.
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

// Heads [begin, end) of a tensor that combines several, such as packed QKV.
struct HeadRange {
  std::optional<Role> role = {};  // unset: copied unchanged (v)
  int64_t begin = 0;
  int64_t end = 0;
};

// A row-major array that accompanies the tensors: cos, sin, angles, norm weights.
struct ArrayView {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
  // Of Rows with two axes only: {elements from a row to the next, 1}. Empty: packed.
  std::vector<int64_t> strides = {};
};

// RMS norm of each head, applied before the rotation: x * weight / sqrt(mean(x * x) + eps).
struct HeadNorm {
  double eps = 0;         // > 0
  ArrayView weight = {};  // [head_dim], required: all ones for a norm without weight
};

// Where the tokens of a tensor lie in a paged cache: head h of the token in slot s has D adjacent
// elements, from s / block_size * page_stride + s % block_size * token_stride + h * head_stride on,
// plus l * layer_stride in layer l. Distances are in elements, > 0.
struct PagedTokens {
  int64_t block_size = 1;     // tokens of a page
  int64_t page_stride = 0;    // between pages
  int64_t token_stride = 0;   // between the tokens of a page
  int64_t head_stride = 0;    // between the heads of a token
  int64_t layer_stride = 0;   // between layers; with an L axis
  int64_t pool_elements = 0;  // of `data`, from page 0 on, and of `output`. Required
  // The tokens, by one of the two; neither: those of the request's first tensor.
  std::vector<int64_t> pages = {};  // of each sequence, in order
  std::vector<int64_t> slots = {};  // of each token; -1: it is skipped
  // Slots of the results, in `output`. Empty: those of the tokens.
  std::vector<int64_t> target_slots = {};
};

// A tensor to rotate, in row-major order.
struct TensorView {
  Role role = Role::kQ;  // of all heads; ignored if head_ranges is set
  // One letter per axis, outermost first: B batch, S position in the sequence, T token of a packed
  // batch (excludes B and S), H head (absent: one head), L layer, D channel (last). For example
  // "BSHD" or "THD".
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
  Memory memory = Memory::kHost;  // of `data` and `output`
  // Destination of the rotated tensor. May be `data` itself if the result fits there. Null: the
  // reply allocates memory (RotatedTensor::owned). INVALID_ARGUMENT: it shares a byte with the
  // output of another tensor of the request.
  void* output = nullptr;
  // Ranges in ascending order, without overlap. Heads outside all ranges are copied unchanged.
  std::vector<HeadRange> head_ranges = {};
  // Distance in elements between neighbours of each axis of `data`, >= 0. Inline, the bytes in the
  // gaps are sent too. Empty: packed.
  std::vector<int64_t> strides = {};
  // Layout of the result: the same letters in any order, D last. Empty: as `layout`.
  std::string output_layout = {};
  // Strides of `output`, in the order of the result's axes: 1 for D, and a place for each element.
  // With the strides of `data` and its address, the tensor is rotated in place; what lies in the
  // gaps stays as it was. Empty: packed. INVALID_ARGUMENT: strides without an output.
  std::vector<int64_t> output_strides = {};
  std::optional<HeadNorm> norm = {};
  std::optional<double> scale = {};  // multiplies the result, for example the softmax scale of q
  // Multiplies q by 1 + beta * ln(1 + floor(position / original_max_position_embeddings)). Llama 4
  // does so in its layers without rotation, with position + 1 in place of position.
  std::optional<double> llama4_scaling_beta = {};
  std::optional<double> fp8_scale = {};  // divides an 8-bit output before rounding; unset: 1
  // First rotated channel of this tensor, >= 0; replaces the config's. If it is set, even to 0, D
  // may exceed the config's head_dim: 512 for an MLA row of 512 + 64 channels.
  std::optional<int64_t> rotary_offset = {};
  // Set: `data` and `output` are pools of pages, in memory that the server shares; `layout` and
  // `shape` are those of the tokens, and there are no strides.
  std::optional<PagedTokens> paged = {};
};

// Returns memory to the pool or to the allocator that it came from.
class OutputDeleter {
 public:
  OutputDeleter() = default;  // uses delete[]
  OutputDeleter(std::shared_ptr<OutputPool> pool, int64_t piece_bytes);
  void operator()(std::byte* data) const;

 private:
  std::shared_ptr<OutputPool> pool_;
  int64_t piece_bytes_ = 0;
};

// Memory of a reply. Only the first RotatedTensor::bytes bytes are defined. After release() the
// caller frees the array with delete[]. Construct it only from replies.
using OutputMemory = std::unique_ptr<std::byte[], OutputDeleter>;

// A rotated tensor, with the requested shape and type.
struct RotatedTensor {
  Role role = Role::kQ;
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};     // TensorView::output_strides; empty: packed
  int64_t bytes = 0;                     // of the elements, without gaps
  const void* data = nullptr;            // TensorView::output if that was given, else `owned`
  OutputMemory owned = {};               // null if TensorView::output was given
  std::optional<double> fp8_scale = {};  // the divisor that was applied to an 8-bit output
  int64_t saturated = 0;                 // elements beyond the largest number of an 8-bit output
};

}  // namespace rope::client

#endif  // ROPE_TENSOR_H_
