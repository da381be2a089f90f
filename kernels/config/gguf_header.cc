#include "kernels/config/gguf_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/config/gguf_cursor.h"
#include "kernels/config/rope_config.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kKeysMax = 65536;
constexpr uint64_t kTensorsMax = 1 << 20;
constexpr uint64_t kGgufNameBytesMax = 65535;  // the format's limit for keys
constexpr uint64_t kTextBytesMax = 256;
constexpr uint64_t kListMax = 65536;
constexpr uint64_t kStoredBytesMax = 1 << 20;
constexpr uint64_t kDimensionsMax = 4;
constexpr uint64_t kUsualAlignment = 32;
constexpr uint32_t kFloat32Tensor = 0;

// Types of values, in the file's numbers.
enum Type : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kTypes
};

// Bytes of a value; 0 for strings and arrays.
constexpr uint64_t kBytes[kTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Keys that are read. In a file, the architecture's name precedes each of kModelKeys.
constexpr std::string_view kGeneralKeys[] = {"general.alignment", "general.architecture",
                                             "split.count", "split.no"};
constexpr std::string_view kModelKeys[] = {
    ".attention.head_count",
    ".attention.head_count_kv",
    ".attention.key_length",
    ".attention.key_length_mla",
    ".attention.key_length_swa",
    ".attention.kv_lora_rank",
    ".attention.recurrent_layers",
    ".attention.rope_pattern",
    ".attention.sliding_window",
    ".attention.sliding_window_pattern",
    ".block_count",
    ".context_length",
    ".embedding_length",
    ".full_attention_interval",
    ".nextn_predict_layers",
    ".rope.dimension_count",
    ".rope.dimension_count_swa",
    ".rope.dimension_sections",
    ".rope.freq_base",
    ".rope.freq_base_swa",
    ".rope.scale_linear",
    ".rope.scaling.alpha",
    ".rope.scaling.attn_factor",
    ".rope.scaling.factor",
    ".rope.scaling.finetuned",
    ".rope.scaling.original_context_length",
    ".rope.scaling.type",
    ".rope.scaling.yarn_attn_factor",
    ".rope.scaling.yarn_beta_fast",
    ".rope.scaling.yarn_beta_slow",
    ".rope.scaling.yarn_ext_factor",
    ".rope.scaling.yarn_log_multiplier",
};
constexpr std::string_view kTensors[] = {kRopeFreqs, kRopeFactorsLong, kRopeFactorsShort};

bool IsRead(std::string_view key) {
  return std::find(std::begin(kGeneralKeys), std::end(kGeneralKeys), key) !=
             std::end(kGeneralKeys) ||
         std::any_of(std::begin(kModelKeys), std::end(kModelKeys),
                     [&](std::string_view model) { return key.ends_with(model); });
}

// The double with the shortest decimal form that gives `number`.
double FromShortestDecimal(float number) {
  std::array<char, 32> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), number);
  double result = number;  // stays for inf and nan
  std::from_chars(text.data(), written.ptr, result);
  return result;
}

template <typename T>
absl::Status ReadInteger(GgufCursor& cursor, GgufValue& value) {
  ROPE_ASSIGN_OR_RETURN(const T number, cursor.Read<T>());
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  value.integers.push_back(std::cmp_greater(number, kMost) ? kMost : static_cast<int64_t>(number));
  return absl::OkStatus();
}

absl::Status ReadFloat(GgufCursor& cursor, GgufValue& value) {
  ROPE_ASSIGN_OR_RETURN(const float number, cursor.Read<float>());
  value.numbers.push_back(FromShortestDecimal(number));
  return absl::OkStatus();
}

absl::Status ReadElement(GgufCursor& cursor, uint32_t type, GgufValue& value) {
  switch (type) {
    case kUint8:
    case kBool:
      return ReadInteger<uint8_t>(cursor, value);
    case kInt8:
      return ReadInteger<int8_t>(cursor, value);
    case kUint16:
      return ReadInteger<uint16_t>(cursor, value);
    case kInt16:
      return ReadInteger<int16_t>(cursor, value);
    case kUint32:
      return ReadInteger<uint32_t>(cursor, value);
    case kInt32:
      return ReadInteger<int32_t>(cursor, value);
    case kUint64:
      return ReadInteger<uint64_t>(cursor, value);
    case kInt64:
      return ReadInteger<int64_t>(cursor, value);
    case kFloat32:
      return ReadFloat(cursor, value);
    default: {
      ROPE_ASSIGN_OR_RETURN(const double number, cursor.Read<double>());
      value.numbers.push_back(number);
      return absl::OkStatus();
    }
  }
}

GgufValue::Kind KindOf(uint32_t type) {
  if (type == kString) return GgufValue::Kind::kString;
  if (type == kBool) return GgufValue::Kind::kBool;
  return type == kFloat32 || type == kFloat64 ? GgufValue::Kind::kNumber
                                              : GgufValue::Kind::kInteger;
}

struct TensorPlace {
  std::string name;
  uint64_t count = 0;   // float32 numbers
  uint64_t offset = 0;  // from the start of the data
};

class HeaderReader {
 public:
  explicit HeaderReader(const ByteSource& source) : source_(source), cursor_(source) {}

  absl::StatusOr<GgufHeader> Read();

 private:
  absl::Status ReadVersion();
  absl::Status ReadPair();
  absl::Status SkipValue(uint32_t type);
  absl::StatusOr<GgufValue> ReadValue(uint32_t type, const std::string& key);
  absl::Status ReadTensorInfo();
  absl::Status ReadTensor(const TensorPlace& place);
  absl::StatusOr<uint32_t> ReadType();
  // Counts bytes that stay in memory.
  absl::Status Store(uint64_t bytes);
  // Sets data_start_ to the first aligned byte after the tensor infos.
  absl::Status FindData();

  const ByteSource& source_;
  GgufCursor cursor_;
  GgufHeader header_;
  std::vector<TensorPlace> places_;
  uint64_t stored_ = 0;
  uint64_t alignment_ = kUsualAlignment;
  uint64_t data_start_ = 0;
};

absl::Status HeaderReader::ReadVersion() {
  cursor_.Enter("the magic");
  std::array<char, kGgufMagic.size()> magic;
  ROPE_RETURN_IF_ERROR(cursor_.Copy(absl::MakeSpan(magic)));
  const std::string_view got(magic.data(), magic.size());
  if (got != kGgufMagic) return cursor_.Invalid(ShowText(got), ShowText(kGgufMagic));
  cursor_.Enter("the version");
  ROPE_ASSIGN_OR_RETURN(const uint32_t version, cursor_.Read<uint32_t>());
  if (version != 0 && version % 65536 == 0) {
    return cursor_.Invalid("the bytes of a big-endian file", "a little-endian file");
  }
  if (version != 2 && version != 3) return cursor_.Invalid(StrCat(version), "2 or 3");
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> HeaderReader::ReadType() {
  ROPE_ASSIGN_OR_RETURN(const uint32_t type, cursor_.Read<uint32_t>());
  if (type < kTypes) return type;
  return cursor_.Invalid(StrCat("value type ", type), StrCat("0 to ", kTypes - 1));
}

absl::Status HeaderReader::Store(uint64_t bytes) {
  stored_ += bytes;
  if (stored_ <= kStoredBytesMax) return absl::OkStatus();
  return cursor_.Invalid("more values to keep", StrCat("at most ", kStoredBytesMax, " bytes"));
}

absl::Status HeaderReader::SkipValue(uint32_t type) {
  if (type == kString) return cursor_.SkipString();
  if (type != kArray) return cursor_.Skip(kBytes[type]);
  ROPE_ASSIGN_OR_RETURN(const uint32_t element, ReadType());
  ROPE_ASSIGN_OR_RETURN(const uint64_t count, cursor_.Read<uint64_t>());
  if (element == kArray) return cursor_.Invalid("an array of arrays", "an array of values");
  if (element == kString) {  // each takes 8 bytes at least, so the file's size bounds the loop
    for (uint64_t i = 0; i < count; ++i) ROPE_RETURN_IF_ERROR(cursor_.SkipString());
    return absl::OkStatus();
  }
  if (count > source_.size() / kBytes[element]) {
    return cursor_.Invalid(StrCat("an array of ", count),
                           StrCat("one that fits into ", source_.size(), " bytes"));
  }
  return cursor_.Skip(count * kBytes[element]);
}

absl::StatusOr<GgufValue> HeaderReader::ReadValue(uint32_t type, const std::string& key) {
  GgufValue value;
  uint64_t count = 1;
  if (type == kArray) {
    value.list = true;
    ROPE_ASSIGN_OR_RETURN(type, ReadType());
    ROPE_ASSIGN_OR_RETURN(count, cursor_.Read<uint64_t>());
    if (type == kString || type == kArray || count > kListMax) {
      return InvalidField(key, StrCat("a list of ", count, " values"),
                          StrCat("at most ", kListMax, " numbers"));
    }
  }
  value.kind = KindOf(type);
  ROPE_RETURN_IF_ERROR(Store(sizeof(GgufValue) + count * sizeof(int64_t)));
  if (type == kString) {
    ROPE_ASSIGN_OR_RETURN(value.text, cursor_.String(kTextBytesMax));
    return value;
  }
  for (uint64_t i = 0; i < count; ++i) ROPE_RETURN_IF_ERROR(ReadElement(cursor_, type, value));
  return value;
}

absl::Status HeaderReader::ReadPair() {
  ROPE_ASSIGN_OR_RETURN(std::string key, cursor_.String(kGgufNameBytesMax));
  ROPE_ASSIGN_OR_RETURN(const uint32_t type, ReadType());
  if (!IsRead(key)) return SkipValue(type);
  if (key.size() > kTextBytesMax) {
    return cursor_.Invalid(StrCat("a key of ", key.size(), " bytes"), "a model's key");
  }
  if (header_.values.contains(key)) {
    return InvalidField(ShowText(key), "it twice", "it once");
  }
  ROPE_RETURN_IF_ERROR(Store(key.size()));
  ROPE_ASSIGN_OR_RETURN(GgufValue value, ReadValue(type, ShowText(key)));
  header_.values.emplace(std::move(key), std::move(value));
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadTensorInfo() {
  TensorPlace place;
  ROPE_ASSIGN_OR_RETURN(place.name, cursor_.String(kGgufNameBytesMax));
  ROPE_ASSIGN_OR_RETURN(const uint32_t dimensions, cursor_.Read<uint32_t>());
  if (dimensions > kDimensionsMax) {
    return cursor_.Invalid(StrCat(dimensions, " dimensions"), StrCat("at most ", kDimensionsMax));
  }
  std::array<uint64_t, kDimensionsMax> extents = {1, 1, 1, 1};
  for (uint32_t i = 0; i < dimensions; ++i) {
    ROPE_ASSIGN_OR_RETURN(extents[i], cursor_.Read<uint64_t>());
  }
  ROPE_ASSIGN_OR_RETURN(const uint32_t type, cursor_.Read<uint32_t>());
  ROPE_ASSIGN_OR_RETURN(place.offset, cursor_.Read<uint64_t>());
  if (std::find(std::begin(kTensors), std::end(kTensors), place.name) == std::end(kTensors)) {
    return absl::OkStatus();
  }
  place.count = extents[0];
  const auto same = [&](const TensorPlace& other) { return other.name == place.name; };
  if (std::any_of(places_.begin(), places_.end(), same)) {
    return InvalidField(place.name, "it twice", "it once");
  }
  if (type != kFloat32Tensor) {
    return InvalidField(place.name, StrCat("tensor type ", type), "0, float32");
  }
  constexpr uint64_t kMost = kHeadDimMax / 2;
  if (place.count < 1 || place.count > kMost || extents[1] != 1 || extents[2] != 1 ||
      extents[3] != 1) {
    return InvalidField(
        place.name,
        StrCat("shape [", extents[0], ", ", extents[1], ", ", extents[2], ", ", extents[3], "]"),
        StrCat("one dimension of 1 to ", kMost));
  }
  places_.push_back(std::move(place));
  return absl::OkStatus();
}

absl::Status HeaderReader::FindData() {
  if (const auto found = header_.values.find("general.alignment"); found != header_.values.end()) {
    const GgufValue& value = found->second;
    const bool integer = value.kind == GgufValue::Kind::kInteger && !value.list;
    alignment_ = integer ? static_cast<uint64_t>(value.integers.front()) : 0;
    if (!std::has_single_bit(alignment_) || alignment_ > kStoredBytesMax) {
      return InvalidField("general.alignment", integer ? StrCat(alignment_) : "another type",
                          StrCat("a power of two, at most ", kStoredBytesMax));
    }
  }
  data_start_ = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadTensor(const TensorPlace& place) {
  if (place.offset % alignment_ != 0) {
    return InvalidField(place.name, StrCat("offset ", place.offset),
                        StrCat("a multiple of ", alignment_));
  }
  const uint64_t bytes = place.count * sizeof(float);
  if (data_start_ > source_.size() || place.offset > source_.size() - data_start_ ||
      bytes > source_.size() - data_start_ - place.offset) {
    return InvalidField(
        "gguf", StrCat(source_.size(), " bytes"),
        StrCat(place.name, ": ", bytes, " bytes at byte ", data_start_, " + ", place.offset));
  }
  std::vector<float> numbers(place.count);
  const auto memory = absl::MakeSpan(reinterpret_cast<char*>(numbers.data()), bytes);
  ROPE_RETURN_IF_ERROR(source_.Read(data_start_ + place.offset, memory));
  header_.tensors.emplace(place.name, std::vector<double>(numbers.begin(), numbers.end()));
  return absl::OkStatus();
}

absl::StatusOr<GgufHeader> HeaderReader::Read() {
  ROPE_RETURN_IF_ERROR(ReadVersion());
  cursor_.Enter("the count of tensors");
  ROPE_ASSIGN_OR_RETURN(const uint64_t tensors, cursor_.Read<uint64_t>());
  if (tensors > kTensorsMax)
    return cursor_.Invalid(StrCat(tensors), StrCat("at most ", kTensorsMax));
  cursor_.Enter("the count of metadata keys");
  ROPE_ASSIGN_OR_RETURN(const uint64_t keys, cursor_.Read<uint64_t>());
  if (keys > kKeysMax) return cursor_.Invalid(StrCat(keys), StrCat("at most ", kKeysMax));
  for (uint64_t i = 0; i < keys; ++i) {
    cursor_.Enter("metadata key", i, keys);
    ROPE_RETURN_IF_ERROR(ReadPair());
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    cursor_.Enter("tensor info", i, tensors);
    ROPE_RETURN_IF_ERROR(ReadTensorInfo());
  }
  ROPE_RETURN_IF_ERROR(FindData());
  for (const TensorPlace& place : places_) ROPE_RETURN_IF_ERROR(ReadTensor(place));
  return std::move(header_);
}

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(const ByteSource& source) {
  return HeaderReader(source).Read();
}

std::string ShowText(std::string_view text) {
  constexpr size_t kShown = 48;
  std::string shown(text.substr(0, kShown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return StrCat("\"", shown, text.size() > kShown ? "...\"" : "\"");
}

}  // namespace rope::kernels
