#include "kernels/dtype/element.h"

#include <cstring>

#include "kernels/dtype/float16.h"
#include "kernels/dtype/float8.h"

namespace rope::kernels {
namespace {

template <typename T>
T Read(const uint8_t* element) {
  T value;
  std::memcpy(&value, element, sizeof(value));
  return value;
}

template <typename T>
void Write(T value, uint8_t* element) {
  std::memcpy(element, &value, sizeof(value));
}

}  // namespace

double ReadElement(const uint8_t* element, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Read<float>(element);
    case DType::kFloat16:
      return FromFloat16(Read<uint16_t>(element));
    case DType::kBFloat16:
      return FromBFloat16(Read<uint16_t>(element));
    case DType::kFloat8E4M3:
      return FromFloat8E4M3(*element);
    case DType::kFloat8E5M2:
      break;
  }
  return FromFloat8E5M2(*element);
}

void WriteElement(double value, DType dtype, uint8_t* element) {
  switch (dtype) {
    case DType::kFloat32:
      return Write(static_cast<float>(value), element);
    case DType::kFloat16:
      return Write(ToFloat16(value), element);
    case DType::kBFloat16:
      return Write(ToBFloat16(value), element);
    case DType::kFloat8E4M3:
      return Write(ToFloat8E4M3(value), element);
    case DType::kFloat8E5M2:
      return Write(ToFloat8E5M2(value), element);
  }
}

double RoundedTo(double value, DType dtype) {
  uint8_t element[sizeof(float)] = {};
  WriteElement(value, dtype, element);
  return ReadElement(element, dtype);
}

}  // namespace rope::kernels
