#include "rope/dlpack.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "client/c/objects.h"
#include "client/c/read_request.h"
#include "client/c/struct_size.h"

namespace {

using rope::Status;
using rope::c::CheckGiven;
using rope::c::Guarded;
using rope::c::Invalid;
using rope::client::DType;

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

std::string Indexed(const char* field, int64_t index) {
  return std::string(field) + "[" + std::to_string(index) + "]";
}

Status CheckDevice(const DLDevice& device) {
  if (device.device_type == kDLCPU) return {};
  if (device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged) {
    return Invalid("dlpack.device", "memory of CUDA device " + std::to_string(device.device_id),
                   "host memory (kDLCPU): copy the tensor to the host");
  }
  return Invalid("dlpack.device",
                 "device type " + std::to_string(static_cast<int>(device.device_type)),
                 "host memory (kDLCPU)");
}

Status DTypeOf(const DLDataType& type, DType* dtype) {
  if (type.lanes != 1) {
    return Invalid("dlpack.dtype.lanes", std::to_string(type.lanes), "1");
  }
  for (const TypeOfDType& known : kTypes) {
    if (known.code == type.code && known.bits == type.bits) {
      *dtype = known.dtype;
      return {};
    }
  }
  return Invalid(
      "dlpack.dtype",
      "code " + std::to_string(type.code) + " with " + std::to_string(type.bits) + " bits",
      "float of 16, 32 or 64 bits, bfloat of 16, float8 e4m3fn or e5m2");
}

bool IsEmpty(const DLTensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + tensor.ndim,
                     [](int64_t length) { return length == 0; });
}

// Whether the elements lie one after another. The stride of an axis of one element says nothing.
bool IsPacked(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  if (IsEmpty(tensor)) return true;
  int64_t packed = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != packed) return false;
    if (packed > std::numeric_limits<int64_t>::max() / tensor.shape[i]) return false;
    packed *= tensor.shape[i];
  }
  return true;
}

Status CheckAxes(const DLTensor& tensor) {
  if (tensor.ndim < 1 || tensor.ndim > kAxesMax) {
    return Invalid("dlpack.ndim", std::to_string(tensor.ndim), "1 to " + std::to_string(kAxesMax));
  }
  if (Status status = CheckGiven(tensor.shape, "dlpack.shape"); !status.ok()) return status;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) {
      return Invalid(Indexed("dlpack.shape", i), std::to_string(tensor.shape[i]), "0 or more");
    }
  }
  return {};
}

// Of a tensor that is not packed.
Status CheckStrides(const DLTensor& tensor) {
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.strides[i] >= 0) continue;
    return Invalid(Indexed("dlpack.strides", i), std::to_string(tensor.strides[i]), "0 or more");
  }
  return {};
}

// Where the elements begin: null if there are none.
Status MemoryOf(const DLTensor& tensor, DType dtype, std::byte** memory) {
  *memory = nullptr;
  if (IsEmpty(tensor)) return {};
  if (Status status = CheckGiven(tensor.data, "dlpack.data"); !status.ok()) return status;
  std::byte* first = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const auto size = static_cast<uintptr_t>(rope::client::ElementBytes(dtype));
  const uintptr_t past = reinterpret_cast<uintptr_t>(first) % size;
  if (past != 0) {
    return Invalid("dlpack.data", "an address " + std::to_string(past) + " bytes past a multiple",
                   "a multiple of the " + std::to_string(size) + " bytes of an element");
  }
  *memory = first;
  return {};
}

struct Memory {
  std::byte* data;
  DType dtype;
};

Status Check(const DLTensor* tensor, const char* field, Memory* memory) {
  Status status = CheckGiven(tensor, field);
  if (status.ok()) status = CheckDevice(tensor->device);
  if (status.ok()) status = DTypeOf(tensor->dtype, &memory->dtype);
  if (status.ok()) status = CheckAxes(*tensor);
  if (status.ok()) status = MemoryOf(*tensor, memory->dtype, &memory->data);
  return status;
}

Status FillTensor(const DLTensor* source, rope_tensor* tensor) {
  rope_tensor filled;
  Memory memory{};
  Status status = rope::c::ReadStruct(tensor, "tensor", &filled);
  if (status.ok()) status = Check(source, "source", &memory);
  if (!status.ok()) return status;
  filled.data = memory.data;
  filled.dtype = rope::c::NumberOf(memory.dtype);
  filled.rank = source->ndim;
  filled.shape = source->shape;
  filled.strides = IsPacked(*source) ? nullptr : source->strides;
  if (filled.strides != nullptr) status = CheckStrides(*source);
  if (!status.ok()) return status;
  return rope::c::WriteStruct(filled, "tensor", tensor);
}

// Lengths of the result's axes: those of the input in the order of output_layout.
Status CheckResultShape(const rope_tensor& tensor, const DLTensor& destination) {
  Status status = CheckGiven(tensor.layout, "tensor.layout");
  if (status.ok()) status = CheckGiven(tensor.shape, "tensor.shape");
  if (!status.ok()) return status;
  const std::string input = tensor.layout;
  const std::string output = tensor.output_layout == nullptr ? input : tensor.output_layout;
  if (static_cast<int64_t>(input.size()) != tensor.rank || output.size() != input.size()) {
    return Invalid("tensor.layout", input, std::to_string(tensor.rank) + " letters");
  }
  if (destination.ndim != tensor.rank) {
    return Invalid("dlpack.ndim", std::to_string(destination.ndim), std::to_string(tensor.rank));
  }
  for (size_t i = 0; i < output.size(); ++i) {
    const size_t axis = input.find(output[i]);
    if (axis == std::string::npos) {
      return Invalid("tensor.output_layout", output, "the letters of " + input);
    }
    if (destination.shape[i] != tensor.shape[axis]) {
      return Invalid(Indexed("dlpack.shape", static_cast<int64_t>(i)),
                     std::to_string(destination.shape[i]), std::to_string(tensor.shape[axis]));
    }
  }
  return {};
}

Status FillOutput(const DLTensor* destination, int32_t output_dtype, rope_tensor* tensor) {
  rope_tensor filled;
  Memory memory{};
  DType want = DType::kFloat32;
  Status status = rope::c::ReadStruct(tensor, "tensor", &filled);
  if (status.ok()) status = Check(destination, "destination", &memory);
  if (status.ok()) {
    status =
        rope::c::ReadDType(output_dtype != 0 ? output_dtype : filled.dtype, "output_dtype", &want);
  }
  if (status.ok()) status = CheckResultShape(filled, *destination);
  if (!status.ok()) return status;
  if (memory.dtype != want) {
    return Invalid("dlpack.dtype",
                   "ROPE_DTYPE number " + std::to_string(rope::c::NumberOf(memory.dtype)),
                   std::to_string(rope::c::NumberOf(want)) + ", which the result has");
  }
  filled.output = memory.data;
  filled.output_strides = IsPacked(*destination) ? nullptr : destination->strides;
  if (filled.output_strides != nullptr) status = CheckStrides(*destination);
  if (!status.ok()) return status;
  return rope::c::WriteStruct(filled, "tensor", tensor);
}

Status CheckVersion(const DLManagedTensorVersioned* managed, const char* field) {
  if (Status status = CheckGiven(managed, field); !status.ok()) return status;
  if (managed->version.major == DLPACK_MAJOR_VERSION) return {};
  return Invalid("dlpack.version.major", std::to_string(managed->version.major),
                 std::to_string(DLPACK_MAJOR_VERSION));
}

// The memory of a result and what describes it, as one managed tensor.
template <typename Managed>
struct GivenAway {
  Managed managed{};
  rope::client::OutputMemory memory;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;

  static void Delete(Managed* self) { delete static_cast<GivenAway*>(self->manager_ctx); }
};

DLDataType TypeOf(DType dtype) {
  DLDataType type{};
  for (const TypeOfDType& known : kTypes) {
    if (known.dtype == dtype) type = {known.code, known.bits, 1};
  }
  return type;
}

template <typename Managed>
rope_error* GiveAway(rope_reply* reply, size_t index, Managed** managed) {
  return Guarded([&]() -> Status {
    Status status = CheckGiven(reply, "reply");
    if (status.ok()) status = CheckGiven(managed, "managed");
    if (!status.ok()) return status;
    auto& tensors = reply->reply.tensors;
    if (index >= tensors.size()) {
      return Invalid("index", std::to_string(index), "less than " + std::to_string(tensors.size()));
    }
    if (reply->IsGivenAway(index)) return rope::c::GivenAwayBefore(index);
    rope::client::RotatedTensor& tensor = tensors[index];
    if (tensor.owned == nullptr && tensor.bytes > 0) {
      return rope::c::WrongState(Indexed("tensors", static_cast<int64_t>(index)),
                                 "a result in the caller's memory", "memory of the reply");
    }
    reply->given_away.resize(tensors.size());
    auto given = std::make_unique<GivenAway<Managed>>();
    given->shape = tensor.shape;
    given->strides.resize(tensor.shape.size(), 1);
    for (size_t i = given->shape.size(); i > 1; --i) {
      given->strides[i - 2] = given->strides[i - 1] * given->shape[i - 1];
    }
    given->memory = std::move(tensor.owned);
    DLTensor& described = given->managed.dl_tensor;
    described.data = tensor.bytes > 0 ? given->memory.get() : nullptr;
    described.device = {kDLCPU, 0};
    described.ndim = static_cast<int32_t>(given->shape.size());
    described.dtype = TypeOf(tensor.dtype);
    described.shape = given->shape.data();
    described.strides = given->strides.data();
    given->managed.deleter = &GivenAway<Managed>::Delete;
    given->managed.manager_ctx = given.get();
    reply->given_away[index] = true;
    *managed = &given.release()->managed;
    return {};
  });
}

}  // namespace

rope_error* rope_tensor_from_dlpack(const DLTensor* source, rope_tensor* tensor) {
  return Guarded([&] { return FillTensor(source, tensor); });
}

rope_error* rope_tensor_from_dlpack_versioned(const DLManagedTensorVersioned* source,
                                              rope_tensor* tensor) {
  return Guarded([&]() -> Status {
    if (Status status = CheckVersion(source, "source"); !status.ok()) return status;
    return FillTensor(&source->dl_tensor, tensor);
  });
}

rope_error* rope_output_from_dlpack(const DLTensor* destination, int32_t output_dtype,
                                    rope_tensor* tensor) {
  return Guarded([&] { return FillOutput(destination, output_dtype, tensor); });
}

rope_error* rope_output_from_dlpack_versioned(const DLManagedTensorVersioned* destination,
                                              int32_t output_dtype, rope_tensor* tensor) {
  return Guarded([&]() -> Status {
    if (Status status = CheckVersion(destination, "destination"); !status.ok()) return status;
    if ((destination->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {
      return Invalid("dlpack.flags", "read-only memory", "memory that may be written");
    }
    return FillOutput(&destination->dl_tensor, output_dtype, tensor);
  });
}

rope_error* rope_reply_to_dlpack(rope_reply* reply, size_t index, DLManagedTensor** managed) {
  return GiveAway(reply, index, managed);
}

rope_error* rope_reply_to_dlpack_versioned(rope_reply* reply, size_t index,
                                           DLManagedTensorVersioned** managed) {
  rope_error* error = GiveAway(reply, index, managed);
  if (error == nullptr) (*managed)->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  return error;
}
