// Reads tensors that DLPack describes (rope/dlpack.h), for C and Python: host memory, or that of a
// GPU where a function says so; 1 to 8 axes, types with one lane, elements aligned.
//
// Threading:  Functions only.
// Ownership:  A view borrows memory, shape and strides of the tensor.
// Errors:     INVALID_ARGUMENT: "NAME.device", "NAME.dtype", "NAME.dtype.lanes", "NAME.ndim",
//             "NAME.shape", "NAME.strides", "NAME.data".
#ifndef ROPE_CLIENT_C_DLPACK_H_
#define ROPE_CLIENT_C_DLPACK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/dlpack.h"
#include "rope/status.h"
#include "rope/tensor.h"

namespace rope::c {

struct DlpackView {
  client::DType dtype = client::DType::kFloat32;
  void* data = nullptr;  // null if there are no elements
  int32_t rank = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;  // null: packed
  std::optional<int> cuda = {};      // the number of the GPU that has it; unset: host memory

  // A copy that owns its shape and its strides.
  client::ArrayView array() const {
    client::ArrayView copy = {.dtype = dtype, .shape = {shape, shape + rank}, .data = data};
    if (strides != nullptr) copy.strides.assign(strides, strides + rank);
    return copy;
  }
};

// Libraries that have no type for fp8 say uint8, which then stands for `dtype`.
DLTensor WithFloat8(DLTensor tensor, client::DType dtype);

// Where the tensors of a call lie: all in host memory, or all in that of one GPU. Functions that
// add a tensor refuse one in another place.
struct Place {
  std::optional<int> cuda = {};  // the number of the GPU
  std::string host = {};         // the first tensor in host memory
};

// `name` is that of the tensor, for errors. Floats of 16, 32 and 64 bits, bfloat of 16, float8
// e4m3fn and e5m2. Adds the tensor to `place`; null: it lies in host memory.
Status ReadDlpack(const DLTensor& tensor, const std::string& name, DlpackView* view,
                  Place* place = nullptr);

// The axis whose length each call of a prepared rotation chooses, up to the one that was prepared.
struct OpenAxis {
  std::string letter = {};             // empty: none
  std::optional<int64_t> length = {};  // as the tensors before had it
};

// Whether the lengths are those of `shape`, but for that of the open axis, which is set.
bool HasShape(const DlpackView& view, const std::string& layout, const std::vector<int64_t>& shape,
              OpenAxis* open);

// Whether elements lie as `strides` say; empty: packed. The stride of an axis of one element says
// nothing. REQUIRES: ReadDlpack has read it.
bool HasStrides(const DLTensor& tensor, const std::vector<int64_t>& strides);

// Where packed integers of 32 or 64 bits lie; no axes are allowed. Adds their GPU to `place`; null:
// they lie in host memory.
Status FindIntegers(const DLTensor& tensor, const std::string& name, Place* place, void** memory);
// The integers themselves, of host memory.
Status ReadIntegers(const DLTensor& tensor, const std::string& name, std::vector<int64_t>* values);

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_DLPACK_H_
