#include "client/python/core/arrays.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "client/python/core/interpreter.h"

namespace rope::python {
namespace {

namespace nb = nanobind;

constexpr int kAxesMax = 8;

// NumPy's array interface: what __array_struct__ points to.
struct ArrayInterface {
  int two;
  int rank;
  char kind;
  int item_bytes;
  int flags;
  const Py_ssize_t* shape;
  const Py_ssize_t* strides;  // in bytes
  void* data;
};
constexpr int kNativeOrder = 0x200;
constexpr int kWriteable = 0x400;

bool IsNumpy(nb::handle object) {
  static const nb::handle type = Kept("numpy", "ndarray");
  return Is(object, type);
}

// DLPack's code of the dtype; none: a dtype that no tensor has.
std::optional<uint8_t> CodeOf(const ArrayInterface& values, nb::handle array) {
  if (values.kind == 'i') return kDLInt;
  if (values.kind == 'u') return kDLUInt;
  if (values.kind == 'f' && values.item_bytes > 1) return kDLFloat;
  if (values.kind != 'f' && values.kind != 'V') return {};
  static const nb::handle dtype = Interned("dtype"), type = Interned("type");
  static const nb::handle name = Interned("__name__");
  const nb::object its_name = nb::getattr(nb::getattr(nb::getattr(array, dtype), type), name);
  for (const auto& [of_ml_dtypes, code] :
       {std::pair("bfloat16", kDLBfloat), std::pair("float8_e4m3fn", kDLFloat8_e4m3fn),
        std::pair("float8_e5m2", kDLFloat8_e5m2)}) {
    if (PyUnicode_CompareWithASCIIString(its_name.ptr(), of_ml_dtypes) == 0) return code;
  }
  return {};
}

// What is used of torch, which a program may import at any time.
struct Torch {
  nb::handle tensor;
  nb::handle empty_like;
  nb::handle is_grad_enabled;
  nb::handle increment_version;

  // Null: the object is no tensor of torch.
  static const Torch* Of(nb::handle object) {
    // owned by the process
    static const Torch* torch = nullptr;
    if (torch == nullptr) {
      if (PyDict_GetItemString(PyImport_GetModuleDict(), "torch") == nullptr) return nullptr;
      torch = new Torch{.tensor = Kept("torch", "Tensor"),
                        .empty_like = Kept("torch", "empty_like"),
                        .is_grad_enabled = Kept("torch", "is_grad_enabled"),
                        .increment_version = Kept("torch.autograd.graph", "increment_version")};
    }
    return Is(object, torch->tensor) ? torch : nullptr;
  }
};

// DLPack 1.2: what a type's __dlpack_c_exchange_api__ points to.
struct ExchangeApi {
  DLPackVersion version;
  ExchangeApi* previous;
  void (*allocate)();
  int (*managed_tensor_of)(void* object, DLManagedTensorVersioned** tensor);
  void (*object_of)();
  int (*tensor_of)(void* object, DLTensor* tensor);  // may be null
  int (*current_stream)(DLDeviceType type, int32_t device, void** stream);
};

// The table of an object's type; null: it has none.
const ExchangeApi* ApiOf(nb::handle object) {
  static const nb::handle name = Interned("__dlpack_c_exchange_api__");
  const nb::object capsule = nb::getattr(object.type(), name, nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* const api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return api->version.major == 1 && api->tensor_of != nullptr ? api : nullptr;
}

// Whether an array of this table needs no word with its library: it lies in host memory, may not
// lie elsewhere, or is of the call's stream.
bool IsInOrder(const ExchangeApi& api, const DLDevice& device, Gpu* gpu) {
  if (gpu == nullptr || device.device_type != kDLCUDA) return true;
  void* stream = nullptr;
  if (api.current_stream != nullptr &&
      api.current_stream(kDLCUDA, device.device_id, &stream) == 0) {
    return gpu->Joins(device.device_id, stream);
  }
  PyErr_Clear();
  return false;
}

// What __dlpack__ is told: the call's stream, before whose work that of the array's library then
// comes. None: the array does not lie on the call's GPU.
nb::object StreamFor(nb::handle object, Gpu* gpu) {
  std::pair<int, int> device;
  try {
    static const nb::handle name = Interned("__dlpack_device__");
    if (gpu == nullptr || !nb::try_cast(nb::getattr(object, name)(), device)) return nb::none();
  } catch (nb::python_error&) {  // such as that of PyTorch for "meta"
    return nb::none();
  }
  const auto [type, cuda] = device;
  if (type != kDLCUDA || cuda != gpu->place.cuda.value_or(cuda)) return nb::none();
  if (!gpu->place.cuda.has_value()) {
    const nb::object stream = Imported("ropeserve._arrays", "current_stream")(object, cuda);
    gpu->Joins(cuda, reinterpret_cast<void*>(nb::cast<uintptr_t>(stream)));
  }
  // 1 is the legacy default stream, which is null in CUDA.
  return nb::int_(std::max<uintptr_t>(reinterpret_cast<uintptr_t>(gpu->queue.stream), 1));
}

// A dtype has the name that its library gives it.
[[noreturn]] void RaiseOf(const Status& status, const std::string& name, nb::handle object) {
  if (status.detail().field != name + ".dtype" || !nb::hasattr(object, "dtype")) Raise(status);
  const nb::object dtype = object.attr("dtype");
  RaiseInvalid(name + ".dtype", nb::cast<std::string>(nb::steal(PyObject_Str(dtype.ptr()))),
               "fp32, fp16, bf16, fp8_e4m3 or fp8_e5m2");
}

// What __dlpack__ gives. None: the object cannot.
nb::object CapsuleOf(nb::handle object, const nb::object& stream) {
  if (!nb::hasattr(object, "__dlpack__")) return nb::none();
  for (const bool has_version : {true, false}) {  // which old libraries do not know
    nb::dict given;
    if (!stream.is_none()) given["stream"] = stream;
    if (has_version) given["max_version"] = nb::make_tuple(1, 1);
    try {
      return object.attr("__dlpack__")(**given);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) {  // such as KeyboardInterrupt
        error.restore();
        nb::raise_python_error();
      }
      if (!error.matches(PyExc_TypeError)) break;
    }
  }
  return nb::none();
}

// An int of Python's own of 64 bits.
std::optional<int64_t> NumberOf(nb::handle object) {
  int overflow = 1;
  const int64_t number = PyLong_CheckExact(object.ptr()) == 0
                             ? 0
                             : PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow == 0 ? std::optional(number) : std::nullopt;
}

}  // namespace

bool Gpu::Joins(int cuda, void* stream) {
  if (!place.cuda.has_value()) queue.stream = stream;
  return queue.stream == stream || cuda != place.cuda;  // of another GPU it is refused later
}

Array::Array(nb::handle object, std::string name, std::optional<client::DType> of_bytes, Gpu* gpu)
    : name_(std::move(name)), gpu_(gpu), kept_(nb::borrow(object)) {
  if (!Fill(object)) FillByBits(object);
  CheckHasPlainNumbers(object);
  if (of_bytes.has_value()) source_ = c::WithFloat8(source_, *of_bytes);
  c::Place* const place = gpu == nullptr ? nullptr : &gpu->place;
  const Status status = c::ReadDlpack(source_, name_, &tensor_, place);
  if (!status.ok()) RaiseOf(status, name_, object);
}

std::vector<int64_t> Array::strides() const {
  if (tensor_.strides == nullptr) return {};
  return {tensor_.strides, tensor_.strides + tensor_.rank};
}

void* Array::writable() const {
  if (is_read_only_) RaiseInvalid(name_, "a read-only array", "an array that can be written");
  return tensor_.data;
}

bool Array::Fill(nb::handle object) {
  if (FillByInterface(object)) return true;
  if (const ExchangeApi* const api = ApiOf(object)) {
    if (api->tensor_of(object.ptr(), &source_) != 0) {
      PyErr_Clear();
    } else if (IsInOrder(*api, source_.device, gpu_)) {
      return true;
    }
  }
  return FillByCapsule(object);
}

bool Array::FillByInterface(nb::handle object) {
  if (!IsNumpy(object)) return false;
  static const nb::handle name = Interned("__array_struct__");
  const nb::object capsule = nb::getattr(object, name);
  const auto* const array =
      static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (array == nullptr) nb::raise_python_error();
  const std::optional<uint8_t> code = CodeOf(*array, object);
  if (!code.has_value() || array->rank > kAxesMax || (array->flags & kNativeOrder) == 0) {
    return false;
  }
  int64_t* const strides = axes_.data() + kAxesMax;
  for (int i = 0; i < array->rank; ++i) {
    if (array->strides[i] % array->item_bytes != 0) return false;
    axes_[i] = array->shape[i];
    strides[i] = array->strides[i] / array->item_bytes;
  }
  source_ = {.data = array->data,
             .device = {kDLCPU, 0},
             .ndim = array->rank,
             .dtype = {*code, static_cast<uint8_t>(8 * array->item_bytes), 1},
             .shape = axes_.data(),
             .strides = strides,
             .byte_offset = 0};
  is_read_only_ = (array->flags & kWriteable) == 0;
  return true;
}

void Array::CheckHasPlainNumbers(nb::handle object) const {
  if (IsNumpy(object) || Torch::Of(object) == nullptr) return;
  static const nb::handle requires_grad = Interned("requires_grad"), is_neg = Interned("is_neg");
  if (nb::getattr(object, requires_grad).is(Py_True)) {
    RaiseInvalid(name_, "a tensor that requires a gradient",
                 "one without (detach()), or ropeserve.torch.RotaryEmbedding");
  }
  if (object.attr(is_neg)().is(Py_True)) {
    RaiseInvalid(name_, "a tensor whose numbers are negated when they are read",
                 "one without that (resolve_neg())");
  }
}

bool Array::FillByCapsule(nb::handle object) {
  nb::object capsule = CapsuleOf(object, StreamFor(object, gpu_));
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
  const nb::object bits = Imported("ropeserve._arrays", "bits_of")(object, name_);
  FillByCapsule(nb::object(bits[nb::int_(0)]));
  source_.dtype = {nb::cast<uint8_t>(bits[nb::int_(1)]), source_.dtype.bits, 1};
}

int64_t IntegerOf(nb::handle object, const char* name) {
  if (const std::optional<int64_t> number = NumberOf(object)) return *number;
  return nb::cast<int64_t>(Imported("ropeserve._arrays", "integer")(object, name));
}

IntegerArray::IntegerArray(nb::handle object, const char* name, bool may_be_number, Gpu* gpu) {
  if (const auto number = NumberOf(object); number.has_value() && may_be_number) {
    values.push_back(*number);
    return;
  }
  if (ReadSequence(object)) return;
  if (ReadArray(object, name, gpu) && (may_be_number || !shape.empty())) return;
  // Strides, other widths, numbers of other types.
  ReadArray(Imported("ropeserve._arrays", "integers")(object, name, may_be_number), name, nullptr);
}

bool IntegerArray::ReadSequence(nb::handle object) {
  if (PyList_CheckExact(object.ptr()) == 0 && PyTuple_CheckExact(object.ptr()) == 0) return false;
  for (const nb::handle each : object) {
    const std::optional<int64_t> number = NumberOf(each);
    if (!number.has_value()) return false;
    values.push_back(*number);
  }
  shape = {static_cast<int64_t>(values.size())};
  return true;
}

bool IntegerArray::ReadArray(nb::handle object, const char* name, Gpu* gpu) {
  Array array(name, gpu);
  if (!array.Fill(object)) return false;
  const DLTensor& source = array.source_;
  if (gpu != nullptr && source.device.device_type == kDLCUDA) {
    Check(c::FindIntegers(source, name, &gpu->place, &on_gpu));
    bytes = source.dtype.bits / 8;
    kept = std::move(array.kept_);
  } else if (!c::ReadIntegers(source, name, &values).ok()) {
    return false;
  }
  shape.assign(source.shape, source.shape + source.ndim);
  return true;
}

nb::object NewArray(nb::handle array, const Array& read, const std::vector<int64_t>& shape,
                    client::DType dtype) {
  const Torch* const torch = Torch::Of(array);
  const bool is_its_own = dtype == read.dtype();
  if (torch != nullptr && is_its_own && read.strides().empty() && shape == read.shape()) {
    return torch->empty_like(array);  // in half the time
  }
  static const nb::handle empty = Kept("ropeserve._arrays", "empty");
  return empty(array, shape, is_its_own ? nb::none() : nb::cast(Name(dtype)));
}

void MarkChanged(const std::vector<nb::object>& arrays) {
  for (const nb::object& array : arrays) {
    const Torch* const torch = IsNumpy(array) ? nullptr : Torch::Of(array);
    if (torch == nullptr || !torch->is_grad_enabled().is(Py_True)) continue;
    static const nb::handle is_inference = Interned("is_inference");
    if (!array.attr(is_inference)().is(Py_True)) torch->increment_version(array);
  }
}

}  // namespace rope::python
