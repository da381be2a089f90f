#include "tests/conformance/rotation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "absl/strings/str_format.h"
#include "kernels/dtype/element.h"

namespace rope::testing {

using kernels::DType;
using kernels::PairArithmetic;
using kernels::Pairing;

namespace {

constexpr float kEps = 1e-5f;
constexpr double kUnit = 0x1p-24;  // largest relative error of one float32 operation

// Digits of the fraction, and the exponent of the smallest normal number.
struct Precision {
  int digits;
  int exponent_min;
};

Precision PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {23, -126};
    case DType::kFloat16:
      return {10, -14};
    case DType::kBFloat16:
      return {7, -126};
    case DType::kFloat8E4M3:
      return {3, -6};
    case DType::kFloat8E5M2:
      break;
  }
  return {2, -14};
}

// One float32 operation whose result a tensor of the dtype holds.
double OneStep(double value, DType dtype) {
  const auto result = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat16:
      return kernels::FromFloat16(kernels::ToFloat16(result));
    case DType::kBFloat16:
      return kernels::FromBFloat16(kernels::ToBFloat16(result));
    default:
      return result;
  }
}

// The saturation value of fp8 output.
double Saturated(double value, DType dtype) {
  if (!IsFloat8(dtype) || std::isnan(value)) return value;
  const double largest = dtype == DType::kFloat8E4M3 ? 448 : 57344;
  return std::clamp(value, -largest, largest);
}

}  // namespace

double HalfUnit(double value, DType dtype) {
  if (dtype == DType::kFloat32) return 0;
  const auto [digits, exponent_min] = PrecisionOf(dtype);
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

bool RotationSpec::OnlyPairs() const {
  return norm == Norm::kNone && scale == 1 && !token_scales && stored() == dtype &&
         output_scale == 1;
}

std::string RotationSpec::Describe() const {
  return absl::StrFormat(
      "%s -> %s / %g %s, norm %d, scale %g%s, %d tokens x %d heads x %d, %d pairs at %d + %d, "
      "layout %d%s%s, arithmetic %d, misaligned by %d",
      Name(dtype), Name(stored()), output_scale, Name(geometry.pairing), static_cast<int>(norm),
      scale, token_scales ? " and of tokens" : "", tokens, heads, head_dim, geometry.pairs,
      geometry.offset, geometry.partner, static_cast<int>(layout), in_place ? ", in place" : "",
      conjugate ? ", conjugate" : "", static_cast<int>(arithmetic), misalignment);
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
    extent_ = Index(spec.tokens - 1, spec.heads - 1, spec.head_dim);
  }
  std::mt19937 random(spec.seed);
  std::uniform_int_distribution<int> element(-96, 96);  // multiples of 1/32: exact in every dtype
  input_ = MakeBuffer(extent_ * ElementBytes(spec.dtype));
  for (int64_t i = 0; i < extent_; ++i) {
    WriteElement(element(random) / 32.0, spec.dtype,
                 input_.bytes.data() + input_.begin + i * ElementBytes(spec.dtype));
  }
  original_ = input_.bytes;
  if (!spec.in_place) output_ = MakeBuffer(extent_ * ElementBytes(spec.stored()));
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
  page_ = std::make_unique<kernels::TablePage>(MakePage());
  for (kernels::RowRef& row : rows_) row.page = page_.get();

  std::uniform_real_distribution<float> factor(-2, 2);
  for (int64_t i = 0; i < spec.head_dim; ++i) {
    weights_.push_back(spec.norm == RotationSpec::Norm::kWeighted ? factor(random) : 1);
  }
  for (int64_t i = 0; i < spec.tokens; ++i) {
    token_scales_.push_back(spec.token_scales ? factor(random) : 1);
  }
}

int64_t Rotation::Index(int64_t token, int64_t head, int64_t channel) const {
  return token * strides_.token + head * strides_.head + channel;
}

int64_t Rotation::Offset(int64_t token, int64_t head, int64_t channel) const {
  return Index(token, head, channel) * ElementBytes(spec_.dtype);
}

int64_t Rotation::OutputOffset(int64_t token, int64_t head, int64_t channel) const {
  return Index(token, head, channel) * ElementBytes(spec_.stored());
}

// The allocation ends exactly at the last element, so that a sanitizer sees any read past it.
Rotation::Buffer Rotation::MakeBuffer(int64_t extent) const {
  Buffer buffer;
  constexpr int64_t kGuard = 64;
  buffer.bytes.assign(static_cast<size_t>(2 * kGuard + spec_.misalignment + extent), 0xa5);
  const auto address = reinterpret_cast<uintptr_t>(buffer.bytes.data());
  const int64_t to_aligned = static_cast<int64_t>((~address + 1) % 64);
  buffer.begin = to_aligned + spec_.misalignment;
  buffer.bytes.resize(static_cast<size_t>(buffer.begin + extent));
  return buffer;
}

kernels::RotateJob Rotation::job() const {
  const uint8_t* const input = input_.bytes.data() + input_.begin;
  const uint8_t* const output = spec_.in_place ? input : output_.bytes.data() + output_.begin;
  std::optional<kernels::RmsNorm> norm;
  if (spec_.norm != RotationSpec::Norm::kNone) {
    norm = {.weight = spec_.norm == RotationSpec::Norm::kWeighted ? weights_.data() : nullptr,
            .eps = kEps};
  }
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
          .arithmetic = spec_.arithmetic,
          .rows = rows_,
          .streams = spec_.streams,
          .norm = norm,
          .scale = spec_.scale,
          .token_scales = spec_.token_scales ? token_scales_ : absl::Span<const float>(),
          .output_dtype = spec_.output_dtype,
          .output_scale = spec_.output_scale,
          .saturated = saturated_.get()};
}

void Rotation::SetElement(int64_t token, int64_t head, int64_t channel, double value) {
  const int64_t offset = input_.begin + Offset(token, head, channel);
  WriteElement(value, spec_.dtype, input_.bytes.data() + offset);
  WriteElement(value, spec_.dtype, original_.data() + offset);
  if (spec_.in_place) WriteElement(value, spec_.dtype, untouched_.data() + offset);
}

void Rotation::SetCode(int64_t token, int64_t head, int64_t channel, uint8_t code) {
  const auto offset = static_cast<size_t>(input_.begin + Offset(token, head, channel));
  input_.bytes[offset] = original_[offset] = code;
  if (spec_.in_place) untouched_[offset] = code;
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
  *page_ = MakePage();
}

kernels::TablePage Rotation::MakePage() const {
  return {spec_.tokens, spec_.geometry.pairs, values_};
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
  return ReadElement(output().bytes.data() + output().begin + OutputOffset(token, head, channel),
                     spec_.stored());
}

std::vector<double> Rotation::NormedHead(int64_t token, int64_t head) const {
  std::vector<double> values;
  double squares = 0;
  for (int64_t channel = 0; channel < spec_.head_dim; ++channel) {
    values.push_back(Input(token, head, channel));
    squares += values.back() * values.back();
  }
  if (spec_.norm == RotationSpec::Norm::kNone) return values;
  const double rms = std::sqrt(squares / static_cast<double>(spec_.head_dim) + kEps);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= weights_[i] / rms;
  return values;
}

Rotation::Pair Rotation::Expected(double a, double b, double c, double s, double norm_units) const {
  const double length = std::abs(a) + std::abs(b);
  switch (spec_.arithmetic) {
    case PairArithmetic::kTurn:
      break;
    case PairArithmetic::kTurnStepwise: {
      const auto round = [this](double value) { return OneStep(value, spec_.dtype); };
      return {round(round(a * c) - round(b * s)), round(round(b * c) + round(a * s)), 0};
    }
    case PairArithmetic::kAdd: {
      const double largest = std::max(std::abs(a + s), std::abs(b + c));
      return {a + s, b + c, kUnit * largest + norm_units * length};
    }
  }
  return {a * c - b * s, b * c + a * s, (1.5e-7 + norm_units) * std::hypot(c, s) * length};
}

std::string Rotation::CheckChannel(int64_t token, int64_t head, int64_t channel,
                                   const Channel& expected) const {
  const double factor =
      spec_.scale * token_scales_[static_cast<size_t>(token)] / double{spec_.output_scale};
  const double want = Saturated(expected.exact, spec_.stored());
  // The unit may be the next larger one where the arithmetic's error crosses a power of two. A
  // denormal product rounds to 2^-149.
  const double tolerance = expected.error +
                           HalfUnit(std::abs(want) + expected.error, spec_.stored()) +
                           (1 + std::abs(factor)) * 0x1p-149;
  const double got = Output(token, head, channel);
  if (std::isnan(want) ? std::isnan(got) : got == want || std::abs(got - want) <= tolerance) {
    return "";
  }
  return absl::StrFormat("token %d head %d channel %d: got %.9g, want %.9g +- %.3g", token, head,
                         channel, got, want, tolerance);
}

std::vector<Rotation::Channel> Rotation::ExpectedHead(int64_t token, int64_t head) const {
  const kernels::PairGeometry& geometry = spec_.geometry;
  const bool half = geometry.pairing == Pairing::kHalf;
  const double norm_units = spec_.norm == RotationSpec::Norm::kNone ? 0 : 3 * kUnit;
  std::vector<double> turned = NormedHead(token, head);
  std::vector<double> errors;
  for (const double value : turned) errors.push_back(norm_units * std::abs(value));
  std::vector<bool> rotated(turned.size(), false);
  for (int64_t i = 0; i < geometry.pairs; ++i) {
    const auto first = static_cast<size_t>(geometry.offset + (half ? i : 2 * i));
    const size_t second = first + static_cast<size_t>(half ? geometry.partner : 1);
    const double c = page_->Cos(token)[i];
    const double s = page_->Sin(token)[i] * (spec_.conjugate ? -1.0 : 1.0);
    const Pair pair = Expected(turned[first], turned[second], c, s, norm_units);
    turned[first] = pair.a;
    turned[second] = pair.b;
    errors[first] = errors[second] = pair.error;
    rotated[first] = rotated[second] = true;
  }
  const double factor =
      spec_.scale * token_scales_[static_cast<size_t>(token)] / double{spec_.output_scale};
  const int steps =
      (spec_.scale != 1 || spec_.token_scales ? 2 : 0) + (spec_.output_scale != 1 ? 1 : 0);
  std::vector<Channel> channels;
  for (size_t i = 0; i < turned.size(); ++i) {
    const double exact = turned[i] * factor;
    channels.push_back({exact, errors[i] * std::abs(factor) + steps * kUnit * std::abs(exact),
                        !rotated[i] && spec_.OnlyPairs()});
  }
  return channels;
}

std::string Rotation::CheckHead(int64_t token, int64_t head) const {
  const std::vector<Channel> channels = ExpectedHead(token, head);
  for (size_t i = 0; i < channels.size(); ++i) {
    if (channels[i].copied) continue;
    std::string wrong = CheckChannel(token, head, static_cast<int64_t>(i), channels[i]);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

// Channels outside of the pairs, without fused operations.
std::string Rotation::CheckCopies(int64_t token, int64_t head) const {
  const kernels::PairGeometry& geometry = spec_.geometry;
  const bool half = geometry.pairing == Pairing::kHalf;
  const int64_t second = geometry.offset + (half ? geometry.partner : geometry.pairs);
  for (int64_t channel = 0; channel < spec_.head_dim; ++channel) {
    const bool rotated =
        (channel >= geometry.offset && channel < geometry.offset + geometry.pairs) ||
        (channel >= second && channel < second + geometry.pairs);
    const int64_t offset = Offset(token, head, channel);
    if (!rotated && std::memcmp(output().bytes.data() + output().begin + offset,
                                original_.data() + input_.begin + offset,
                                static_cast<size_t>(ElementBytes(spec_.dtype))) != 0) {
      return absl::StrFormat("token %d head %d channel %d is outside the pairs, but not a copy",
                             token, head, channel);
    }
  }
  return "";
}

std::string Rotation::CheckGuards() const {
  std::vector<uint8_t> masked = output().bytes;
  const size_t head_bytes = static_cast<size_t>(spec_.head_dim * ElementBytes(spec_.stored()));
  for (int64_t token = 0; token < spec_.tokens; ++token) {
    for (int64_t head = 0; head < spec_.heads; ++head) {
      const int64_t offset = output().begin + OutputOffset(token, head, 0);
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
      if (wrong.empty() && spec_.OnlyPairs()) wrong = CheckCopies(token, head);
    }
  }
  return wrong.empty() ? wrong : spec_.Describe() + ": " + wrong;
}

std::string Rotation::CheckSaturated() const {
  const double largest = Saturated(INFINITY, spec_.stored());
  int64_t least = 0;
  int64_t most = 0;
  for (int64_t token = 0; token < spec_.tokens && std::isfinite(largest); ++token) {
    for (int64_t head = 0; head < spec_.heads; ++head) {
      for (const Channel& channel : ExpectedHead(token, head)) {
        if (channel.copied) continue;
        const double error = std::isinf(channel.exact) ? 0 : channel.error;
        least += std::abs(channel.exact) - error > largest ? 1 : 0;
        most += std::abs(channel.exact) + error > largest ? 1 : 0;
      }
    }
  }
  if (saturated() >= least && saturated() <= most) return "";
  return absl::StrFormat("%s: got %d saturated elements, want %d to %d", spec_.Describe(),
                         saturated(), least, most);
}

}  // namespace rope::testing
