#include "client/cli/npy.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/arguments.h"

namespace rope::client {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr size_t kHeaderBytesMax = 64 << 10;
constexpr size_t kAxesMax = 32;
constexpr size_t kAlignment = 64;

Status Bad(absl::string_view what) {
  return Status(StatusCode::kInvalidArgument, absl::StrCat("npy ", what));
}

// Reads the Python literal in a .npy header: a dict of strings, booleans and tuples of integers.
class HeaderReader {
 public:
  explicit HeaderReader(absl::string_view text) : text_(text) {}

  bool Consume(absl::string_view token) {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    return absl::ConsumePrefix(&text_, token);
  }
  bool AtEnd() const { return absl::StripAsciiWhitespace(text_).empty(); }

  std::optional<std::string> ReadString() {
    const char quote = Consume("'") ? '\'' : Consume("\"") ? '"' : '\0';
    const size_t end = quote == '\0' ? absl::string_view::npos : text_.find(quote);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string value(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return value;
  }

  std::optional<std::vector<int64_t>> ReadShape() {
    if (!Consume("(")) return std::nullopt;
    std::vector<int64_t> shape;
    while (!Consume(")")) {
      size_t digits = 0;
      text_ = absl::StripLeadingAsciiWhitespace(text_);
      while (digits < text_.size() && absl::ascii_isdigit(text_[digits])) ++digits;
      int64_t length = 0;
      if (!absl::SimpleAtoi(text_.substr(0, digits), &length)) return std::nullopt;
      text_.remove_prefix(digits);
      shape.push_back(length);
      if (shape.size() > kAxesMax) return std::nullopt;
      if (!Consume(",") && !absl::StartsWith(absl::StripLeadingAsciiWhitespace(text_), ")")) {
        return std::nullopt;
      }
    }
    return shape;
  }

 private:
  absl::string_view text_;
};

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads one entry of the dict; false if it is malformed.
bool ReadEntryInto(HeaderReader& reader, Header& header) {
  const std::optional<std::string> key = reader.ReadString();
  if (!key.has_value() || !reader.Consume(":")) return false;
  if (*key == "descr") {
    header.descr = reader.ReadString();
    return header.descr.has_value();
  }
  if (*key == "fortran_order") {
    header.fortran_order = reader.Consume("True");
    return *header.fortran_order || reader.Consume("False");
  }
  if (*key != "shape") return false;
  header.shape = reader.ReadShape();
  return header.shape.has_value();
}

std::optional<Header> ParseHeader(absl::string_view text) {
  HeaderReader reader(text);
  Header header;
  if (!reader.Consume("{")) return std::nullopt;
  while (!reader.Consume("}")) {
    if (!ReadEntryInto(reader, header)) return std::nullopt;
    reader.Consume(",");
  }
  if (!reader.AtEnd() || !header.descr || !header.fortran_order || !header.shape) {
    return std::nullopt;
  }
  return header;
}

// Bytes per element: the digits at the end of the type.
int64_t ItemBytes(absl::string_view descr) {
  int64_t bytes = 0;
  if (descr.size() < 3 || !absl::SimpleAtoi(descr.substr(2), &bytes) || bytes < 1) return 0;
  return bytes;
}

struct DTypeNames {
  absl::string_view name;
  absl::string_view descr;
};

DTypeNames NamesOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {"fp32", "<f4"};
    case DType::kFloat16:
      return {"fp16", "<f2"};
    case DType::kBFloat16:
      return {"bf16", "<u2"};
    case DType::kFloat64:
      return {"fp64", "<f8"};
    case DType::kFloat8E4M3:
      return {"fp8_e4m3", "|u1"};
    case DType::kFloat8E5M2:
      break;
  }
  return {"fp8_e5m2", "|u1"};
}

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

Result<NpyArray> ParseNpy(absl::string_view bytes) {
  if (!absl::ConsumePrefix(&bytes, kMagic) || bytes.size() < 4) {
    return Bad("file: got another signature, want \\x93NUMPY and a version");
  }
  const int version = static_cast<unsigned char>(bytes[0]);
  if (version < 1 || version > 3) {
    return Bad(absl::StrCat("version: got ", version, ", want 1, 2 or 3"));
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  bytes.remove_prefix(2);
  if (bytes.size() < length_bytes) return Bad("file: got a truncated header, want all of it");
  const size_t header_bytes = LittleEndian(bytes.substr(0, length_bytes));
  bytes.remove_prefix(length_bytes);
  if (header_bytes > kHeaderBytesMax || header_bytes > bytes.size()) {
    return Bad(absl::StrCat("header: got ", header_bytes, " bytes, want at most ",
                            std::min(kHeaderBytesMax, bytes.size())));
  }
  const std::optional<Header> header = ParseHeader(bytes.substr(0, header_bytes));
  if (!header.has_value())
    return Bad("header: got other text, want descr, fortran_order and shape");
  bytes.remove_prefix(header_bytes);
  if (*header->fortran_order) return Bad("fortran_order: got True, want False");
  int64_t want = ItemBytes(*header->descr);
  if (want == 0 || (*header->descr)[0] == '>') {
    return Bad(absl::StrCat("descr: got ", *header->descr, ", want a little-endian number"));
  }
  for (const int64_t length : *header->shape) {
    if (__builtin_mul_overflow(want, length, &want)) return Bad("shape: got more than 2^63 bytes");
  }
  if (want != static_cast<int64_t>(bytes.size())) {
    return Bad(absl::StrCat("data: got ", bytes.size(), " bytes, want ", want));
  }
  return NpyArray{*header->descr, *header->shape, bytes};
}

std::string NpyHeader(absl::string_view descr, const std::vector<int64_t>& shape) {
  std::string text = absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  const size_t prefix = kMagic.size() + 4;  // two bytes for version 1.0, two for the length
  const size_t padding = kAlignment - (prefix + text.size() + 1) % kAlignment;
  text.append(padding % kAlignment, ' ');
  text.push_back('\n');
  std::string header(kMagic);
  header.append(
      {'\x01', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)});
  return header + text;
}

Status WriteNpy(const std::string& path, DType dtype, const std::vector<int64_t>& shape,
                absl::string_view data) {
  return WriteFile(path, NpyHeader(NamesOf(dtype).descr, shape), data);
}

absl::string_view NameOf(DType dtype) {
  return NamesOf(dtype).name;
}

}  // namespace rope::client
