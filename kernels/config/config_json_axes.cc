#include "kernels/config/config_json_axes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/config/model_types.h"
#include "kernels/config/rope_formulas.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

constexpr int8_t kH = 1;
constexpr int8_t kW = 2;

// Whether the parameters name `type` as their rope_type (or type).
bool IsType(const JsonFields& parameters, std::string_view type) {
  const nlohmann::json* const name =
      parameters.Find(parameters.Has("rope_type") ? "rope_type" : "type");
  return name != nullptr && *name == type;
}

// Ernie 4.5 VL: h and w alternate, then t. Its files give the count of t as freq_allocation
// (Hugging Face's first version), or all three counts in the order h, w, t. Without either the
// class has 22, 22 and 20.
absl::StatusOr<Mrope> ReadErnieMrope(const JsonFields& parameters,
                                     const std::vector<int64_t>& section,
                                     std::optional<int64_t> rotary_dim) {
  Mrope mrope{.layout = Mrope::Layout::kHwInterleaved};
  if (section.size() == 3) {
    mrope.section = {section[2], section[0], section[1]};
    return mrope;
  }
  ROPE_ASSIGN_OR_RETURN(const std::optional<int64_t> time, parameters.Integer("freq_allocation"));
  if (!section.empty() || !time.has_value() || !rotary_dim.has_value()) {
    return InvalidField(parameters.PathOf("freq_allocation"),
                        time.has_value() ? StrCat(*time, " without a head_dim") : "nothing",
                        "the count of t, or mrope_section with three counts (h, w, t)");
  }
  if (*time < 0 || *time > kHeadDimMax) {
    return InvalidField(parameters.PathOf("freq_allocation"), *time, StrCat("0 to ", kHeadDimMax));
  }
  const int64_t rest = *rotary_dim / 2 - *time;
  mrope.section = {*time, rest / 2, rest - rest / 2};
  return mrope;
}

// The counts that the model's code uses without mrope_section, fitted to `columns` frequencies.
std::optional<Mrope> UsualMrope(const ModelType& type, std::optional<int64_t> rotary_dim) {
  if (!type.mrope_section.has_value() || !rotary_dim.has_value()) return std::nullopt;
  Mrope mrope{.section = *type.mrope_section, .layout = *type.mrope_layout};
  const int64_t columns = *rotary_dim / 2;
  if (mrope.layout == Mrope::Layout::kInterleaved) {
    // Counts past the end of the head have no effect.
    mrope.section[1] = std::min(mrope.section[1], (columns + 1) / 3);
    mrope.section[2] = std::min(mrope.section[2], columns / 3);
    mrope.section[0] = columns - mrope.section[1] - mrope.section[2];
  }
  if (mrope.section[0] + mrope.section[1] + mrope.section[2] != columns) return std::nullopt;
  return mrope;
}

absl::StatusOr<std::optional<Mrope>> ReadMrope(const ConfigDocument& document,
                                               const JsonFields& parameters,
                                               std::optional<int64_t> rotary_dim) {
  const ModelType& type = *document.type;
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> section, parameters.Integers("mrope_section"));
  if (parameters.Has("mrope_section") && !type.mrope_unsupported.empty()) {
    return InvalidField(parameters.PathOf("mrope_section"), StrCat(section.size(), " numbers"),
                        StrCat("no mrope_section: ", type.mrope_unsupported));
  }
  const bool has_counts = parameters.Has("mrope_section") || parameters.Has("freq_allocation");
  if (IsType(parameters, "ernie_3d") ||
      (has_counts && type.mrope_layout == Mrope::Layout::kHwInterleaved)) {
    ROPE_ASSIGN_OR_RETURN(const Mrope mrope, ReadErnieMrope(parameters, section, rotary_dim));
    return std::optional<Mrope>(mrope);
  }
  if (!parameters.Has("mrope_section") && !IsType(parameters, "mrope")) {
    return UsualMrope(type, rotary_dim);
  }
  if (section.size() != 3) {
    return InvalidField(
        parameters.PathOf("mrope_section"),
        parameters.Has("mrope_section") ? StrCat(section.size(), " numbers") : "nothing",
        "three counts of frequencies (t, h, w)");
  }
  Mrope mrope{.layout = type.mrope_layout.value_or(Mrope::Layout::kSections)};
  std::copy(section.begin(), section.end(), mrope.section.begin());
  ROPE_ASSIGN_OR_RETURN(const std::optional<bool> interleaved,
                        parameters.Bool("mrope_interleaved"));
  if (interleaved.value_or(false)) mrope.layout = Mrope::Layout::kInterleaved;
  return std::optional<Mrope>(mrope);
}

double Power(double theta, int64_t numerator, int64_t denominator) {
  return static_cast<double>(
      std::pow(static_cast<long double>(theta),
               -static_cast<long double>(numerator) / static_cast<long double>(denominator)));
}

// One frequency of an axial grid.
void Append(int8_t axis, double inv_freq, RopeConfig& config) {
  config.mrope->axes.push_back(axis);
  config.inv_freq.push_back(inv_freq);
}

// n frequencies theta^(-2i/(2n)) of h and of w, as `grid` orders them.
void OrderAxes(AxialGrid grid, int64_t n, RopeConfig& config) {
  const auto own = [&](int64_t i) { return Power(config.rope_theta, 2 * i, 2 * n); };
  if (grid == AxialGrid::kWHAlternating) {
    for (int64_t i = 0; i < n; ++i) {
      Append(kW, own(i), config);
      Append(kH, own(i), config);
    }
    return;
  }
  for (const int8_t axis : {kW, kH}) {
    for (int64_t i = 0; i < n; ++i) Append(axis, own(i), config);
  }
}

// h has the even of the head's frequencies, w the odd ones.
void SplitFrequencies(int64_t n, RopeConfig& config) {
  for (const int8_t axis : {kH, kW}) {
    for (int64_t i = 0; i < n; ++i) {
      Append(axis, Power(config.rope_theta, 2 * (2 * i + axis - kH), 4 * n), config);
    }
  }
}

absl::Status ReadGrid(AxialGrid grid, RopeConfig& config) {
  if (!config.head_dim.has_value()) {
    return InvalidField("head_dim", "nothing", "the channels of an axial head");
  }
  const int64_t head_dim = *config.head_dim;
  if (grid == AxialGrid::kTHW) {
    const int64_t n = head_dim / 6;
    config.rotary_dim = 6 * n;
    config.mrope = Mrope{.section = {n, n, n}, .layout = Mrope::Layout::kAxial};
    return absl::OkStatus();
  }
  if (head_dim % 4 != 0 || head_dim > kHeadDimMax) {
    return InvalidField("head_dim", head_dim, "a multiple of 4 for an axial grid");
  }
  const int64_t n = head_dim / 4;
  config.mrope.emplace();
  if (grid == AxialGrid::kHW) {
    *config.mrope = {.section = {0, n, n}, .layout = Mrope::Layout::kAxial};
  } else if (grid == AxialGrid::kHWFrequencies) {
    SplitFrequencies(n, config);
  } else {
    OrderAxes(grid, n, config);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadAxes(const ConfigDocument& document, const JsonFields& parameters,
                      RopeConfig& config) {
  const std::optional<int64_t> rotary_dim = RotaryDim(config, config.head_dim);
  if (document.type->axial == AxialGrid::kHWAlternating) {
    config.mrope.emplace();
    for (int64_t i = 0; i < rotary_dim.value_or(0) / 2; ++i) {
      config.mrope->axes.push_back(i % 2 == 0 ? kH : kW);
    }
    return absl::OkStatus();
  }
  // The code of a vision tower has its grid whatever the file says; published files say nothing.
  const bool of_code = document.type->axial.has_value() && config.rope_type == RopeType::kDefault &&
                       !parameters.Has("mrope_section");
  if (of_code || IsType(parameters, kAxialType)) {
    return ReadGrid(document.type->axial.value_or(AxialGrid::kHW), config);
  }
  ROPE_ASSIGN_OR_RETURN(config.mrope, ReadMrope(document, parameters, rotary_dim));
  return absl::OkStatus();
}

}  // namespace rope::kernels
