#include "client/cli/diagnose/diagnose_input.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/npy.h"
#include "proto/wire/float16.h"

namespace rope::client {
namespace {

constexpr int64_t kPositionMax = int64_t{1} << 30;
constexpr int64_t kNeighbours = kSampleTokensMax / 2;  // consecutive tokens, from the first on

Status Bad(absl::string_view what, absl::string_view got, absl::string_view want) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("--", what, ": got ", got, ", want ", want));
}

template <typename T>
T Element(absl::string_view data, int64_t index) {
  T value;
  std::memcpy(&value, data.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

// REQUIRES: DTypeOf accepts the type.
double Load(const NpyArray& array, int64_t index) {
  if (array.descr == "<f8") return Element<double>(array.data, index);
  if (array.descr == "<f4") return static_cast<double>(Element<float>(array.data, index));
  const auto bits = Element<uint16_t>(array.data, index);
  return static_cast<double>(array.descr == "<f2" ? proto::FloatFromHalf(bits)
                                                  : proto::FloatFromBFloat16(bits));
}

std::optional<DType> DTypeOf(absl::string_view descr) {
  if (descr == "<f4" || descr == "<f8") return DType::kFloat32;
  if (descr == "<f2") return DType::kFloat16;
  if (descr == "<u2" || descr == "<V2" || descr == "|V2") return DType::kBFloat16;
  return std::nullopt;
}

Result<NpyArray> Parse(absl::string_view flag, absl::string_view bytes) {
  Result<NpyArray> array = ParseNpy(bytes);
  if (!array.ok()) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat("--", flag, ": ", array.status().message()));
  }
  if (!DTypeOf(array->descr).has_value()) {
    return Bad(flag, array->descr, "<f4, <f8, <f2, or <u2 with the bits of bfloat16");
  }
  return array;
}

// The axis of the tokens; -1 if the layout is not valid.
int TokenAxis(absl::string_view layout) {
  int axis = -1;
  for (size_t i = 0; i < layout.size(); ++i) {
    const bool is_last = i + 1 == layout.size();
    const char letter = layout[i];
    if (layout.find(letter) != i || (letter == 'D') != is_last) return -1;
    if (letter == 'S' || letter == 'T') {
      if (axis >= 0) return -1;
      axis = static_cast<int>(i);
    } else if (absl::string_view("BHLD").find(letter) == absl::string_view::npos) {
      return -1;
    }
  }
  return axis;
}

// The sampled tokens: first a run of neighbours, then evenly spaced ones, including the last.
std::vector<int64_t> TokensOf(int64_t total) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < std::min(total, kNeighbours); ++i) tokens.push_back(i);
  const int64_t rest = total - kNeighbours;
  const int64_t more = std::min(rest, kSampleTokensMax - kNeighbours);
  for (int64_t i = 1; i <= more; ++i) tokens.push_back(kNeighbours - 1 + i * rest / more);
  return tokens;
}

// Offset of row `row` of token `token`, in elements.
class Places {
 public:
  Places(const std::vector<int64_t>& shape, int token_axis) {
    const auto axis = static_cast<size_t>(token_axis);
    for (size_t i = 0; i < shape.size(); ++i)
      (i < axis ? outer_ : inner_) *= i == axis ? 1 : shape[i];
    tokens_ = shape[axis];
    channels_ = shape.back();
    inner_rows_ = channels_ == 0 ? 0 : inner_ / channels_;
  }
  int64_t rows() const { return outer_ * inner_rows_; }
  int64_t At(int64_t token, int64_t row) const {
    return (row / inner_rows_ * tokens_ + token) * inner_ + row % inner_rows_ * channels_;
  }

 private:
  int64_t outer_ = 1;  // product of the axes before the token axis
  int64_t inner_ = 1;  // product of the axes after it
  int64_t tokens_ = 0;
  int64_t channels_ = 0;
  int64_t inner_rows_ = 0;
};

Result<std::vector<int64_t>> PositionsOf(const SamplePlan& plan, int64_t tokens) {
  if (plan.start.has_value() == !plan.positions.empty()) {
    return Bad("start, --positions", plan.start.has_value() ? "both" : "neither", "one of them");
  }
  std::vector<int64_t> positions = plan.positions;
  for (int64_t i = 0; plan.start.has_value() && i < tokens; ++i) {
    if (*plan.start < 0 || *plan.start > kPositionMax - tokens) {
      return Bad("start", absl::StrCat(*plan.start), "positions from 0 to 2^30");
    }
    positions.push_back(*plan.start + i);
  }
  if (static_cast<int64_t>(positions.size()) != tokens) {
    return Bad("positions", absl::StrCat(positions.size(), " of them"), absl::StrCat(tokens));
  }
  for (const int64_t position : positions) {
    if (position < 0 || position >= kPositionMax) {
      return Bad("positions", absl::StrCat(position), "0 to 2^30 - 1");
    }
  }
  return positions;
}

Status CheckShapes(const NpyArray& before, const NpyArray& after, const SamplePlan& plan) {
  if (before.shape != after.shape) {
    return Bad("after", absl::StrCat("shape ", absl::StrJoin(after.shape, ",")),
               absl::StrCat("that of --before, ", absl::StrJoin(before.shape, ",")));
  }
  if (TokenAxis(plan.layout) < 0 || plan.layout.size() != before.shape.size()) {
    return Bad("layout", plan.layout.empty() ? "nothing" : plan.layout,
               absl::StrCat("a letter for each of ", before.shape.size(),
                            " axes, D last, one of S and T, for example SHD"));
  }
  for (const int64_t length : before.shape) {
    if (length == 0) return Bad("before", "no elements", "some");
  }
  return {};
}

}  // namespace

Result<RotatedSample> SampleOf(absl::string_view before, absl::string_view after,
                               const SamplePlan& plan) {
  const Result<NpyArray> first = Parse("before", before);
  if (!first.ok()) return first.status();
  const Result<NpyArray> second = Parse("after", after);
  if (!second.ok()) return second.status();
  if (Status status = CheckShapes(*first, *second, plan); !status.ok()) return status;
  const int axis = TokenAxis(plan.layout);
  const Places places(first->shape, axis);
  RotatedSample sample;
  sample.tokens_total = first->shape[static_cast<size_t>(axis)];
  const Result<std::vector<int64_t>> positions = PositionsOf(plan, sample.tokens_total);
  if (!positions.ok()) return positions.status();
  sample.rows_total = places.rows();
  sample.rows = std::min(sample.rows_total, kSampleRowsMax);
  sample.head_dim = first->shape.back();
  sample.dtype = *DTypeOf(second->descr);
  sample.seq_len = *std::max_element(positions->begin(), positions->end()) + 1;
  for (const int64_t token : TokensOf(sample.tokens_total)) {
    sample.positions.push_back((*positions)[static_cast<size_t>(token)]);
    for (int64_t row = 0; row < sample.rows; ++row) {
      const int64_t place = places.At(token, row * sample.rows_total / sample.rows);
      for (int64_t channel = place; channel < place + sample.head_dim; ++channel) {
        sample.before.push_back(Load(*first, channel));
        sample.after.push_back(Load(*second, channel));
        if (!std::isfinite(sample.before.back())) return Bad("before", "inf or nan", "numbers");
        if (!std::isfinite(sample.after.back())) return Bad("after", "inf or nan", "numbers");
      }
    }
  }
  return sample;
}

}  // namespace rope::client
