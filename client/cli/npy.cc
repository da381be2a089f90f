#include "client/cli/npy.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
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

// A .npy header is a Python literal with a string, a boolean and a tuple of integers. It is read as
// JSON, with brackets in place of parentheses and without a comma at the end of a list.
// Null: it is none.
Json ParseHeader(absl::string_view text) {
  const std::string as_json = absl::StrReplaceAll(text, {{"'", "\""},
                                                         {"True", "true"},
                                                         {"False", "false"},
                                                         {"(", "["},
                                                         {")", "]"},
                                                         {",)", "]"},
                                                         {", )", "]"},
                                                         {",}", "}"},
                                                         {", }", "}"}});
  const Json json = Json::parse(as_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.size() != 3) return nullptr;
  const Json shape = json.value("shape", Json());
  const auto is_length = [](const Json& length) {
    return length.is_number_unsigned() && length.get<uint64_t>() <= INT64_MAX;
  };
  const bool is_header = json.value("descr", Json()).is_string() &&
                         json.value("fortran_order", Json()).is_boolean() && shape.is_array() &&
                         shape.size() <= kAxesMax &&
                         std::all_of(shape.begin(), shape.end(), is_length);
  return is_header ? json : nullptr;
}

// Bytes per element: the digits at the end of the type.
int64_t ItemBytes(absl::string_view descr) {
  int64_t bytes = 0;
  if (descr.size() < 3 || !absl::SimpleAtoi(descr.substr(2), &bytes) || bytes < 1) return 0;
  return bytes;
}

// In the order of DType.
constexpr absl::string_view kDescrs[] = {"<f4", "<f2", "<u2", "<f8", "|u1", "|u1"};

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
  const Json header = ParseHeader(bytes.substr(0, header_bytes));
  if (header.is_null()) return Bad("header: got other text, want descr, fortran_order and shape");
  bytes.remove_prefix(header_bytes);
  if (header.at("fortran_order") == true) return Bad("fortran_order: got True, want False");
  NpyArray array{header.at("descr"), header.at("shape"), bytes};
  int64_t want = ItemBytes(array.descr);
  if (want == 0 || array.descr[0] == '>') {
    return Bad(absl::StrCat("descr: got ", array.descr, ", want a little-endian number"));
  }
  for (const int64_t length : array.shape) {
    if (__builtin_mul_overflow(want, length, &want)) return Bad("shape: got more than 2^63 bytes");
  }
  if (want != static_cast<int64_t>(bytes.size())) {
    return Bad(absl::StrCat("data: got ", bytes.size(), " bytes, want ", want));
  }
  return array;
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
  return WriteFile(path, NpyHeader(kDescrs[static_cast<size_t>(dtype)], shape), data);
}

}  // namespace rope::client
