#include "client/c/dlpack.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::c {
namespace {

using client::DType;
using client::InvalidField;

constexpr int32_t kAxesMax = 8;

struct TypeOfDType {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};
constexpr TypeOfDType kTypes[] = {
    {DType::kFloat32, kDLFloat, 32},           {DType::kFloat16, kDLFloat, 16},
    {DType::kFloat64, kDLFloat, 64},           {DType::kBFloat16, kDLBfloat, 16},
    {DType::kFloat8E4M3, kDLFloat8_e4m3fn, 8}, {DType::kFloat8E5M2, kDLFloat8_e5m2, 8},
};

Status BadType(const DLDataType& type, const std::string& name, const std::string& want) {
  if (type.lanes != 1) return InvalidField(name + ".dtype.lanes", type.lanes, "1");
  return InvalidField(name + ".dtype",
                      absl::StrCat("code ", type.code, " with ", type.bits, " bits"), want);
}

Status CheckDevice(const DLDevice& device, const std::string& name) {
  if (device.device_type == kDLCPU) return {};
  const bool is_cuda = device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
  return InvalidField(
      name + ".device",
      is_cuda ? absl::StrCat("memory of CUDA device ", device.device_id)
              : absl::StrCat("device type ", static_cast<int>(device.device_type)),
      absl::StrCat("host memory (kDLCPU)", is_cuda ? ": copy the tensor to the host" : ""));
}

Status CheckAxes(const DLTensor& tensor, const std::string& name, int32_t axes_min) {
  if (tensor.ndim < axes_min || tensor.ndim > kAxesMax) {
    return InvalidField(name + ".ndim", tensor.ndim,
                        std::to_string(axes_min) + " to " + std::to_string(kAxesMax));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return InvalidField(name + ".shape", "null", "a pointer");
  }
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] >= 0) continue;
    return InvalidField(absl::StrCat(name, ".shape[", i, "]"), tensor.shape[i], "0 or more");
  }
  return {};
}

bool IsEmpty(const DLTensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + tensor.ndim,
                     [](int64_t length) { return length == 0; });
}

// Where the elements begin: null if there are none.
Status MemoryOf(const DLTensor& tensor, int64_t element_bytes, const std::string& name,
                void** memory) {
  *memory = nullptr;
  if (IsEmpty(tensor)) return {};
  if (tensor.data == nullptr) return InvalidField(name + ".data", "null", "a pointer");
  *memory = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const uintptr_t past =
      reinterpret_cast<uintptr_t>(*memory) % static_cast<uintptr_t>(element_bytes);
  if (past == 0) return {};
  return InvalidField(
      name + ".data", "an address " + std::to_string(past) + " bytes past a multiple",
      "a multiple of the " + std::to_string(element_bytes) + " bytes of an element");
}

// The tensor lies in host memory, or in that of the GPU `cuda`.
Status AddToPlace(std::optional<int> cuda, const std::string& name, Place* place) {
  if (!cuda.has_value()) {
    if (place->host.empty()) place->host = name;
  } else if (*cuda != place->cuda.value_or(*cuda)) {
    return InvalidField(name + ".device", absl::StrCat("memory of CUDA device ", *cuda),
                        absl::StrCat("memory of CUDA device ", *place->cuda, ", as those before"));
  } else {
    place->cuda = cuda;
  }
  if (place->host.empty() || !place->cuda.has_value()) return {};
  return InvalidField(place->host + ".device", "host memory",
                      absl::StrCat("memory of CUDA device ", *place->cuda, ", as others"));
}

template <typename Integer>
void CopyIntegers(const void* memory, std::vector<int64_t>* values) {
  const auto* first = static_cast<const Integer*>(memory);
  std::copy(first, first + values->size(), values->begin());
}

}  // namespace

bool HasShape(const DlpackView& view, const std::string& layout, const std::vector<int64_t>& shape,
              OpenAxis* open) {
  if (static_cast<size_t>(view.rank) != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t given = view.shape[i];
    const bool is_open = i < layout.size() && layout.compare(i, 1, open->letter) == 0;
    if (!is_open && given != shape[i]) return false;
    if (!is_open) continue;
    if (given > shape[i] || given != open->length.value_or(given)) return false;
    open->length = given;
  }
  return true;
}

bool HasStrides(const DLTensor& tensor, const std::vector<int64_t>& strides) {
  if (IsEmpty(tensor) || (tensor.strides == nullptr && strides.empty())) return true;
  int64_t packed = 1;
  for (auto i = static_cast<size_t>(tensor.ndim); i-- > 0;) {
    const int64_t given = tensor.strides == nullptr ? packed : tensor.strides[i];
    const int64_t wanted = strides.empty() ? packed : strides[i];
    if (tensor.shape[i] != 1 && given != wanted) return false;
    if (__builtin_mul_overflow(packed, tensor.shape[i], &packed)) return false;
  }
  return true;
}

DLTensor WithFloat8(DLTensor tensor, DType dtype) {
  if (tensor.dtype.code != kDLUInt || tensor.dtype.bits != 8) return tensor;
  if (dtype == DType::kFloat8E4M3) tensor.dtype.code = kDLFloat8_e4m3fn;
  if (dtype == DType::kFloat8E5M2) tensor.dtype.code = kDLFloat8_e5m2;
  return tensor;
}

Status ReadDlpack(const DLTensor& tensor, const std::string& name, DlpackView* view, Place* place) {
  const bool is_cuda = place != nullptr && tensor.device.device_type == kDLCUDA;
  if (!is_cuda) ROPE_RETURN_IF_ERROR(CheckDevice(tensor.device, name));
  const auto* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&tensor](const TypeOfDType& known) {
        return known.code == tensor.dtype.code && known.bits == tensor.dtype.bits;
      });
  if (type == std::end(kTypes) || tensor.dtype.lanes != 1) {
    return BadType(tensor.dtype, name,
                   "float of 16, 32 or 64 bits, bfloat of 16, float8 e4m3fn or e5m2");
  }
  *view = {.dtype = type->dtype, .rank = tensor.ndim, .shape = tensor.shape};
  if (is_cuda) view->cuda = tensor.device.device_id;
  ROPE_RETURN_IF_ERROR(CheckAxes(tensor, name, 1));
  ROPE_RETURN_IF_ERROR(MemoryOf(tensor, client::ElementBytes(type->dtype), name, &view->data));
  if (!HasStrides(tensor, {})) view->strides = tensor.strides;
  for (int32_t i = 0; view->strides != nullptr && i < tensor.ndim; ++i) {
    if (tensor.strides[i] >= 0) continue;
    return InvalidField(absl::StrCat(name, ".strides[", i, "]"), tensor.strides[i], "0 or more");
  }
  return place == nullptr ? Status() : AddToPlace(view->cuda, name, place);
}

Status FindIntegers(const DLTensor& tensor, const std::string& name, Place* place, void** memory) {
  const uint8_t bits = tensor.dtype.bits;
  if (tensor.dtype.code != kDLInt || (bits != 32 && bits != 64) || tensor.dtype.lanes != 1) {
    return BadType(tensor.dtype, name, "integers of 32 or 64 bits");
  }
  ROPE_RETURN_IF_ERROR(CheckAxes(tensor, name, 0));
  ROPE_RETURN_IF_ERROR(MemoryOf(tensor, bits / 8, name, memory));
  if (!HasStrides(tensor, {})) {
    return InvalidField(name + ".strides", "other strides", "packed integers");
  }
  return place == nullptr ? Status() : AddToPlace(tensor.device.device_id, name, place);
}

Status ReadIntegers(const DLTensor& tensor, const std::string& name, std::vector<int64_t>* values) {
  void* memory = nullptr;
  ROPE_RETURN_IF_ERROR(CheckDevice(tensor.device, name));
  ROPE_RETURN_IF_ERROR(FindIntegers(tensor, name, nullptr, &memory));
  size_t count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) count *= static_cast<size_t>(tensor.shape[i]);
  values->resize(count);
  tensor.dtype.bits == 32 ? CopyIntegers<int32_t>(memory, values)
                          : CopyIntegers<int64_t>(memory, values);
  return {};
}

}  // namespace rope::c
