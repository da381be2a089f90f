// Reads rope.v1.Array: integers for positions, bytes for tensors. Writes its numbers.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a dtype that does not fit, raw and numbers together, counts that
//             differ from the shape, a fraction where an integer belongs. `path` names the array.
#ifndef ROPE_SERVER_REQUEST_ARRAY_READER_H_
#define ROPE_SERVER_REQUEST_ARRAY_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
#include "proto/wire/message_split.h"
#include "rope/v1/array.pb.h"

namespace rope::server {

struct IntegerArray {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;  // row-major, copied before anything checks them
};

struct FloatArray {
  std::vector<int64_t> shape;
  std::vector<double> values;  // row-major
};

// Whether an array has the shape that it must have. Asked before an element is copied, so that an
// array costs nothing that is larger than its place.
using CheckShape = absl::FunctionRef<absl::Status(absl::Span<const int64_t> shape)>;
inline absl::Status AnyShape(absl::Span<const int64_t>) {
  return absl::OkStatus();
}

// INT32 or INT64. REQUIRES: `array` is of the message that `split` came from.
absl::StatusOr<IntegerArray> ReadIntegers(const v1::Array& array, const proto::SplitMessage& split,
                                          absl::string_view path, CheckShape check = AnyShape);

// The elements of an array of FP64, FP32, FP16 or BF16, none of them copied yet. With numbers, an
// unset dtype is FP64.
//
// Threading:  Immutable.
// Ownership:  Views into the message and the received bytes.
class FloatElements {
 public:
  static absl::StatusOr<FloatElements> Of(const v1::Array& array, const proto::SplitMessage& split,
                                          absl::string_view path);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t count() const { return count_; }
  // The elements from number `begin` on, row-major; each has to be finite. REQUIRES: they exist.
  absl::Status Read(int64_t begin, absl::Span<double> out) const;

 private:
  FloatElements(const v1::Array& array, absl::string_view path) : array_(&array), path_(path) {}
  template <typename Element, typename Widen>
  void ReadRaw(int64_t begin, absl::Span<double> out, const Widen& widen) const;

  const v1::Array* array_;
  std::string path_;
  std::vector<int64_t> shape_;
  int64_t count_ = 0;
  proto::FragmentedBytes bytes_;         // of an array that came as bytes
  std::vector<int64_t> fragment_begin_;  // offset of each fragment of bytes_
};

// All of them.
absl::StatusOr<FloatArray> ReadFloats(const v1::Array& array, const proto::SplitMessage& split,
                                      absl::string_view path, CheckShape check = AnyShape);

// Bytes from the first element to the end of the last, as dtype, shape and strides say; for arrays
// whose bytes lie elsewhere. INVALID_ARGUMENT: no dtype; lengths or strides that are negative, or
// an extent that does not fit 63 bits.
absl::StatusOr<int64_t> ExtentBytes(const v1::Array& array, absl::string_view path);

// FP32, FP16 or BF16.
absl::StatusOr<kernels::DType> ReadDType(v1::DType dtype, absl::string_view field);
absl::StatusOr<kernels::DType> ReadTensorDType(const v1::Array& array, absl::string_view path);

// Those and FP8_E4M3, FP8_E5M2: what a tensor may become. `field` names the dtype itself.
absl::StatusOr<kernels::DType> ReadOutputDType(v1::DType dtype, absl::string_view field);

// Whose rows a field `dtype` asks for; unset: fp32. INVALID_ARGUMENT: of no tensor, or set where
// every dtype has the same rows.
absl::StatusOr<kernels::DType> ReadRowDType(v1::DType dtype, kernels::Precision precision);

v1::DType MessageDType(kernels::DType dtype);

// The `count` elements of a tensor as packed little-endian bytes. `typed` keeps them where they
// came as numbers; otherwise the view points into the received message.
absl::StatusOr<proto::FragmentedBytes> ReadTensorBytes(const v1::Array& array, kernels::DType dtype,
                                                       int64_t count,
                                                       const proto::SplitMessage& split,
                                                       absl::string_view path,
                                                       std::vector<char>& typed);

// The elements of `bytes` as numbers, added to `array`.
void WriteNumbers(kernels::DType dtype, const char* bytes, int64_t count, v1::Array& array);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_ARRAY_READER_H_
