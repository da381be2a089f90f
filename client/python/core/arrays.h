// Arrays of Python as tensors and integers of the library. Those of NumPy are read by its array
// interface, which has dtypes that its DLPack lacks, others by DLPack. Where a type has DLPack's
// table of C functions, as PyTorch 2.10 does, it is used: it takes less than a tenth of the time.
//
// Threading:  With the GIL.
// Ownership:  An Array keeps the object alive. The memory is that of the object. An IntegerArray
//             has copies.
// Errors:     InvalidField: no array; memory that is not the host's, nor, with a Gpu, that of the
//             call's; a dtype that is no tensor's; strides < 0; a tensor of PyTorch that requires a
//             gradient.
#ifndef ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_
#define ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/dlpack.h"
#include "rope/device.h"
#include "rope/tensor.h"

namespace rope::python {

// The GPU of a call whose arrays lie there. The call is work of the current stream of the first
// array's library; what libraries of others do on other streams comes before it, as DLPack says.
struct Gpu {
  // Makes `stream` the call's, if this array is the first. False: the call has another stream.
  bool Joins(int cuda, void* stream);

  c::Place place = {};              // of the arrays so far
  DeviceQueue queue = {};           // with the stream, if place.cuda is set
  nanobind::object positions = {};  // on the GPU
};

class Array {
 public:
  // `name` is that of the argument, for errors. `of_bytes`: the 8-bit type that unsigned bytes
  // stand for. `gpu`: of the call, if the array may lie there.
  Array(nanobind::handle object, std::string name, std::optional<client::DType> of_bytes = {},
        Gpu* gpu = nullptr);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const std::string& name() const { return name_; }
  const c::DlpackView& tensor() const { return tensor_; }
  // Keeps the memory: the object, and what its __dlpack__ gave.
  const nanobind::object& kept() const { return kept_; }
  client::DType dtype() const { return tensor_.dtype; }
  client::Memory memory() const {
    return tensor_.cuda.has_value() ? client::Memory::kCuda : client::Memory::kHost;
  }
  std::vector<int64_t> shape() const { return {tensor_.shape, tensor_.shape + tensor_.rank}; }
  std::vector<int64_t> strides() const;  // empty: packed

  // What may be written. InvalidField: it is read-only.
  void* writable() const;

 private:
  friend struct IntegerArray;
  Array(std::string name, Gpu* gpu) : name_(std::move(name)), gpu_(gpu) {}

  // Fills source_. False: the object cannot.
  bool Fill(nanobind::handle object);
  bool FillByInterface(nanobind::handle object);
  bool FillByCapsule(nanobind::handle object);
  // The same for a dtype that DLPack does not have in the object's library.
  void FillByBits(nanobind::handle object);
  // PyTorch's table asks for neither gradient nor negation, as its __dlpack__ does.
  void CheckHasPlainNumbers(nanobind::handle object) const;

  std::string name_;
  Gpu* gpu_;
  nanobind::object kept_;
  DLTensor source_{};
  std::array<int64_t, 16> axes_;  // of an array of NumPy: shape, strides
  c::DlpackView tensor_;
  bool is_read_only_ = false;
};

// A number of 64 bits, of any type of integers. InvalidField: another object.
int64_t IntegerOf(nanobind::handle object, const char* name);

// Integers of an array or a sequence, or one number.
struct IntegerArray {
  // InvalidField: anything else, or a number where none `may_be_number`. `gpu`: of the call, if the
  // integers may lie there, where nothing reads them.
  IntegerArray(nanobind::handle object, const char* name, bool may_be_number = true,
               Gpu* gpu = nullptr);

  std::vector<int64_t> values = {};
  void* on_gpu = nullptr;  // in place of `values`: where they lie
  int32_t bytes = 8;       // of one
  nanobind::object kept = {};
  std::vector<int64_t> shape = {};  // empty: one number

 private:
  // These are false for what they do not know.
  bool ReadSequence(nanobind::handle object);
  bool ReadArray(nanobind::handle object, const char* name, Gpu* gpu);
};

// A new packed array in the library of `array`, which was `read`.
nanobind::object NewArray(nanobind::handle array, const Array& read,
                          const std::vector<int64_t>& shape, client::DType dtype);

// Tells torch which tensors have changed, for gradients of earlier operations with them.
void MarkChanged(const std::vector<nanobind::object>& arrays);

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_ARRAYS_H_
