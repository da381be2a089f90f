// Writes SVG text; maps values to pixels and chooses the ticks of an axis.
//
// Threading:  Values.
#ifndef ROPE_CLIENT_CLI_PLOT_SVG_H_
#define ROPE_CLIENT_CLI_PLOT_SVG_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rope::client {

// Maps values from `min` to `max` to pixels. REQUIRES: min < max; both > 0 if logarithmic.
struct Scale {
  double min = 0;
  double max = 1;
  bool logarithmic = false;
  double first_pixel = 0;  // pixel of `min`
  double last_pixel = 1;   // pixel of `max`

  double Pixel(double value) const;  // values outside the range map outside the pixels
  bool Holds(double value) const;    // whether `value` is in the range; false for NaN
};

// Round values of the scale, ascending: 1, 2 or 5 times a power of ten; on a logarithmic scale
// powers of ten, of which some are skipped if there are more than `count_max`. REQUIRES:
// count_max >= 2.
std::vector<double> Ticks(const Scale& scale, int count_max);

// The shortest readable form: 0.25, 4096, 131072, 1e-6.
std::string TickLabel(double value);

struct Stroke {
  absl::string_view color;
  double width = 1;
  absl::string_view dashes = "";  // lengths of dashes and gaps; empty: a solid line
};

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  Svg(double width, double height);

  // Opens a group with an id and `data-NAME="value"` attributes; End closes it.
  void Begin(absl::string_view id,
             absl::Span<const std::pair<absl::string_view, std::string>> data = {});
  void End();
  void Line(double x1, double y1, double x2, double y2, const Stroke& stroke);
  void Box(double x, double y, double width, double height, const Stroke& stroke);
  void Polyline(absl::string_view id, absl::Span<const std::pair<double, double>> points,
                const Stroke& stroke);
  void Text(double x, double y, absl::string_view text, double size, Anchor anchor);
  // Text rotated to read upwards, centred on (x, y).
  void TextUp(double x, double y, absl::string_view text, double size);

  // The whole document. REQUIRES: every Begin has an End.
  std::string Document() const;

 private:
  void Add(absl::string_view element);

  std::string head_;
  std::string body_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_PLOT_SVG_H_
