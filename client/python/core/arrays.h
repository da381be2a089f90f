// Arrays of Python as tensors and integers of the library, by DLPack: NumPy, PyTorch, and whatever
// has __dlpack__. Where a type has DLPack's table of C functions, as PyTorch 2.10 does, it is used:
// it takes less than a tenth of the time.
//
// Threading:  With the GIL.
// Ownership:  An Array keeps the object alive. The memory is that of the object. An IntegerArray
//             has copies.
// Errors:     InvalidField: no array; memory that is not the host's; a dtype that is no tensor's;
//             strides < 0; a tensor of PyTorch that requires a gradient.
#ifndef ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_
#define ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/dlpack.h"
#include "rope/tensor.h"

namespace rope::python {

class Array {
 public:
  // `name` is that of the argument, for errors. `of_bytes`: the 8-bit type that unsigned bytes
  // stand for.
  Array(nanobind::handle object, std::string name, std::optional<client::DType> of_bytes = {});

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
  friend struct IntegerArray;
  explicit Array(std::string name) : name_(std::move(name)) {}

  // These fill source_. False: the object cannot.
  bool FillByTable(nanobind::handle object);
  bool FillByCapsule(nanobind::handle object);
  // The same for a dtype that DLPack does not have in the object's library.
  void FillByBits(nanobind::handle object);

  std::string name_;
  nanobind::object kept_;
  DLTensor source_{};
  c::DlpackView tensor_;
  bool is_read_only_ = false;
};

// Integers of an array or a sequence, or one number.
struct IntegerArray {
  // InvalidField: anything else.
  IntegerArray(nanobind::handle object, const std::string& name);

  std::vector<int64_t> values = {};
  std::vector<int64_t> shape = {};  // empty: one number

 private:
  // INVALID_ARGUMENT: other than packed integers of 32 or 64 bits.
  Status Read(nanobind::handle object, const std::string& name);
};

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_
