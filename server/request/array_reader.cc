#include "server/request/array_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/dtype/element.h"
#include "kernels/status_macros.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"

namespace rope::server {
namespace {

// The product of the shape.
absl::StatusOr<int64_t> CountOf(const v1::Array& array, absl::string_view path) {
  int64_t count = 1;
  for (const int64_t length : array.shape()) {
    if (length < 0) return InvalidField(absl::StrCat(path, ".shape"), length, "lengths >= 0");
    const auto next = kernels::CheckedMultiply(count, length);
    if (!next.has_value()) {
      return InvalidField(absl::StrCat(path, ".shape"), Brackets(array.shape()),
                          "a product that fits 63 bits");
    }
    count = *next;
  }
  return count;
}

absl::Status CheckSources(const v1::Array& array, int64_t count, absl::string_view path) {
  const bool raw = proto::HasPayload(array);
  if (array.has_region()) {
    if (!raw && array.numbers_size() == 0) return absl::OkStatus();
    return InvalidField(path, "a region beside raw or numbers", "exactly one of them");
  }
  if (raw && array.numbers_size() > 0) {
    return InvalidField(path, "raw and numbers", "exactly one of them");
  }
  if (!raw && array.numbers_size() == 0 && count > 0) {
    return InvalidField(path, "no elements", absl::StrCat(count, ", as raw, numbers or a region"));
  }
  if (!raw && array.numbers_size() != count) {
    return InvalidField(absl::StrCat(path, ".numbers"), absl::StrCat(array.numbers_size()),
                        absl::StrCat(count, " numbers for its shape"));
  }
  return absl::OkStatus();
}

// By kernels::DType.
constexpr v1::DType kDTypes[] = {v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16, v1::DTYPE_FP8_E4M3,
                                 v1::DTYPE_FP8_E5M2};

// The dtype of the schema that the kernels write.
std::optional<kernels::DType> KernelDType(v1::DType dtype) {
  const auto* const found = std::ranges::find(kDTypes, dtype);
  if (found == std::end(kDTypes)) return std::nullopt;
  return static_cast<kernels::DType>(found - kDTypes);
}

// The size of an element; 0 for an unknown dtype.
int64_t BytesOfElement(v1::DType dtype) {
  if (dtype == v1::DTYPE_FP64 || dtype == v1::DTYPE_INT64) return 8;
  if (dtype == v1::DTYPE_INT32) return 4;
  const auto known = KernelDType(dtype);
  return known.has_value() ? kernels::ElementBytes(*known) : 0;
}

// The kernels' dtype of floats that are no fp8, for a dtype of the schema.
std::optional<kernels::DType> FloatDType(v1::DType dtype) {
  const auto known = KernelDType(dtype);
  return known.has_value() && kernels::IsFloat8(*known) ? std::nullopt : known;
}

// The bytes of `count` elements of an array that came as bytes. Fills `part` if they are in a
// region. REQUIRES: CameAsBytes(array).
absl::StatusOr<proto::FragmentedBytes> ReadBytes(const v1::Array& array, int64_t count,
                                                 int64_t element_bytes, ArraySource& source,
                                                 absl::string_view path, RegionPart& part) {
  const auto want = kernels::CheckedMultiply(count, element_bytes);
  if (!proto::HasPayload(array)) {
    if (!want.has_value()) {
      return InvalidField(absl::StrCat(path, ".shape"), Brackets(array.shape()),
                          "an extent in bytes that fits 63 bits");
    }
    part = {nullptr, array.region().region_id(), array.region().offset(), *want,
            part.may_lie_on_device};
    absl::StatusOr<proto::FragmentedBytes> found = source.Find(part, "region");
    if (!found.ok()) return Prefixed(absl::StrCat(path, "."), found.status());
    return found;
  }
  const proto::FragmentedBytes& payload = source.Payload(array);
  if (want.has_value() && payload.bytes == *want) return payload;
  return InvalidField(absl::StrCat(path, ".raw"), absl::StrCat(payload.bytes, " bytes"),
                      want.has_value() ? absl::StrCat(*want) : "a size that fits 63 bits");
}

template <typename From>
std::vector<int64_t> Widen(const proto::FragmentedBytes& bytes) {
  std::vector<From> elements(static_cast<size_t>(bytes.bytes) / sizeof(From));
  bytes.CopyTo(elements.data());
  if constexpr (std::is_same_v<From, int64_t>) return elements;
  return std::vector<int64_t>(elements.begin(), elements.end());
}

absl::StatusOr<std::vector<int64_t>> WholeNumbers(const v1::Array& array, absl::string_view path) {
  // 2^53: doubles represent every integer up to here.
  constexpr double kWholeMax = 9007199254740992.0;
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(array.numbers_size()));
  for (int i = 0; i < array.numbers_size(); ++i) {
    const double number = array.numbers(i);
    if (!(std::fabs(number) <= kWholeMax) || number != std::trunc(number)) {
      return InvalidField(absl::StrCat(path, ".numbers[", i, "]"), number, "a whole number");
    }
    values.push_back(static_cast<int64_t>(number));
  }
  return values;
}

// Reads the shape of a packed array. Returns its element count, after checking that a source has
// that many. Numbers without a shape form one axis.
absl::StatusOr<int64_t> ReadShape(const v1::Array& array, absl::string_view path,
                                  std::vector<int64_t>& shape) {
  if (array.strides_size() > 0) {
    return InvalidField(absl::StrCat(path, ".strides"), Brackets(array.strides()),
                        "packed elements, without strides");
  }
  int64_t count = array.numbers_size();
  if (array.shape_size() == 0 && !CameAsBytes(array)) {
    shape = {count};
  } else {
    shape.assign(array.shape().begin(), array.shape().end());
    ROPE_ASSIGN_OR_RETURN(count, CountOf(array, path));
  }
  ROPE_RETURN_IF_ERROR(CheckSources(array, count, path));
  return count;
}

// The elements of an array of rows at a distance, from the first to the last.
absl::StatusOr<int64_t> ExtentOf(const v1::Array& array, absl::string_view path) {
  const bool has_rows = array.shape_size() == 2 && array.strides_size() == 2;
  if (!has_rows || array.strides(0) < array.shape(1) || array.strides(1) != 1) {
    return InvalidField(absl::StrCat(path, ".strides"), Brackets(array.strides()),
                        "[a row's length or more, 1] for two axes");
  }
  ROPE_ASSIGN_OR_RETURN(const int64_t count, CountOf(array, path));
  if (count == 0) return 0;
  const auto steps = kernels::CheckedMultiply(array.shape(0) - 1, array.strides(0));
  const auto extent = steps ? kernels::CheckedAdd(*steps, array.shape(1)) : std::nullopt;
  if (extent.has_value()) return *extent;
  return InvalidField(absl::StrCat(path, ".strides"), Brackets(array.strides()),
                      "an extent that fits 63 bits");
}

}  // namespace

absl::StatusOr<IntegerArray> ReadIntegers(const v1::Array& array, ArraySource& source,
                                          absl::string_view path, CheckShape check) {
  const bool as_bytes = CameAsBytes(array);
  const bool legal = array.dtype() == v1::DTYPE_INT32 || array.dtype() == v1::DTYPE_INT64 ||
                     (!as_bytes && array.dtype() == v1::DTYPE_UNSPECIFIED);
  if (!legal) {
    return InvalidField(absl::StrCat(path, ".dtype"), proto::DTypeName(array.dtype()),
                        "DTYPE_INT32 or DTYPE_INT64");
  }
  IntegerArray result;
  ROPE_ASSIGN_OR_RETURN(const int64_t count, ReadShape(array, path, result.shape));
  ROPE_RETURN_IF_ERROR(check(result.shape));
  if (!as_bytes) {
    ROPE_ASSIGN_OR_RETURN(result.values, WholeNumbers(array, path));
    return result;
  }
  const bool wide = array.dtype() == v1::DTYPE_INT64;
  RegionPart part;  // holds the region until the elements are copied
  ROPE_ASSIGN_OR_RETURN(const proto::FragmentedBytes bytes,
                        ReadBytes(array, count, wide ? 8 : 4, source, path, part));
  result.values = wide ? Widen<int64_t>(bytes) : Widen<int32_t>(bytes);
  return result;
}

absl::StatusOr<FloatElements> FloatElements::Of(const v1::Array& array, ArraySource& source,
                                                absl::string_view path, bool may_have_strides) {
  const bool as_bytes = CameAsBytes(array);
  const bool wide = array.dtype() == v1::DTYPE_FP64;
  const bool is_said = as_bytes || array.dtype() != v1::DTYPE_UNSPECIFIED;
  if (!wide && is_said && !FloatDType(array.dtype()).has_value()) {
    return InvalidField(absl::StrCat(path, ".dtype"), proto::DTypeName(array.dtype()),
                        "DTYPE_FP64, DTYPE_FP32, DTYPE_FP16 or DTYPE_BF16");
  }
  FloatElements result(array, path);
  int64_t extent = 0;
  if (may_have_strides && array.strides_size() > 0) {
    ROPE_ASSIGN_OR_RETURN(extent, ExtentOf(array, path));
    ROPE_RETURN_IF_ERROR(CheckSources(array, extent, path));
    result.shape_.assign(array.shape().begin(), array.shape().end());
    result.row_stride_ = array.strides(0);
    result.count_ = array.shape(0) * array.shape(1);
  } else {
    ROPE_ASSIGN_OR_RETURN(extent, ReadShape(array, path, result.shape_));
    result.count_ = extent;
  }
  if (!as_bytes) return result;
  ROPE_ASSIGN_OR_RETURN(result.bytes_, ReadBytes(array, extent, BytesOfElement(array.dtype()),
                                                 source, path, result.part_));
  int64_t offset = 0;
  for (const std::string_view fragment : result.bytes_.fragments) {
    result.fragment_begin_.push_back(offset);
    offset += static_cast<int64_t>(fragment.size());
  }
  return result;
}

std::optional<kernels::RowTable> FloatElements::rows() const {
  const std::optional<kernels::DType> dtype = FloatDType(array_->dtype());
  if (!dtype.has_value() || bytes_.fragments.size() != 1) return std::nullopt;
  const int64_t row = row_stride_ == 0 ? shape_.back() : row_stride_;
  return kernels::RowTable{.cos = bytes_.fragments.front().data(),
                           .dtype = *dtype,
                           .row_bytes = row * kernels::ElementBytes(*dtype)};
}

absl::Status FloatElements::Read(int64_t begin, absl::Span<double> out) const {
  if (row_stride_ != 0) begin = begin / shape_[1] * row_stride_ + begin % shape_[1];
  if (!CameAsBytes(*array_)) {
    std::copy_n(array_->numbers().begin() + begin, out.size(), out.begin());
  } else if (array_->dtype() == v1::DTYPE_FP64) {
    ReadRaw<double>(begin, out);
  } else if (array_->dtype() == v1::DTYPE_FP32) {
    ReadRaw<float>(begin, out);
  } else {
    const bool is_half = array_->dtype() == v1::DTYPE_FP16;
    ReadRaw<uint16_t>(begin, out, is_half ? kernels::FromFloat16 : kernels::FromBFloat16);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(out[i])) continue;
    return InvalidField(absl::StrCat(path_, " element ", begin + static_cast<int64_t>(i)), out[i],
                        "a finite number");
  }
  return absl::OkStatus();
}

// An element may straddle two fragments. Each byte is read exactly once, because the client may
// write to it at the same time: the value that is checked is the value that is used.
template <typename Element, typename Widen>
void FloatElements::ReadRaw(int64_t begin, absl::Span<double> out, const Widen& widen) const {
  int64_t byte = begin * static_cast<int64_t>(sizeof(Element));
  const auto after = std::upper_bound(fragment_begin_.begin(), fragment_begin_.end(), byte);
  auto fragment = static_cast<size_t>(after - fragment_begin_.begin()) - 1;
  for (double& number : out) {
    std::array<char, sizeof(Element)> element;
    for (size_t have = 0; have < sizeof(Element);) {
      const std::string_view bytes = bytes_.fragments[fragment];
      const auto at = static_cast<size_t>(byte - fragment_begin_[fragment]);
      const size_t count = std::min(sizeof(Element) - have, bytes.size() - at);
      std::memcpy(element.data() + have, bytes.data() + at, count);
      have += count;
      byte += static_cast<int64_t>(count);
      if (at + count == bytes.size()) ++fragment;
    }
    number = widen(std::bit_cast<Element>(element));
  }
}

absl::StatusOr<kernels::DType> ReadDType(v1::DType dtype, absl::string_view field) {
  if (const auto known = FloatDType(dtype); known.has_value()) return *known;
  return InvalidField(field, proto::DTypeName(dtype), "DTYPE_FP32, DTYPE_FP16 or DTYPE_BF16");
}

absl::StatusOr<kernels::DType> ReadOutputDType(v1::DType dtype, absl::string_view field) {
  if (const auto known = KernelDType(dtype); known.has_value()) return *known;
  return InvalidField(field, proto::DTypeName(dtype),
                      "DTYPE_FP32, DTYPE_FP16, DTYPE_BF16, DTYPE_FP8_E4M3 or DTYPE_FP8_E5M2");
}

absl::StatusOr<kernels::DType> ReadRowDType(v1::DType dtype, kernels::Precision precision) {
  if (dtype == v1::DTYPE_UNSPECIFIED) return kernels::DType::kFloat32;
  if (precision == kernels::Precision::kHf) return ReadDType(dtype, "dtype");
  return InvalidField("dtype", proto::DTypeName(dtype),
                      "it unset: without PRECISION_HF, every dtype has the same rows");
}

v1::DType MessageDType(kernels::DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)];
}

absl::Status ReadTensorElements(const v1::Array& array, ArraySource& source, TensorPlan& plan) {
  const int64_t count = plan.strides.has_value() ? plan.strides->extent : plan.elements();
  ROPE_RETURN_IF_ERROR(CheckSources(array, count, "array"));
  const int64_t element_bytes = kernels::ElementBytes(plan.dtype);
  plan.source = RegionPart();
  plan.source.may_lie_on_device = true;
  plan.typed.clear();
  plan.numbers = !CameAsBytes(array);
  if (!plan.numbers) {
    ROPE_ASSIGN_OR_RETURN(plan.input,
                          ReadBytes(array, count, element_bytes, source, "array", plan.source));
    return absl::OkStatus();
  }
  plan.typed.resize(static_cast<size_t>(count * element_bytes));
  auto* out = reinterpret_cast<uint8_t*>(plan.typed.data());
  for (const double number : array.numbers()) {
    kernels::WriteElement(number, plan.dtype, out);
    out += element_bytes;
  }
  plan.input.fragments.clear();
  plan.input.bytes = static_cast<int64_t>(plan.typed.size());
  if (!plan.typed.empty()) plan.input.fragments.emplace_back(plan.typed.data(), plan.typed.size());
  return absl::OkStatus();
}

}  // namespace rope::server
