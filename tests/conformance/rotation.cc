#include "tests/conformance/rotation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_format.h"
#include "kernels/float16.h"

namespace rope::testing {

using kernels::DType;
using kernels::Pairing;

double ReadElement(const uint8_t* element, DType dtype) {
  if (dtype == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof(bits));
  return dtype == DType::kFloat16 ? kernels::FromFloat16(bits) : kernels::FromBFloat16(bits);
}

void WriteElement(double value, DType dtype, uint8_t* element) {
  if (dtype == DType::kFloat32) {
    const float rounded = static_cast<float>(value);
    std::memcpy(element, &rounded, sizeof(rounded));
    return;
  }
  const uint16_t bits =
      dtype == DType::kFloat16 ? kernels::ToFloat16(value) : kernels::ToBFloat16(value);
  std::memcpy(element, &bits, sizeof(bits));
}

double HalfUnit(double value, DType dtype) {
  if (dtype == DType::kFloat32) return 0;
  const int digits = dtype == DType::kFloat16 ? 10 : 7;
  const int exponent_min = dtype == DType::kFloat16 ? -14 : -126;
  const int exponent = value == 0 ? exponent_min : std::max(std::ilogb(value), exponent_min);
  return std::ldexp(0.5, exponent - digits);
}

double Tolerance(double exact, double a, double b, double scale, DType dtype) {
  const double arithmetic = 1.5e-7 * scale * (std::abs(a) + std::abs(b));
  // The unit may be the next larger one where the arithmetic's error crosses a power of two. A
  // denormal product rounds to 2^-149.
  return arithmetic + HalfUnit(std::abs(exact) + arithmetic, dtype) + std::ldexp(1.0, -149);
}

kernels::PairGeometry WholeHead(Pairing pairing, int64_t head_dim) {
  return {.pairing = pairing, .pairs = head_dim / 2, .offset = 0, .partner = head_dim / 2};
}

std::string RotationSpec::Describe() const {
  return absl::StrFormat(
      "%s %s, %d tokens x %d heads x %d, %d pairs at %d + %d, layout %d%s%s, misaligned by %d",
      Name(dtype), Name(geometry.pairing), tokens, heads, head_dim, geometry.pairs, geometry.offset,
      geometry.partner, static_cast<int>(layout), in_place ? ", in place" : "",
      conjugate ? ", conjugate" : "", misalignment);
}

Rotation::Rotation(const RotationSpec& spec) : spec_(spec) {
  switch (spec.layout) {
    case RotationSpec::Layout::kTokenMajor:
      strides_ = {.token = spec.heads * spec.head_dim, .head = spec.head_dim};
      break;
    case RotationSpec::Layout::kHeadMajor:
      strides_ = {.token = spec.head_dim, .head = spec.tokens * spec.head_dim};
      break;
    case RotationSpec::Layout::kPadded:
      strides_ = {.token = spec.heads * (spec.head_dim + 3) + 5, .head = spec.head_dim + 3};
      break;
  }
  if (spec.tokens > 0 && spec.heads > 0) {
    extent_ = Offset(spec.tokens - 1, spec.heads - 1, spec.head_dim);
  }
  std::mt19937 random(spec.seed);
  std::uniform_int_distribution<int> element(-96, 96);  // multiples of 1/32: exact in every dtype
  input_ = MakeBuffer();
  for (int64_t i = 0; i + ElementBytes(spec.dtype) <= extent_; i += ElementBytes(spec.dtype)) {
    WriteElement(element(random) / 32.0, spec.dtype, input_.bytes.data() + input_.begin + i);
  }
  original_ = input_.bytes;
  if (!spec.in_place) output_ = MakeBuffer();
  untouched_ = spec.in_place ? original_ : output_.bytes;

  std::uniform_real_distribution<double> angle(-3.2, 3.2);
  values_.resize(static_cast<size_t>(spec.tokens * 2 * spec.geometry.pairs));
  for (int64_t token = 0; token < spec.tokens; ++token) {
    float* const row = values_.data() + token * 2 * spec.geometry.pairs;
    for (int64_t i = 0; i < spec.geometry.pairs; ++i) {
      const double phase = angle(random);
      row[i] = static_cast<float>(1.25 * std::cos(phase));
      row[spec.geometry.pairs + i] = static_cast<float>(1.25 * std::sin(phase));
    }
    rows_.push_back({nullptr, token});
  }
  page_ = std::make_unique<kernels::TablePage>(spec.tokens, spec.geometry.pairs, values_);
  for (kernels::RowRef& row : rows_) row.page = page_.get();
}

int64_t Rotation::Offset(int64_t token, int64_t head, int64_t channel) const {
  return (token * strides_.token + head * strides_.head + channel) * ElementBytes(spec_.dtype);
}

// Ends exactly at the last element, so that a sanitizer sees reads past it.
Rotation::Buffer Rotation::MakeBuffer() const {
  Buffer buffer;
  constexpr int64_t kGuard = 64;
  buffer.bytes.assign(static_cast<size_t>(2 * kGuard + spec_.misalignment + extent_), 0xa5);
  const auto address = reinterpret_cast<uintptr_t>(buffer.bytes.data());
  const int64_t to_aligned = static_cast<int64_t>((~address + 1) % 64);
  buffer.begin = to_aligned + spec_.misalignment;
  buffer.bytes.resize(static_cast<size_t>(buffer.begin + extent_));
  return buffer;
}

kernels::RotateJob Rotation::job() const {
  const uint8_t* const input = input_.bytes.data() + input_.begin;
  const uint8_t* const output = spec_.in_place ? input : output_.bytes.data() + output_.begin;
  return {.input = input,
          .output = const_cast<uint8_t*>(output),
          .input_strides = strides_,
          .output_strides = strides_,
          .tokens = spec_.tokens,
          .heads = spec_.heads,
          .head_dim = spec_.head_dim,
          .dtype = spec_.dtype,
          .geometry = spec_.geometry,
          .conjugate = spec_.conjugate,
          .rows = rows_};
}

void Rotation::SetElement(int64_t token, int64_t head, int64_t channel, double value) {
  const int64_t offset = input_.begin + Offset(token, head, channel);
  WriteElement(value, spec_.dtype, input_.bytes.data() + offset);
  WriteElement(value, spec_.dtype, original_.data() + offset);
  if (spec_.in_place) WriteElement(value, spec_.dtype, untouched_.data() + offset);
}

void Rotation::SetChannel(int64_t channel, double value) {
  for (int64_t token = 0; token < spec_.tokens; ++token) {
    for (int64_t head = 0; head < spec_.heads; ++head) SetElement(token, head, channel, value);
  }
}

void Rotation::SetRow(int64_t pair, float cos, float sin) {
  for (int64_t token = 0; token < spec_.tokens; ++token) {
    float* const row = values_.data() + token * 2 * spec_.geometry.pairs;
    row[pair] = cos;
    row[spec_.geometry.pairs + pair] = sin;
  }
  *page_ = kernels::TablePage(spec_.tokens, spec_.geometry.pairs, values_);
}

void Rotation::TakeInput(const Rotation& other) {
  for (int64_t token = 0; token < spec_.tokens; ++token) {
    for (int64_t head = 0; head < spec_.heads; ++head) {
      for (int64_t channel = 0; channel < spec_.head_dim; ++channel) {
        SetElement(token, head, channel, other.Output(token, head, channel));
      }
    }
  }
}

double Rotation::Input(int64_t token, int64_t head, int64_t channel) const {
  return ReadElement(original_.data() + input_.begin + Offset(token, head, channel), spec_.dtype);
}

double Rotation::Output(int64_t token, int64_t head, int64_t channel) const {
  const Buffer& buffer = spec_.in_place ? input_ : output_;
  return ReadElement(buffer.bytes.data() + buffer.begin + Offset(token, head, channel),
                     spec_.dtype);
}

std::string Rotation::CheckHead(int64_t token, int64_t head) const {
  const kernels::PairGeometry& geometry = spec_.geometry;
  const bool half = geometry.pairing == Pairing::kHalf;
  std::vector<bool> rotated(static_cast<size_t>(spec_.head_dim), false);
  const auto compare = [&](int64_t channel, double exact, double tolerance) -> std::string {
    rotated[static_cast<size_t>(channel)] = true;
    const double got = Output(token, head, channel);
    if (std::isnan(exact) ? std::isnan(got) : got == exact || std::abs(got - exact) <= tolerance) {
      return "";
    }
    return absl::StrFormat("token %d head %d channel %d: got %.9g, want %.9g +- %.3g", token, head,
                           channel, got, exact, tolerance);
  };
  for (int64_t i = 0; i < geometry.pairs; ++i) {
    const int64_t first = geometry.offset + (half ? i : 2 * i);
    const int64_t second = first + (half ? geometry.partner : 1);
    const double a = Input(token, head, first);
    const double b = Input(token, head, second);
    const double c = page_->Cos(token)[i];
    const double s = page_->Sin(token)[i] * (spec_.conjugate ? -1.0 : 1.0);
    const double turned_a = a * c - b * s;
    const double turned_b = b * c + a * s;
    const double scale = std::hypot(c, s);
    std::string wrong = compare(first, turned_a, Tolerance(turned_a, a, b, scale, spec_.dtype));
    wrong += compare(second, turned_b, Tolerance(turned_b, a, b, scale, spec_.dtype));
    if (!wrong.empty()) return wrong;
  }
  const Buffer& output = spec_.in_place ? input_ : output_;
  for (int64_t channel = 0; channel < spec_.head_dim; ++channel) {
    if (rotated[static_cast<size_t>(channel)]) continue;
    const int64_t offset = Offset(token, head, channel);
    if (std::memcmp(output.bytes.data() + output.begin + offset,
                    original_.data() + input_.begin + offset,
                    static_cast<size_t>(ElementBytes(spec_.dtype))) != 0) {
      return absl::StrFormat("token %d head %d channel %d is outside the pairs, but not a copy",
                             token, head, channel);
    }
  }
  return "";
}

std::string Rotation::CheckGuards() const {
  const Buffer& output = spec_.in_place ? input_ : output_;
  std::vector<uint8_t> masked = output.bytes;
  const size_t head_bytes = static_cast<size_t>(spec_.head_dim * ElementBytes(spec_.dtype));
  for (int64_t token = 0; token < spec_.tokens; ++token) {
    for (int64_t head = 0; head < spec_.heads; ++head) {
      const int64_t offset = output.begin + Offset(token, head, 0);
      std::memcpy(masked.data() + offset, untouched_.data() + offset, head_bytes);
    }
  }
  if (masked != untouched_) return "a byte outside the heads was written";
  if (!spec_.in_place && input_.bytes != original_) return "the input was written";
  return "";
}

std::string Rotation::Check() const {
  std::string wrong = CheckGuards();
  for (int64_t token = 0; token < spec_.tokens && wrong.empty(); ++token) {
    for (int64_t head = 0; head < spec_.heads && wrong.empty(); ++head) {
      wrong = CheckHead(token, head);
    }
  }
  return wrong.empty() ? wrong : spec_.Describe() + ": " + wrong;
}

}  // namespace rope::testing
