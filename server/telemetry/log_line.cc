#include "server/telemetry/log_line.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "server/clock.h"
#include "server/telemetry/log_limiter.h"

namespace rope::server {
namespace {

// The first character of a text.
struct Character {
  size_t bytes = 1;
  uint32_t point = 0;  // code point
  bool valid = false;  // valid UTF-8, in its shortest form
};

Character FirstOf(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, lead, true};
  // The smallest code point that needs this number of bytes; a smaller one is an overlong form.
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC0 || lead >= 0xF8 || text.size() < bytes) return {};
  uint32_t point = lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80) return {};
    point = point << 6U | (next & 0x3FU);
  }
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  if (point < kSmallest[bytes] || point > 0x10FFFF || surrogate) return {};
  return {bytes, point, true};
}

// Whether a terminal shows the character as it is. Control characters, line and paragraph
// separators, direction marks and zero-width characters are not visible.
bool IsVisible(uint32_t point) {
  struct Range {
    uint32_t first;
    uint32_t last;
  };
  constexpr Range kHidden[] = {{0x00, 0x1F},     {0x7F, 0x9F},      {0xAD, 0xAD},
                               {0x061C, 0x061C}, {0x180E, 0x180E},  {0x200B, 0x200F},
                               {0x2028, 0x202E}, {0x2060, 0x206F},  {0xFEFF, 0xFEFF},
                               {0xFFF9, 0xFFFB}, {0xE0000, 0xE0FFF}};
  return std::ranges::none_of(
      kHidden, [point](const Range& range) { return point >= range.first && point <= range.last; });
}

void AppendEscaped(absl::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    if (c == '\n') {
      out += "\\n";
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
}

}  // namespace

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const absl::string_view bytes = text.substr(0, first.bytes);
    text.remove_prefix(first.bytes);
    if (bytes == "\"" || bytes == "\\") {
      absl::StrAppend(&out, "\\", bytes);
    } else if (first.valid && IsVisible(first.point)) {
      absl::StrAppend(&out, bytes);
    } else {
      AppendEscaped(bytes, out);
    }
  }
  out.push_back('"');
  return out;
}

std::string LeftOut(int64_t lines) {
  return lines == 0 ? "" : absl::StrCat(" left_out=", lines);
}

std::optional<int64_t> AdmitLine(LogKind kind) {
  static const SteadyClock clock;
  static auto* const limiter = new LogLimiter(clock, kLogKindCount);  // owned by the process
  return limiter->Admit(static_cast<size_t>(kind));
}

}  // namespace rope::server
