#include "kernels/config/json_fields.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>

#include "absl/status/status.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

using Json = nlohmann::json;

absl::StatusOr<double> ToNumber(const Json& value, const std::string& path) {
  if (!value.is_number()) return InvalidField(path, Show(value), "a number");
  return value.get<double>();
}

absl::StatusOr<int64_t> ToInteger(const Json& value, const std::string& path) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    // 2^63 itself does not fit into an int64_t.
    if (number == std::floor(number) && std::abs(number) < 9223372036854775808.0) {
      return static_cast<int64_t>(number);
    }
  } else if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return static_cast<int64_t>(number);
    }
  } else if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  return InvalidField(path, Show(value), "a whole number");
}

absl::StatusOr<std::string> ToString(const Json& value, const std::string& path) {
  if (!value.is_string()) return InvalidField(path, Show(value), "a string");
  return value.get<std::string>();
}

absl::StatusOr<bool> ToBool(const Json& value, const std::string& path) {
  if (!value.is_boolean()) return InvalidField(path, Show(value), "true or false");
  return value.get<bool>();
}

absl::StatusOr<JsonFields> ToObject(const Json& value, const std::string& path) {
  if (!value.is_object()) return InvalidField(path, Show(value), "an object");
  return JsonFields(value, path);
}

template <typename T>
using Converter = absl::StatusOr<T> (*)(const Json& value, const std::string& path);

// The value at `key`; unset if it is absent.
template <typename T>
Field<T> ReadOne(const JsonFields& fields, std::string_view key, Converter<T> convert) {
  const Json* const value = fields.Find(key);
  if (value == nullptr) return std::optional<T>();
  return convert(*value, fields.PathOf(key));
}

// Applies `convert` to every element of the list at `key`.
template <typename T>
absl::StatusOr<std::vector<T>> ReadList(const JsonFields& fields, std::string_view key,
                                        Converter<T> convert, std::string_view want) {
  std::vector<T> list;
  const Json* value = fields.Find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) return InvalidField(fields.PathOf(key), Show(*value), want);
  if (value->size() > JsonFields::kListMax) {
    return InvalidField(fields.PathOf(key), StrCat(value->size(), " elements"),
                        StrCat("at most ", JsonFields::kListMax));
  }
  list.reserve(value->size());
  for (const Json& element : *value) {
    ROPE_ASSIGN_OR_RETURN(T converted,
                          convert(element, StrCat(fields.PathOf(key), "[", list.size(), "]")));
    list.push_back(std::move(converted));
  }
  return list;
}

// What is wrong at `position`, the number of bytes that the parser had read when it stopped.
std::string SyntaxErrorAt(std::string_view text, size_t position) {
  constexpr std::string_view kSpace = " \t\r\n";
  if (text.find_first_not_of(kSpace) == std::string_view::npos) return "an empty text";
  const size_t at = std::min(std::max(position, size_t{1}) - 1, text.size() - 1);
  const std::string line = StrCat(
      "line ", 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  const char found = text[at];
  const size_t before = at == 0 ? at : text.find_last_not_of(kSpace, at - 1);
  if ((found == '}' || found == ']') && before != std::string_view::npos && text[before] == ',') {
    return StrCat("a trailing comma before ", std::string(1, found), " in ", line);
  }
  if (found == '/' || found == '#') return StrCat("a comment in ", line);
  return StrCat("a syntax error at byte ", position, " in ", line);
}

// Reads a text without storing it, and finds duplicate keys. The parser itself silently keeps one
// of them. A parse callback would find them too, but with a callback the parser looks at all
// earlier values of a list at the end of each object in it: minutes for a MiB of objects.
class TextChecker : public nlohmann::detail::json_sax_acceptor<Json> {
 public:
  // OK if the text is JSON without duplicate keys.
  absl::Status Check(const std::string& text) {
    text_ = &text;
    Json::sax_parse(text, this);
    if (!status_.ok() || !duplicate_.has_value()) return status_;
    return InvalidField("config_json", StrCat("key ", Show(Json(*duplicate_)), " twice"),
                        "it once");
  }

  bool start_object(size_t /*elements*/) {
    keys_.emplace_back();
    return true;
  }
  bool end_object() {
    keys_.pop_back();
    return true;
  }
  bool key(std::string& key) {
    const auto [place, added] = keys_.back().insert(key);
    if (!added && !duplicate_.has_value()) duplicate_ = *place;
    return true;
  }
  bool parse_error(size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) {
    constexpr int kOutOfRange = 406;
    status_ = error.id == kOutOfRange
                  ? InvalidField("config_json", "a number that a double cannot hold",
                                 "JSON with finite numbers")
                  : InvalidField("config_json", SyntaxErrorAt(*text_, position), "JSON");
    return false;
  }

 private:
  const std::string* text_ = nullptr;
  absl::Status status_;
  std::vector<std::set<std::string>> keys_;  // the keys of each open object
  std::optional<std::string> duplicate_;
};

// The word that Python writes for a number that is not finite, if `text` begins with one.
std::string_view NonFiniteAt(std::string_view text) {
  for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
    if (text.starts_with(word)) return word;
  }
  return "";
}

// Python writes Infinity, -Infinity and NaN, which JSON does not have. Each becomes a string, so
// that only a reader of that key refuses it.
std::string WithQuotedNonFinites(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      quoted += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      if (const std::string_view word = NonFiniteAt(text.substr(i)); !word.empty()) {
        quoted += StrCat("\"", word, "\"");
        i += word.size() - 1;
        continue;
      }
    }
    quoted += text[i];
  }
  return quoted;
}

}  // namespace

std::string Show(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return StrCat("a list of ", value.size());
  constexpr size_t kShown = 48;
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kShown ? text : StrCat(text.substr(0, kShown), "...");
}

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  const std::string standard = WithQuotedNonFinites(text);
  ROPE_RETURN_IF_ERROR(TextChecker().Check(standard));
  Json document = Json::parse(standard, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return InvalidField("config_json", Show(document), "a JSON object");
  return document;
}

std::string JsonFields::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : StrCat(path_, ".", key);
}

const Json* JsonFields::Find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

Field<double> JsonFields::Number(std::string_view key) const {
  return ReadOne<double>(*this, key, &ToNumber);
}

Field<int64_t> JsonFields::Integer(std::string_view key) const {
  return ReadOne<int64_t>(*this, key, &ToInteger);
}

Field<bool> JsonFields::Bool(std::string_view key) const {
  return ReadOne<bool>(*this, key, &ToBool);
}

Field<std::string> JsonFields::String(std::string_view key) const {
  return ReadOne<std::string>(*this, key, &ToString);
}

Field<JsonFields> JsonFields::Object(std::string_view key) const {
  return ReadOne<JsonFields>(*this, key, &ToObject);
}

absl::StatusOr<std::vector<double>> JsonFields::Numbers(std::string_view key) const {
  return ReadList<double>(*this, key, &ToNumber, "a list of numbers");
}

absl::StatusOr<std::vector<int64_t>> JsonFields::Integers(std::string_view key) const {
  return ReadList<int64_t>(*this, key, &ToInteger, "a list of whole numbers");
}

absl::StatusOr<std::vector<std::string>> JsonFields::Strings(std::string_view key) const {
  return ReadList<std::string>(*this, key, &ToString, "a list of strings");
}

}  // namespace rope::kernels
