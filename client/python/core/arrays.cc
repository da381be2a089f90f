#include "client/python/core/arrays.h"

#include <nanobind/stl/string.h>

#include <unordered_map>
#include <utility>

#include "client/error.h"
#include "client/python/core/errors.h"

namespace rope::python {
namespace {

namespace nb = nanobind;

// DLPack 1.2: what a type's __dlpack_c_exchange_api__ points to.
struct ExchangeApi {
  DLPackVersion version;
  ExchangeApi* previous;
  void (*allocate)();
  int (*managed_tensor_of)(void* object, DLManagedTensorVersioned** tensor);
  void (*object_of)();
  int (*tensor_of)(void* object, DLTensor* tensor);  // may be null
  void (*current_stream)();
};

// The table of an object's type; null: it has none.
const ExchangeApi* ApiOf(nb::handle object) {
  // Types are kept, so that no other type gets the address of one.
  // owned by the process
  static auto* const known = new std::unordered_map<PyObject*, const ExchangeApi*>();
  const nb::handle type = object.type();
  if (const auto found = known->find(type.ptr()); found != known->end()) return found->second;
  const ExchangeApi* api = nullptr;
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
    api =
        static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  }
  if (api != nullptr && (api->version.major != 1 || api->tensor_of == nullptr)) api = nullptr;
  // Asking a type without a table raises an exception. The answer of a static type is kept too,
  // such as NumPy's, which is never freed. A program may make other types without end.
  const bool is_static =
      (PyType_GetFlags(reinterpret_cast<PyTypeObject*>(type.ptr())) & Py_TPFLAGS_HEAPTYPE) == 0;
  if (api != nullptr || is_static) known->emplace(type.inc_ref().ptr(), api);
  return api;
}

// A dtype has the name that its library gives it.
[[noreturn]] void RaiseOf(const Status& status, const std::string& name, nb::handle object) {
  if (status.detail().field != name + ".dtype" || !nb::hasattr(object, "dtype")) Raise(status);
  const nb::object dtype = object.attr("dtype");
  RaiseInvalid(name + ".dtype", nb::cast<std::string>(nb::steal(PyObject_Str(dtype.ptr()))),
               "fp32, fp16, bf16, fp8_e4m3 or fp8_e5m2");
}

// An array whose dtype its library does not give by DLPack: its bits, and DLPack's code of the
// dtype. InvalidField: another object.
nb::object BitsOf(nb::handle object, const std::string& name) {
  return nb::module_::import_("ropeserve._arrays").attr("bits_of")(object, name);
}

// What __dlpack__ gives. None: the object cannot.
nb::object CapsuleOf(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return nb::none();
  try {
    return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 1));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) {  // such as KeyboardInterrupt
      error.restore();
      nb::raise_python_error();
    }
    if (!error.matches(PyExc_TypeError)) return nb::none();
  }
  try {
    return object.attr("__dlpack__")();
  } catch (nb::python_error&) {
    return nb::none();
  }
}

}  // namespace

Array::Array(nb::handle object, std::string name, std::optional<client::DType> of_bytes)
    : name_(std::move(name)), kept_(nb::borrow(object)) {
  if (!FillByTable(object) && !FillByCapsule(object)) FillByBits(object);
  if (of_bytes.has_value()) source_ = c::WithFloat8(source_, *of_bytes);
  const Status status = c::ReadDlpack(source_, name_, &tensor_);
  if (!status.ok()) RaiseOf(status, name_, object);
}

std::vector<int64_t> Array::shape() const {
  return {tensor_.shape, tensor_.shape + tensor_.rank};
}

std::vector<int64_t> Array::strides() const {
  if (tensor_.strides == nullptr) return {};
  return {tensor_.strides, tensor_.strides + tensor_.rank};
}

void* Array::writable() const {
  if (is_read_only_) RaiseInvalid(name_, "a read-only array", "an array that can be written");
  return tensor_.data;
}

bool Array::FillByTable(nb::handle object) {
  const ExchangeApi* const api = ApiOf(object);
  if (api == nullptr) return false;
  // PyTorch's table asks for neither, as its __dlpack__ does.
  if (nb::cast<bool>(nb::getattr(object, "requires_grad", nb::bool_(false)))) {
    RaiseInvalid(name_, "a tensor that requires a gradient",
                 "one without (detach()), or ropeserve.torch.RotaryEmbedding");
  }
  const nb::object is_neg = nb::getattr(object, "is_neg", nb::none());
  if (!is_neg.is_none() && nb::cast<bool>(is_neg())) {
    RaiseInvalid(name_, "a tensor whose numbers are negated when they are read",
                 "one without that (resolve_neg())");
  }
  if (api->tensor_of(object.ptr(), &source_) != 0) {
    PyErr_Clear();
    return false;
  }
  return true;
}

bool Array::FillByCapsule(nb::handle object) {
  nb::object capsule = CapsuleOf(object);
  if (capsule.is_none()) return false;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* const managed = static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) {
      RaiseInvalid(name_, "DLPack " + std::to_string(managed->version.major), "DLPack 1");
    }
    is_read_only_ = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    source_ = managed->dl_tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    source_ = static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))
                  ->dl_tensor;
  } else {
    RaiseInvalid(name_, "a __dlpack__ that gives no tensor", "a capsule of DLPack");
  }
  kept_ = nb::make_tuple(nb::borrow(object), std::move(capsule));
  return true;
}

void Array::FillByBits(nb::handle object) {
  const nb::object bits = BitsOf(object, name_);
  FillByCapsule(nb::object(bits[nb::int_(0)]));
  source_.dtype = {nb::cast<uint8_t>(bits[nb::int_(1)]), source_.dtype.bits, 1};
}

IntegerArray::IntegerArray(nb::handle object, const std::string& name) {
  if (PyLong_CheckExact(object.ptr())) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow == 0) {
      values.push_back(number);
      return;
    }
  }
  if (Read(object, name).ok()) return;
  // Lists, strides, other widths, numbers of other types.
  const nb::object numbers =
      nb::module_::import_("ropeserve._arrays").attr("any_integers")(object, name);
  Check(Read(numbers, name));
}

Status IntegerArray::Read(nb::handle object, const std::string& name) {
  Array exported(name);
  if (!exported.FillByTable(object) && !exported.FillByCapsule(object)) {
    return client::InvalidField(name, "an object without DLPack", "integers");
  }
  const DLTensor& source = exported.source_;
  Status status = c::ReadIntegers(source, name, &values);
  if (status.ok()) shape.assign(source.shape, source.shape + source.ndim);
  return status;
}

}  // namespace rope::python
