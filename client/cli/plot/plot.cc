#include "client/cli/plot/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/plot/svg.h"

namespace rope::client {
namespace {

constexpr double kWidth = 960;
constexpr double kTitleHeight = 64;
constexpr double kPanelHeight = 380;
constexpr double kLeft = 96;
constexpr double kRight = 720;  // the legend is to the right of it
constexpr double kPanelTop = 40;
constexpr double kPanelBottom = 320;
constexpr int64_t kLengthUnknown = 8192;
constexpr int kDistances = 400;
constexpr int kTicksMax = 9;

// Colours that colour-blind people can distinguish, and dashes for prints without colour.
constexpr Stroke kOriginal = {"#0072b2", 2, "7 4"};
constexpr Stroke kScaled = {"#d55e00", 2, "2 3"};
constexpr Stroke kResult = {"#000000", 2.5};
constexpr Stroke kEnvelope = {"#cc79a7", 1.5};
constexpr Stroke kLength = {"#009e73", 1.5, "10 3 2 3"};
constexpr Stroke kRamp = {"#e69f00", 1.5, "4 2"};
constexpr Stroke kGrid = {"#dddddd", 0.5};
constexpr Stroke kFrame = {"#444444", 1};

struct Curve {
  absl::string_view id;
  absl::string_view name;  // in the legend
  Stroke stroke;
  std::vector<std::pair<double, double>> points = {};  // values, not pixels
};

struct AxisText {
  absl::string_view x;
  absl::string_view y;
};

// A pair of axes with curves and a legend.
class Panel {
 public:
  Panel(Svg& svg, int index, absl::string_view title, Scale x, Scale y)
      : svg_(svg), top_(kTitleHeight + index * kPanelHeight), x_(x), y_(y) {
    x_.first_pixel = kLeft;
    x_.last_pixel = kRight;
    y_.first_pixel = top_ + kPanelBottom;
    y_.last_pixel = top_ + kPanelTop;
    svg_.Text(kLeft, top_ + kPanelTop - 12, title, 15, Anchor::kStart);
    legend_y_ = top_ + kPanelTop + 12;
  }

  void DrawAxes(const AxisText& text) {
    for (const double tick : Ticks(x_, kTicksMax)) {
      const double pixel = x_.Pixel(tick);
      svg_.Line(pixel, y_.first_pixel, pixel, y_.last_pixel, kGrid);
      svg_.Text(pixel, y_.first_pixel + 16, TickLabel(tick), 11, Anchor::kMiddle);
    }
    for (const double tick : Ticks(y_, kTicksMax)) {
      const double pixel = y_.Pixel(tick);
      svg_.Line(x_.first_pixel, pixel, x_.last_pixel, pixel, kGrid);
      svg_.Text(x_.first_pixel - 6, pixel + 4, TickLabel(tick), 11, Anchor::kEnd);
    }
    svg_.Box(kLeft, y_.last_pixel, kRight - kLeft, y_.first_pixel - y_.last_pixel, kFrame);
    svg_.Text((kLeft + kRight) / 2, y_.first_pixel + 36, text.x, 13, Anchor::kMiddle);
    svg_.TextUp(24, (y_.first_pixel + y_.last_pixel) / 2, text.y, 13);
  }

  void Draw(const Curve& curve) {
    std::vector<std::pair<double, double>> pixels;
    for (const auto& [x, y] : curve.points) {
      if (x_.Holds(x) && y_.Holds(y)) pixels.emplace_back(x_.Pixel(x), y_.Pixel(y));
    }
    svg_.Polyline(curve.id, pixels, curve.stroke);
    AddLegend(curve.name, curve.stroke);
  }

  // A line across the panel, at a value of y or of x.
  void Across(double y, absl::string_view name, const Stroke& stroke) {
    if (!y_.Holds(y)) return;
    svg_.Line(kLeft, y_.Pixel(y), kRight, y_.Pixel(y), stroke);
    AddLegend(name, stroke);
  }
  void Up(double x, absl::string_view name, const Stroke& stroke) {
    if (!x_.Holds(x)) return;
    svg_.Line(x_.Pixel(x), y_.first_pixel, x_.Pixel(x), y_.last_pixel, stroke);
    AddLegend(name, stroke);
  }

 private:
  void AddLegend(absl::string_view name, const Stroke& stroke) {
    svg_.Line(kRight + 14, legend_y_ - 4, kRight + 42, legend_y_ - 4, stroke);
    svg_.Text(kRight + 48, legend_y_, name, 11, Anchor::kStart);
    legend_y_ += 20;
  }

  Svg& svg_;
  const double top_;
  Scale x_;
  Scale y_;
  double legend_y_ = 0;
};

// The frequencies without scaling: theta^(-2i/rotary_dim), or the caller's own.
std::vector<double> OriginalFrequencies(const DescribeReply& reply) {
  if (reply.config.inv_freq.size() == reply.inv_freq.size()) return reply.config.inv_freq;
  const double theta = reply.config.rope_theta;
  const auto count = static_cast<double>(reply.inv_freq.size());
  std::vector<double> frequencies;
  for (size_t i = 0; i < reply.inv_freq.size(); ++i) {
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / count));
  }
  return frequencies;
}

std::vector<double> Divided(std::vector<double> frequencies, double factor) {
  for (double& frequency : frequencies) frequency /= factor;
  return frequencies;
}

std::vector<double> WavelengthsOf(const std::vector<double>& frequencies) {
  std::vector<double> wavelengths;
  for (const double f : frequencies) wavelengths.push_back(2 * std::numbers::pi / f);
  return wavelengths;
}

// A curve over the index, without values that a logarithmic axis cannot show.
std::vector<std::pair<double, double>> Indexed(const std::vector<double>& values) {
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > 0 && std::isfinite(values[i])) {
      points.emplace_back(static_cast<double>(i), values[i]);
    }
  }
  return points;
}

Scale IndexScale(const DescribeReply& reply) {
  return {.min = 0, .max = std::max(1.0, static_cast<double>(reply.inv_freq.size()) - 1)};
}

// A range of whole decades that contains all drawn values.
Scale DecadesAround(const std::vector<Curve>& curves, std::vector<double> others) {
  for (const Curve& curve : curves) {
    for (const auto& [x, y] : curve.points) others.push_back(y);
  }
  const auto [min, max] = std::minmax_element(others.begin(), others.end());
  const double first = std::floor(std::log10(*min) + 1e-9);
  const double last = std::max(first + 1, std::ceil(std::log10(*max) - 1e-9));
  return {.min = std::pow(10.0, first), .max = std::pow(10.0, last), .logarithmic = true};
}

void DrawFrequencies(Svg& svg, const DescribeReply& reply) {
  const std::vector<double> original = OriginalFrequencies(reply);
  std::vector<Curve> curves = {{"inv-freq-original", "original", kOriginal, Indexed(original)}};
  const std::string scaled_name =
      absl::StrFormat("fully scaled (1/%g)", reply.config.factor.value_or(1));
  if (reply.config.factor.value_or(1) != 1) {
    curves.push_back({"inv-freq-scaled", scaled_name, kScaled,
                      Indexed(Divided(original, *reply.config.factor))});
  }
  curves.push_back({"inv-freq-result", "result", kResult, Indexed(reply.inv_freq)});
  Panel panel(svg, 0, "Inverse frequencies", IndexScale(reply), DecadesAround(curves, {}));
  panel.DrawAxes(
      {"frequency index i (of channel pair)", "inverse frequency (radians per position)"});
  if (reply.ramp.has_value()) {
    const std::array<double, 2> edges = {reply.ramp->low_index, reply.ramp->high_index};
    svg.Begin("ramp-indices", {{"indices", absl::StrFormat("%.10g %.10g", edges[0], edges[1])}});
    panel.Up(edges[0], absl::StrFormat("kept up to i = %.4g", edges[0]), kRamp);
    panel.Up(edges[1], absl::StrFormat("scaled from i = %.4g", edges[1]), kRamp);
    svg.End();
  }
  for (const Curve& curve : curves) panel.Draw(curve);
}

void DrawWavelengths(Svg& svg, const DescribeReply& reply, const ContextLengths& lengths) {
  const std::vector<Curve> curves = {
      {"wavelength-original", "original", kOriginal,
       Indexed(WavelengthsOf(OriginalFrequencies(reply)))},
      {"wavelength-result", "result", kResult, Indexed(reply.wavelengths)}};
  std::vector<double> shown(lengths.values.begin(), lengths.values.end());
  if (reply.ramp.has_value()) {
    shown.insert(shown.end(), {reply.ramp->low_wavelength, reply.ramp->high_wavelength});
  }
  Panel panel(svg, 1, "Wavelengths and context length", IndexScale(reply),
              DecadesAround(curves, shown));
  panel.DrawAxes({"frequency index i (of channel pair)", "wavelength, length (positions)"});
  svg.Begin("lengths", {{"lengths", lengths.known ? absl::StrJoin(lengths.values, " ") : ""}});
  for (size_t i = 0; lengths.known && i < lengths.values.size(); ++i) {
    const bool is_original = i + 1 < lengths.values.size();
    panel.Across(static_cast<double>(lengths.values[i]),
                 absl::StrCat(is_original ? "original length " : "length ", lengths.values[i]),
                 kLength);
  }
  svg.End();
  if (reply.ramp.has_value()) {
    const Ramp& ramp = *reply.ramp;
    svg.Begin("ramp-edges", {{"wavelengths", absl::StrFormat("%.10g %.10g", ramp.low_wavelength,
                                                             ramp.high_wavelength)}});
    panel.Across(ramp.low_wavelength, absl::StrFormat("kept up to %.6g", ramp.low_wavelength),
                 kRamp);
    panel.Across(ramp.high_wavelength, absl::StrFormat("scaled from %.6g", ramp.high_wavelength),
                 kRamp);
    svg.End();
  }
  for (const Curve& curve : curves) panel.Draw(curve);
}

void DrawDecay(Svg& svg, const DescribeReply& reply, const ContextLengths& lengths) {
  Curve original = {"decay-original", "original", kOriginal};
  Curve result = {"decay-result", "result", kResult};
  Curve envelope = {"decay-envelope", "envelope of result", kEnvelope};
  const std::vector<double> frequencies = OriginalFrequencies(reply);
  const auto last = static_cast<double>(std::max<int64_t>(lengths.values.back(), 2));
  double before = 0;
  for (int i = 0; i < kDistances; ++i) {
    const double distance = std::round(std::pow(last, static_cast<double>(i) / (kDistances - 1)));
    if (distance == before) continue;
    before = distance;
    const Decay decay = DecayAt(reply.inv_freq, distance);
    original.points.emplace_back(distance, DecayAt(frequencies, distance).product);
    result.points.emplace_back(distance, decay.product);
    envelope.points.emplace_back(distance, decay.envelope);
  }
  Panel panel(svg, 2, "Decay of q.k with distance, q = k = ones",
              {.min = 1, .max = last, .logarithmic = true}, {.min = -1, .max = 1});
  panel.DrawAxes({lengths.known ? "distance of q and k (positions)"
                                : "distance of q and k (positions; the config says no length)",
                  "q.k over q.k at distance 0 (ratio)"});
  for (const Curve& curve : {envelope, original, result}) panel.Draw(curve);
}

std::string TitleOf(const DescribeReply& reply) {
  const RopeConfig& config = reply.config;
  std::string title = absl::StrFormat("%s: theta %.10g, rotary_dim %d", Name(config.rope_type),
                                      config.rope_theta, 2 * reply.inv_freq.size());
  if (config.factor.has_value()) absl::StrAppendFormat(&title, ", factor %g", *config.factor);
  if (config.original_max_position_embeddings.has_value()) {
    absl::StrAppend(&title, ", original length ", *config.original_max_position_embeddings);
  }
  absl::StrAppendFormat(&title, ", attention factor %.6g", reply.attention_factor);
  return title;
}

}  // namespace

ContextLengths LengthsOf(const DescribeReply& reply) {
  const auto original = reply.config.original_max_position_embeddings;
  auto extended = reply.config.max_position_embeddings;
  if (original.has_value() && extended.value_or(0) <= *original) {
    // Clamped, so that a factor of any size gives a valid length.
    extended = static_cast<int64_t>(
        std::min(static_cast<double>(*original) * reply.config.factor.value_or(1), 0x1p40));
  }
  ContextLengths lengths;
  for (const auto length : {original, extended}) {
    if (length.has_value()) lengths.values.push_back(*length);
  }
  if (lengths.values.empty() && reply.seq_len > 1) lengths.values.push_back(reply.seq_len);
  if (lengths.values.empty()) lengths = {{kLengthUnknown}, false};
  std::sort(lengths.values.begin(), lengths.values.end());
  lengths.values.erase(std::unique(lengths.values.begin(), lengths.values.end()),
                       lengths.values.end());
  return lengths;
}

Decay DecayAt(absl::Span<const double> inv_freq, double distance) {
  std::complex<double> sum = 0;
  for (const double frequency : inv_freq) sum += std::polar(1.0, distance * frequency);
  const auto count = static_cast<double>(inv_freq.size());
  return {.product = sum.real() / count, .envelope = std::abs(sum) / count};
}

std::string PlotSvg(const DescribeReply& reply) {
  const ContextLengths lengths = LengthsOf(reply);
  Svg svg(kWidth, kTitleHeight + 3 * kPanelHeight);
  svg.Text(kLeft, 36, TitleOf(reply), 17, Anchor::kStart);
  DrawFrequencies(svg, reply);
  DrawWavelengths(svg, reply, lengths);
  DrawDecay(svg, reply, lengths);
  return svg.Document();
}

}  // namespace rope::client
