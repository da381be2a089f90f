// Reads rope.v1.Array: integers for positions, numbers for rows and weights, bytes for tensors.
//
// Threading:  Functions only. FloatElements is immutable.
// Errors:     INVALID_ARGUMENT: a dtype that the array may not have, raw and numbers together, an
//             element count that differs from the shape, a fraction instead of an integer. `path`
//             names the array in messages.
#ifndef ROPE_SERVER_REQUEST_ARRAY_READER_H_
#define ROPE_SERVER_REQUEST_ARRAY_READER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
#include "kernels/tables/row_table.h"
#include "rope/v1/array.pb.h"
#include "server/request/plan.h"

namespace rope::server {

struct IntegerArray {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;  // row-major, copied before anything checks them
};

// Checks an array's shape before any byte is copied.
using CheckShape = absl::FunctionRef<absl::Status(absl::Span<const int64_t> shape)>;

// Reads an array of INT32 or INT64. REQUIRES: `array` belongs to the message of `source`.
absl::StatusOr<IntegerArray> ReadIntegers(const v1::Array& array, ArraySource& source,
                                          absl::string_view path, CheckShape check);

// The elements of an array of FP64, FP32, FP16 or BF16, which are copied only by Read. For numbers,
// an unset dtype means FP64. With `may_have_strides`, an array of two axes may have a
// distance between its rows.
//
// Ownership:  Views into the message, the received bytes or a region, which it holds.
class FloatElements {
 public:
  static absl::StatusOr<FloatElements> Of(const v1::Array& array, ArraySource& source,
                                          absl::string_view path, bool may_have_strides = false);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t count() const { return count_; }
  // Reads out.size() elements of one row, from index `begin`, row-major. INVALID_ARGUMENT: an
  // element is not finite. REQUIRES: the elements exist.
  absl::Status Read(int64_t begin, absl::Span<double> out) const;

  // Rows that can be used where they are, as cosines: of FP32, FP16 or BF16 as bytes in one piece,
  // each row's elements adjacent.
  std::optional<kernels::RowTable> rows() const;
  const RegionPart& part() const { return part_; }

 private:
  FloatElements(const v1::Array& array, absl::string_view path) : array_(&array), path_(path) {}
  template <typename Element, typename Widen = std::identity>
  void ReadRaw(int64_t begin, absl::Span<double> out, const Widen& widen = {}) const;

  const v1::Array* array_;
  std::string path_;
  std::vector<int64_t> shape_;
  int64_t count_ = 0;
  int64_t row_stride_ = 0;               // of an array with strides; 0: packed
  proto::FragmentedBytes bytes_;         // of an array that came as bytes
  RegionPart part_;                      // where they are in a region
  std::vector<int64_t> fragment_begin_;  // offset of each fragment of bytes_
};

// FP32, FP16 or BF16; INVALID_ARGUMENT otherwise.
absl::StatusOr<kernels::DType> ReadDType(v1::DType dtype, absl::string_view field);

// The tensor dtype whose rows are requested by a field `dtype`; unset: fp32. INVALID_ARGUMENT: the
// dtype of no tensor, or a dtype that is set although the rows do not depend on it.
absl::StatusOr<kernels::DType> ReadRowDType(v1::DType dtype, kernels::Precision precision);

// The dtype of an output: FP32, FP16, BF16, FP8_E4M3 or FP8_E5M2. `field` names the dtype's field.
absl::StatusOr<kernels::DType> ReadOutputDType(v1::DType dtype, absl::string_view field);

v1::DType MessageDType(kernels::DType dtype);

// Sets the elements of a tensor. Those that came as numbers are converted.
absl::Status ReadTensorElements(const v1::Array& array, ArraySource& source, TensorPlan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_ARRAY_READER_H_
