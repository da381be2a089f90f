// The reference backend: the definition of RotateJob in scalar double arithmetic, rounded once.
// Slow and obvious.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/backend_factories.h"
#include "kernels/check.h"
#include "kernels/float16.h"

namespace rope::kernels {
namespace {

double Load(const uint8_t* element, DType dtype) {
  if (dtype == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof(bits));
  return dtype == DType::kFloat16 ? FromFloat16(bits) : FromBFloat16(bits);
}

void Store(double value, DType dtype, uint8_t* element) {
  if (dtype == DType::kFloat32) {
    const float rounded = static_cast<float>(value);
    std::memcpy(element, &rounded, sizeof(rounded));
    return;
  }
  const uint16_t bits = dtype == DType::kFloat16 ? ToFloat16(value) : ToBFloat16(value);
  std::memcpy(element, &bits, sizeof(bits));
}

void RotateHead(const RotateJob& job, int64_t token, int64_t head) {
  const int64_t bytes = ElementBytes(job.dtype);
  const auto* input = static_cast<const uint8_t*>(job.input) +
                      (token * job.input_strides.token + head * job.input_strides.head) * bytes;
  auto* output = static_cast<uint8_t*>(job.output) +
                 (token * job.output_strides.token + head * job.output_strides.head) * bytes;
  if (input != output) std::memcpy(output, input, static_cast<size_t>(job.head_dim * bytes));

  const PairGeometry& geometry = job.geometry;
  const bool half = geometry.pairing == Pairing::kHalf;
  const RowRef& row = job.rows[static_cast<size_t>(token)];
  for (int64_t i = 0; i < geometry.pairs; ++i) {
    const int64_t first = geometry.offset + (half ? i : 2 * i);
    const int64_t second = first + (half ? geometry.partner : 1);
    const double a = Load(input + first * bytes, job.dtype);
    const double b = Load(input + second * bytes, job.dtype);
    const double c = row.page->Cos(row.index)[i];
    const double s = job.conjugate ? -row.page->Sin(row.index)[i] : row.page->Sin(row.index)[i];
    Store(a * c - b * s, job.dtype, output + first * bytes);
    Store(b * c + a * s, job.dtype, output + second * bytes);
  }
}

class ReferenceBackend : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string detail() const override { return "scalar double, 1 thread"; }

  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    for (const RotateJob& job : jobs) {
      CheckJob(job);
      for (int64_t token = 0; token < job.tokens; ++token) {
        for (int64_t head = 0; head < job.heads; ++head) RotateHead(job, token, head);
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace rope::kernels
