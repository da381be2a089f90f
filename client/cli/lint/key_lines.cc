#include "client/cli/lint/key_lines.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rope::client {
namespace {

constexpr size_t kKeysMax = 4096;
constexpr size_t kDepthMax = 8;
constexpr size_t kKeyBytesMax = 128;

// Counts the lines that the parser has read. Copies share the count.
class LineIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineIterator(const char* at, int64_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  bool operator==(const LineIterator& other) const { return at_ == other.at_; }
  bool operator!=(const LineIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int64_t* line_;
};

}  // namespace

// The events of the parser, which reads no further than the end of a key before it reports it.
class KeyReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  KeyReader(KeyLines& lines, const int64_t& line) : lines_(lines), line_(line) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool string(string_t& value) override {
    if (value.size() > kKeyBytesMax || depth_ == 0 || depth_ > kDepthMax) return true;
    const std::string path = Path();
    if (path == ".text_config.model_type" ||
        (path == ".model_type" && lines_.model_type_.empty())) {
      lines_.model_type_ = value;
    }
    return true;
  }
  bool start_object(size_t /*elements*/) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(size_t /*elements*/) override { return Open(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (depth_ == 0 || depth_ > kDepthMax) return true;
    levels_[depth_ - 1] = name.size() > kKeyBytesMax ? std::string() : name;
    if (lines_.keys_.size() < kKeysMax && name.size() <= kKeyBytesMax) {
      lines_.keys_.push_back({Path(), line_});
    }
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    lines_.error_line_ = line_;
    return false;
  }

 private:
  bool Open() {
    if (++depth_ <= kDepthMax) levels_[depth_ - 1].clear();  // an array's elements have no key
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }
  // The path of the last key. REQUIRES: 1 <= depth_ <= kDepthMax.
  std::string Path() const {
    std::string path;
    for (size_t level = 0; level < depth_; ++level) {
      if (!levels_[level].empty()) absl::StrAppend(&path, ".", levels_[level]);
    }
    return path;
  }

  KeyLines& lines_;
  const int64_t& line_;
  size_t depth_ = 0;  // open objects and arrays
  std::string levels_[kDepthMax];
};

KeyLines KeyLines::Of(absl::string_view json) {
  KeyLines lines;
  int64_t line = 1;
  KeyReader reader(lines, line);
  nlohmann::json::sax_parse(LineIterator(json.data(), &line),
                            LineIterator(json.data() + json.size(), &line), &reader);
  return lines;
}

std::optional<int64_t> KeyLines::Find(absl::string_view path, absl::string_view layer_type,
                                      absl::string_view within) const {
  if (path.empty()) return std::nullopt;
  const std::string suffix = absl::StrCat(".", path);
  const std::string layer = absl::StrCat(".", layer_type, ".");
  const std::string around = within.empty() ? "." : absl::StrCat(".", within, ".");
  int best = 0;
  std::optional<int64_t> line;
  for (const Key& key : keys_) {
    if (!absl::EndsWith(key.path, suffix)) continue;
    if (!absl::StartsWith(absl::StrCat(key.path, "."), around)) continue;
    int score = 1;
    if (!layer_type.empty() && absl::StrContains(key.path, layer)) score += 4;
    if (absl::StrContains(key.path, ".rope_parameters.") ||
        absl::StrContains(key.path, ".rope_scaling.")) {
      score += 2;
    }
    if (score <= best) continue;
    best = score;
    line = key.line;
  }
  return line;
}

}  // namespace rope::client
