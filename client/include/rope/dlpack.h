// Tensors as DLPack structs, for the C API (rope.h): of PyTorch, NumPy, JAX, TVM and others.
//
// A program that has a dlpack.h of its own (DLPack 1.0 or newer) includes it first, and it counts.
// Else the structs are declared here, with the memory layout of DLPack 1.1.
//
// Threading:  Functions only. A managed tensor may be freed on any thread.
// Ownership:  A rope_tensor borrows memory, shape and strides of the DLPack struct it was filled
//             from. The caller keeps the struct until the call with the tensor has returned.
// Errors:     INVALID_ARGUMENT: a field "dlpack...." that this library cannot use. Nothing is set.
// Limits:     Host memory only. 1 to 8 axes. Types with one lane: float of 16, 32 and 64 bits,
//             bfloat of 16, and for outputs float8 e4m3fn and e5m2.
#ifndef ROPE_DLPACK_H_
#define ROPE_DLPACK_H_

#include <stdint.h>

#include "rope/rope.h"

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#ifdef __cplusplus
extern "C" {
#endif

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)

typedef struct {
  uint32_t major;  // another number: the rest of the struct may differ
  uint32_t minor;
} DLPackVersion;

#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLOpenCL = 4,
  kDLVulkan = 7,
  kDLMetal = 8,
  kDLVPI = 9,
  kDLROCM = 10,
  kDLROCMHost = 11,
  kDLExtDev = 12,
  kDLCUDAManaged = 13,
  kDLOneAPI = 14,
  kDLWebGPU = 15,
  kDLHexagon = 16,
  kDLMAIA = 17
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U,
  kDLFloat8_e3m4 = 7U,
  kDLFloat8_e4m3 = 8U,
  kDLFloat8_e4m3b11fnuz = 9U,
  kDLFloat8_e4m3fn = 10U,
  kDLFloat8_e4m3fnuz = 11U,
  kDLFloat8_e5m2 = 12U,
  kDLFloat8_e5m2fnuz = 13U,
  kDLFloat8_e8m0fnu = 14U,
  kDLFloat6_e2m3fn = 15U,
  kDLFloat6_e3m2fn = 16U,
  kDLFloat4_e2m1fn = 17U
} DLDataTypeCode;

typedef struct {
  uint8_t code;    // a DLDataTypeCode
  uint8_t bits;    // of one lane
  uint16_t lanes;  // 1 for numbers, more for vectors
} DLDataType;

typedef struct {
  void* data;  // the first element is byte_offset bytes later
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;    // [ndim]
  int64_t* strides;  // [ndim], in elements; null: packed, row-major
  uint64_t byte_offset;
} DLTensor;

// Who receives one calls its deleter once, unless that is null.
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;  // DLPACK_FLAG_BITMASK_... joined by |
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // DLPACK_DLPACK_H_

#ifdef __cplusplus
extern "C" {
#endif

// Sets data, dtype, rank, shape and strides of `tensor`, and nothing else: the caller sets its
// layout. Of a DLManagedTensor take &managed->dl_tensor.
// INVALID_ARGUMENT: a device that is not the CPU's; a type that is no tensor's; a number of axes
// that is not 1 to 8; a length or a stride < 0; no memory, or memory that is not aligned to its
// elements.
rope_error* rope_tensor_from_dlpack(const DLTensor* source, rope_tensor* tensor);
// INVALID_ARGUMENT: also, another major version than 1.
rope_error* rope_tensor_from_dlpack_versioned(const DLManagedTensorVersioned* source,
                                              rope_tensor* tensor);

// Sets output and output_strides of `tensor`, whose input and layouts are set. `output_dtype` is
// that of the request. INVALID_ARGUMENT: as above; another shape than the result's; another type
// than output_dtype, or than the tensor's own if that is 0.
rope_error* rope_output_from_dlpack(const DLTensor* destination, int32_t output_dtype,
                                    rope_tensor* tensor);
// INVALID_ARGUMENT: also, another major version than 1; memory that is read-only.
rope_error* rope_output_from_dlpack_versioned(const DLManagedTensorVersioned* destination,
                                              int32_t output_dtype, rope_tensor* tensor);

// Gives the memory of a result away: the managed tensor owns it, and the reply may be freed before.
// The reply has this result no more. Strides are given, packed; `data` is null without elements.
// INVALID_ARGUMENT: an index past the end. FAILED_PRECONDITION: the result lies in the caller's
// output, or was given away before.
rope_error* rope_reply_to_dlpack(rope_reply* reply, size_t index, DLManagedTensor** managed);
rope_error* rope_reply_to_dlpack_versioned(rope_reply* reply, size_t index,
                                           DLManagedTensorVersioned** managed);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ROPE_DLPACK_H_
