// Arrays of Python as tensors of the library, by DLPack: NumPy, PyTorch, and whatever has
// __dlpack__. Where a type has DLPack's table of C functions, as PyTorch 2.10 does, it is used: it
// takes less than a tenth of the time.
//
// Threading:  With the GIL.
// Ownership:  An Array keeps the object alive. The memory is that of the object.
// Errors:     InvalidField: no array; memory that is not the host's; a dtype that is no tensor's;
//             strides < 0; a tensor of PyTorch that requires a gradient.
#ifndef ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_
#define ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/c/dlpack.h"
#include "rope/tensor.h"

namespace rope::python {

class Array {
 public:
  // `name` is that of the argument, for errors.
  Array(nanobind::handle object, std::string name);

  const std::string& name() const { return name_; }
  const c::DlpackView& tensor() const { return tensor_; }
  // Keeps the memory: the object, and what its __dlpack__ gave.
  const nanobind::object& kept() const { return kept_; }
  client::DType dtype() const { return tensor_.dtype; }
  std::vector<int64_t> shape() const;
  std::vector<int64_t> strides() const;  // empty: packed

  // What may be written. InvalidField: it is read-only.
  void* writable() const;

 private:
  bool FillByTable(nanobind::handle object);
  void FillByCapsule(nanobind::handle object);
  void Fill(nanobind::handle object);  // from source_

  std::string name_;
  nanobind::object kept_;
  DLTensor source_{};
  c::DlpackView tensor_;
  bool is_read_only_ = false;
};

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_
