#include "client/cli/diagnose/diagnose_input.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/npy.h"
#include "kernels/dtype/element.h"

namespace rope::client {
namespace {

constexpr int64_t kPositionMax = int64_t{1} << 30;
constexpr int64_t kCellsMin = 8;  // heads of tokens in a sample, however wide they are

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
  return static_cast<double>(array.descr == "<f2" ? kernels::FromFloat16(bits)
                                                  : kernels::FromBFloat16(bits));
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

// At most `most` of `total` tokens: first a run of neighbours, half of them, then evenly spaced
// ones, including the last.
std::vector<int64_t> TokensOf(int64_t total, int64_t most) {
  std::vector<int64_t> tokens;
  const int64_t neighbours = total <= most ? total : (most + 1) / 2;
  for (int64_t i = 0; i < neighbours; ++i) tokens.push_back(i);
  const int64_t rest = total - neighbours;
  const int64_t more = std::min(rest, most - neighbours);
  for (int64_t i = 1; i <= more; ++i) tokens.push_back(neighbours - 1 + i * rest / more);
  return tokens;
}

// At most `most` of `total` rows, evenly spaced.
std::vector<int64_t> RowsOf(int64_t total, int64_t most) {
  const int64_t count = std::min(total, most);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(i * total / count);
  return rows;
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

// Sets heads, head_stride and heads_before_tokens.
void FindHeads(absl::string_view layout, const std::vector<int64_t>& shape, RotatedSample& sample) {
  const size_t axis = layout.find('H');
  if (axis == absl::string_view::npos) return;
  const auto tokens = static_cast<size_t>(TokenAxis(layout));
  sample.heads = shape[axis];
  sample.heads_before_tokens = axis < tokens;
  for (size_t i = axis + 1; i + 1 < shape.size(); ++i) {
    if (i != tokens) sample.head_stride *= shape[i];
  }
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
  Result<std::vector<int64_t>> positions = PositionsOf(plan, sample.tokens_total);
  if (!positions.ok()) return positions.status();
  sample.all_positions = *std::move(positions);
  sample.rows_total = places.rows();
  sample.head_dim = first->shape.back();
  sample.dtype = *DTypeOf(second->descr);
  sample.seq_len = *std::max_element(sample.all_positions.begin(), sample.all_positions.end()) + 1;
  FindHeads(plan.layout, first->shape, sample);
  const int64_t cells = std::max(kCellsMin, kSampleElementsMax / sample.head_dim);
  const int64_t fewest_tokens = std::min({sample.tokens_total, kThinTokensMax, cells});
  sample.row_indices = RowsOf(sample.rows_total, cells / fewest_tokens);
  sample.rows = static_cast<int64_t>(sample.row_indices.size());
  sample.token_indices = TokensOf(sample.tokens_total, cells / sample.rows);
  for (const int64_t token : sample.token_indices) {
    sample.positions.push_back(sample.all_positions[static_cast<size_t>(token)]);
    for (const int64_t row : sample.row_indices) {
      const int64_t place = places.At(token, row);
      for (int64_t channel = place; channel < place + sample.head_dim; ++channel) {
        sample.before.push_back(Load(*first, channel));
        sample.after.push_back(Load(*second, channel));
        if (!std::isfinite(sample.before.back())) return Bad("before", "inf or nan", "numbers");
        if (!std::isfinite(sample.after.back())) return Bad("after", "inf or nan", "numbers");
      }
    }
  }
  sample.dtype = NarrowestDType(sample);
  return sample;
}

DType NarrowestDType(const RotatedSample& sample) {
  if (sample.dtype != DType::kFloat32) return sample.dtype;
  const auto all_are = [&sample](auto is_representable) {
    return std::all_of(sample.before.begin(), sample.before.end(), is_representable) &&
           std::all_of(sample.after.begin(), sample.after.end(), is_representable);
  };
  if (all_are([](double value) {
        return value == static_cast<double>(kernels::FromBFloat16(kernels::ToBFloat16(value)));
      })) {
    return DType::kBFloat16;
  }
  if (all_are([](double value) {
        return value == static_cast<double>(kernels::FromFloat16(kernels::ToFloat16(value)));
      })) {
    return DType::kFloat16;
  }
  return DType::kFloat32;
}

RotatedSample Thinned(const RotatedSample& sample) {
  RotatedSample thin = sample;
  thin.before.clear();
  thin.after.clear();
  thin.positions.clear();
  thin.token_indices.clear();
  thin.row_indices.clear();
  const std::vector<int64_t> rows = RowsOf(sample.rows, kThinRowsMax);
  thin.rows = static_cast<int64_t>(rows.size());
  for (const int64_t row : rows) {
    thin.row_indices.push_back(sample.row_indices[static_cast<size_t>(row)]);
  }
  const auto count = static_cast<int64_t>(sample.positions.size());
  for (const int64_t token : TokensOf(count, kThinTokensMax)) {
    thin.positions.push_back(sample.positions[static_cast<size_t>(token)]);
    thin.token_indices.push_back(sample.token_indices[static_cast<size_t>(token)]);
    for (const int64_t row : rows) {
      const std::ptrdiff_t place = (token * sample.rows + row) * sample.head_dim;
      const auto append = [&](const std::vector<double>& from, std::vector<double>& to) {
        to.insert(to.end(), from.begin() + place, from.begin() + place + sample.head_dim);
      };
      append(sample.before, thin.before);
      append(sample.after, thin.after);
    }
  }
  return thin;
}

}  // namespace rope::client
