#include "client/cli/golden.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/arguments.h"
#include "kernels/dtype/element.h"

namespace rope::client {
namespace {

constexpr int64_t kAxisMax = int64_t{1} << 20;  // a product of three cannot overflow
constexpr double kTolerance = 1.5e-7;

// Reads keys of a JSON object. status() keeps the first error.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}
  const Status& status() const { return status_; }

  // Null where there is no such key.
  const Json& Get(const char* key) {
    const auto it = json_.find(key);
    if (it != json_.end()) return *it;
    Fail(key, "no such key", "one");
    return none_;
  }

  std::string Text(const char* key) {
    const Json& value = Get(key);
    if (value.is_string()) return value.get<std::string>();
    Fail(key, "another type", "a string");
    return {};
  }

  int64_t Integer(const char* key, int64_t min, int64_t max) {
    const Json& value = Get(key);
    if (value.is_number_integer()) {
      const auto number = value.get<int64_t>();
      if (number >= min && number <= max) return number;
    }
    Fail(key, "another value", absl::StrCat("an integer from ", min, " to ", max));
    return min;
  }

  double Number(const char* key) {
    const Json& value = Get(key);
    if (value.is_number()) return value.get<double>();
    Fail(key, "another type", "a number");
    return 0;
  }

  std::vector<double> Numbers(const char* key, int64_t count) {
    std::vector<double> numbers;
    Append(key, Get(key), count, numbers);
    return numbers;
  }

  // T integers, or three lists of T integers.
  void Positions(int64_t tokens, GoldenFile& golden) {
    const Json& value = Get("positions");
    if (!value.is_array() || value.empty() || !value.front().is_array()) {
      golden.positions_shape = {tokens};
      return Append("positions", value, tokens, golden.positions);
    }
    golden.positions_shape = {3, tokens};
    if (!CheckArray("positions", value, 3)) return;
    for (const Json& row : value) Append("positions", row, tokens, golden.positions);
  }

  void Fail(absl::string_view key, absl::string_view got, absl::string_view want) {
    if (!status_.ok()) return;
    status_ =
        Status(StatusCode::kInvalidArgument, absl::StrCat(key, ": got ", got, ", want ", want));
  }

 private:
  bool CheckArray(const char* key, const Json& value, int64_t count) {
    if (!value.is_array()) {
      Fail(key, "another type", "an array");
      return false;
    }
    if (static_cast<int64_t>(value.size()) == count) return true;
    Fail(key, absl::StrCat(value.size(), " elements"), absl::StrCat(count));
    return false;
  }

  template <typename Number>
  void Append(const char* key, const Json& value, int64_t count, std::vector<Number>& out) {
    constexpr bool kIsInteger = std::is_integral_v<Number>;
    if (!CheckArray(key, value, count)) return;
    for (const Json& element : value) {
      const bool legal = kIsInteger ? element.is_number_integer() : element.is_number();
      if (!legal) Fail(key, "another type in it", kIsInteger ? "integers" : "numbers");
      out.push_back(legal ? element.get<Number>() : 0);
    }
  }

  const Json& json_;
  const Json none_;
  Status status_;
};

std::optional<Pairing> ReadPairing(Fields& fields) {
  const std::string text = fields.Text("pairing");
  if (text == "half") return Pairing::kHalf;
  if (text == "interleaved") return Pairing::kInterleaved;
  fields.Fail("pairing", text, "half or interleaved");
  return std::nullopt;
}

GoldenTensor ReadTensorInto(Fields& fields, const GoldenFile& golden, Role role) {
  const bool is_q = role == Role::kQ;
  GoldenTensor tensor;
  tensor.role = role;
  tensor.heads = fields.Integer(is_q ? "num_heads" : "num_kv_heads", 0, kAxisMax);
  const int64_t count = golden.tokens * tensor.heads * golden.head_dim;
  tensor.input = fields.Numbers(is_q ? "q" : "k", count);
  tensor.expected = fields.Numbers(is_q ? "q_out_f64" : "k_out_f64", count);
  return tensor;
}

kernels::DType KernelsDType(DType dtype) {
  if (dtype == DType::kFloat32) return kernels::DType::kFloat32;
  return dtype == DType::kFloat16 ? kernels::DType::kFloat16 : kernels::DType::kBFloat16;
}

double Ratio(double error, double tolerance) {
  if (error == 0) return 0;
  const double ratio = error / tolerance;
  return std::isnan(ratio) || tolerance == 0 ? std::numeric_limits<double>::infinity() : ratio;
}

// The channel that forms a pair with `channel`; `channel` itself if it does not rotate.
int64_t PartnerOf(const GoldenFile& golden, int64_t channel) {
  if (channel >= golden.rotary_dim) return channel;
  if (golden.pairing == Pairing::kInterleaved) return channel ^ 1;
  const int64_t half = golden.rotary_dim / 2;
  return channel < half ? channel + half : channel - half;
}

// Half the distance between `stored` and its neighbour in a 16-bit type; 0 for float32.
double HalfUnit(double stored, DType dtype) {
  if (dtype == DType::kFloat32) return 0;
  const int mantissa_bits = dtype == DType::kFloat16 ? 10 : 7;
  const int exponent_min = dtype == DType::kFloat16 ? -14 : -126;
  const int exponent = stored == 0 ? exponent_min : std::max(std::ilogb(stored), exponent_min);
  return std::ldexp(0.5, exponent - mantissa_bits);
}

}  // namespace

Result<GoldenFile> ParseGolden(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Status(StatusCode::kInvalidArgument, "got other text, want a JSON object");
  }
  Fields fields(json);
  if (const std::string format = fields.Text("format"); format != "rope-golden-1") {
    fields.Fail("format", format, "rope-golden-1");
  }
  GoldenFile golden;
  golden.config_json = fields.Get("config").dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!fields.Get("layer_type").is_null()) golden.layer_type = fields.Text("layer_type");
  golden.pairing = ReadPairing(fields);
  golden.head_dim = fields.Integer("head_dim", 1, kAxisMax);
  golden.rotary_dim = fields.Integer("rotary_dim", 0, golden.head_dim);
  if (golden.rotary_dim % 2 != 0) fields.Fail("rotary_dim", "an odd number", "an even one");
  golden.tokens = fields.Integer("num_tokens", 0, kAxisMax);
  golden.seq_len = fields.Integer("seq_len", 1, std::numeric_limits<int64_t>::max());
  golden.attention_factor = fields.Number("attention_factor");
  if (!(golden.attention_factor >= 0)) fields.Fail("attention_factor", "less", "at least 0");
  fields.Positions(golden.tokens, golden);
  for (const Role role : {Role::kQ, Role::kK}) {
    golden.tensors.push_back(ReadTensorInto(fields, golden, role));
  }
  if (!fields.status().ok()) return fields.status();
  return golden;
}

std::vector<std::byte> Store(const std::vector<double>& values, DType dtype) {
  const auto width = static_cast<size_t>(ElementBytes(dtype));
  std::vector<std::byte> bytes(values.size() * width);
  for (size_t i = 0; i < values.size(); ++i) {
    kernels::WriteElement(values[i], KernelsDType(dtype),
                          reinterpret_cast<uint8_t*>(&bytes[i * width]));
  }
  return bytes;
}

Deviation Compare(const GoldenFile& golden, const GoldenTensor& tensor, DType dtype,
                  const void* rotated) {
  const auto* elements = static_cast<const uint8_t*>(rotated);
  const int64_t row_channels = tensor.heads * golden.head_dim;
  Deviation worst;
  for (size_t i = 0; i < tensor.expected.size(); ++i) {
    const int64_t channel = static_cast<int64_t>(i) % golden.head_dim;
    const int64_t partner = PartnerOf(golden, channel);
    const double got = kernels::ReadElement(elements + i * static_cast<size_t>(ElementBytes(dtype)),
                                            KernelsDType(dtype));
    const double error = std::abs(got - tensor.expected[i]);
    double tolerance = 0;
    if (partner != channel) {
      const double other = tensor.input[i + static_cast<size_t>(partner - channel)];
      tolerance =
          kTolerance * golden.attention_factor * (std::abs(tensor.input[i]) + std::abs(other));
      if (std::isfinite(got)) tolerance += HalfUnit(got, dtype);
    }
    const double ratio = Ratio(error, tolerance);
    if (ratio <= worst.ratio) continue;
    const auto index = static_cast<int64_t>(i);
    worst.ratio = ratio;
    worst.where = absl::StrFormat("%s[%d, %d, %d]: got %.9g, want %.9g, tolerance %.3g",
                                  tensor.role == Role::kQ ? "q" : "k", index / row_channels,
                                  index % row_channels / golden.head_dim, channel, got,
                                  tensor.expected[i], tolerance);
  }
  return worst;
}

}  // namespace rope::client
