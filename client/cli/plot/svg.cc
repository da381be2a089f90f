#include "client/cli/plot/svg.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace rope::client {
namespace {

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Attributes(const Stroke& stroke) {
  std::string text = absl::StrFormat("fill=\"none\" stroke=\"%s\" stroke-width=\"%g\"",
                                     stroke.color, stroke.width);
  if (!stroke.dashes.empty())
    absl::StrAppendFormat(&text, " stroke-dasharray=\"%s\"", stroke.dashes);
  return text;
}

absl::string_view Name(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "start";
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
  }
  return "start";
}

// The smallest number of the form 1, 2 or 5 times a power of ten that is at least `step`.
double RoundStep(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double mantissa : {1.0, 2.0, 5.0}) {
    if (mantissa * power >= step * (1 - 1e-9)) return mantissa * power;
  }
  return 10 * power;
}

}  // namespace

double Scale::Pixel(double value) const {
  const double share =
      logarithmic ? std::log(value / min) / std::log(max / min) : (value - min) / (max - min);
  return first_pixel + share * (last_pixel - first_pixel);
}

bool Scale::Holds(double value) const {
  const double slack = 1e-9 * (logarithmic ? value : max - min);
  return value >= min - slack && value <= max + slack;
}

std::vector<double> Ticks(const Scale& scale, int count_max) {
  std::vector<double> ticks;
  if (scale.logarithmic) {
    const int first = static_cast<int>(std::ceil(std::log10(scale.min) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log10(scale.max) + 1e-9));
    const int apart = (last - first) / count_max + 1;
    for (int exponent = first; exponent <= last; exponent += apart) {
      ticks.push_back(std::pow(10.0, exponent));
    }
    return ticks;
  }
  const double step = RoundStep((scale.max - scale.min) / (count_max - 1));
  for (double index = std::ceil(scale.min / step - 1e-9); scale.Holds(index * step); ++index) {
    ticks.push_back(index * step + 0.0);  // adding 0.0 turns -0.0 into 0.0
  }
  return ticks;
}

std::string TickLabel(double value) {
  const double size = std::abs(value);
  if (value != 0 && (size < 1e-3 || size >= 1e7)) {
    const double exponent = std::floor(std::log10(size) + 1e-9);
    return absl::StrFormat("%.3ge%d", value / std::pow(10.0, exponent), static_cast<int>(exponent));
  }
  return absl::StrFormat("%.10g", value);
}

Svg::Svg(double width, double height)
    : head_(absl::StrFormat(
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
          "width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\">\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
          width, height, width, height)) {}

void Svg::Add(absl::string_view element) {
  absl::StrAppend(&body_, element, "\n");
}

void Svg::Begin(absl::string_view id,
                absl::Span<const std::pair<absl::string_view, std::string>> data) {
  std::string tag = absl::StrCat("<g id=\"", Escaped(id), "\"");
  for (const auto& [name, value] : data) {
    absl::StrAppend(&tag, " data-", name, "=\"", Escaped(value), "\"");
  }
  Add(absl::StrCat(tag, ">"));
}

void Svg::End() {
  Add("</g>");
}

void Svg::Line(double x1, double y1, double x2, double y2, const Stroke& stroke) {
  Add(absl::StrFormat("<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" %s/>", x1, y1, x2, y2,
                      Attributes(stroke)));
}

void Svg::Box(double x, double y, double width, double height, const Stroke& stroke) {
  Add(absl::StrFormat("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" %s/>", x, y,
                      width, height, Attributes(stroke)));
}

void Svg::Polyline(absl::string_view id, absl::Span<const std::pair<double, double>> points,
                   const Stroke& stroke) {
  std::string text;
  for (const auto& [x, y] : points) absl::StrAppendFormat(&text, "%.2f,%.2f ", x, y);
  if (!text.empty()) text.pop_back();
  Add(absl::StrFormat("<polyline id=\"%s\" points=\"%s\" %s/>", Escaped(id), text,
                      Attributes(stroke)));
}

void Svg::Text(double x, double y, absl::string_view text, double size, Anchor anchor) {
  Add(absl::StrFormat("<text x=\"%.2f\" y=\"%.2f\" font-size=\"%g\" text-anchor=\"%s\">%s</text>",
                      x, y, size, Name(anchor), Escaped(text)));
}

void Svg::TextUp(double x, double y, absl::string_view text, double size) {
  Add(
      absl::StrFormat("<text x=\"%.2f\" y=\"%.2f\" font-size=\"%g\" text-anchor=\"middle\" "
                      "transform=\"rotate(-90 %.2f %.2f)\">%s</text>",
                      x, y, size, x, y, Escaped(text)));
}

std::string Svg::Document() const {
  return absl::StrCat(head_, body_, "</svg>\n");
}

}  // namespace rope::client
