#include "tests/fuzz/wire_messages.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rope/v1/options.pb.h"

namespace rope::testing {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kLength = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
constexpr int kDepthMax = 6;

int WireTypeOf(const FieldDescriptor& field) {
  return WireFormat::WireTypeForFieldType(field.type());
}

template <typename Number>
std::string Bytes(Number value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string Text(const FieldDescriptor& field, const Message& message, int index) {
  const Reflection& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.GetRepeatedString(message, &field, index)
                             : reflection.GetString(message, &field);
}

// The number as its varint holds it.
uint64_t VarintValue(const FieldDescriptor& field, const Message& message, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return static_cast<uint64_t>(int64_t{repeated
                                               ? reflection.GetRepeatedInt32(message, &field, index)
                                               : reflection.GetInt32(message, &field)});
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<uint64_t>(repeated ? reflection.GetRepeatedInt64(message, &field, index)
                                            : reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? reflection.GetRepeatedUInt32(message, &field, index)
                      : reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return repeated ? reflection.GetRepeatedUInt64(message, &field, index)
                      : reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? reflection.GetRepeatedBool(message, &field, index)
                      : reflection.GetBool(message, &field);
    default:
      return static_cast<uint64_t>(
          int64_t{repeated ? reflection.GetRepeatedEnumValue(message, &field, index)
                           : reflection.GetEnumValue(message, &field)});
  }
}

// The path of a message in the decoder's errors.
std::string Dotted(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// ReasonToRefuse for the message at `path`.
std::string Reason(const Descriptor& type, std::string_view bytes, bool skips_unknown_fields,
                   const std::string& path) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  std::map<int, int> seen;
  std::map<const OneofDescriptor*, const FieldDescriptor*> members;
  while (const uint32_t tag = input.ReadTag()) {
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const int wire_type = WireFormatLite::GetTagWireType(tag);
    const FieldDescriptor* field = type.FindFieldByNumber(number);
    const std::string owner = path.empty() ? "request" : path;
    if (field == nullptr) {
      if (!skips_unknown_fields) return absl::StrCat(owner, ": got unknown field number ", number);
      const bool group = wire_type == WireFormatLite::WIRETYPE_START_GROUP;
      if (group) return absl::StrCat(owner, ": got wire type start-group");
      WireFormatLite::SkipField(&input, tag);
      continue;
    }
    const std::string here = Dotted(path, field->name());
    const bool packed = field->is_packable() && wire_type == kLength;
    if (!packed && wire_type != WireTypeOf(*field)) return absl::StrCat(here, ": got wire type");
    const int index = seen[number]++;
    if (!field->is_repeated() && index > 0) return absl::StrCat(here, ": got it more than once");
    if (const OneofDescriptor* const oneof = field->real_containing_oneof(); oneof != nullptr) {
      const FieldDescriptor* const other = std::exchange(members[oneof], field);
      if (other != nullptr) {
        return absl::StrCat(owner, ": got ", other->name(), " and ", field->name());
      }
    }
    if (field->options().GetExtension(v1::planned) && !skips_unknown_fields) {
      return absl::StrCat(here, ": got a value, want it unset");
    }
    if (field->type() != FieldDescriptor::TYPE_MESSAGE) {
      WireFormatLite::SkipField(&input, tag);
      continue;
    }
    uint32_t length = 0;
    input.ReadVarint32(&length);
    const std::string_view nested =
        bytes.substr(static_cast<size_t>(input.CurrentPosition()), length);
    input.Skip(static_cast<int>(length));
    const std::string inside = field->is_repeated() ? absl::StrCat(here, "[", index, "]") : here;
    std::string reason = Reason(*field->message_type(), nested, skips_unknown_fields, inside);
    if (!reason.empty()) return reason;
  }
  return "";
}

}  // namespace

std::unique_ptr<Message> WireWriter::RandomMessage(const Message& prototype) {
  std::unique_ptr<Message> message(prototype.New());
  Fill(*message, 0);
  return message;
}

void WireWriter::Fill(Message& message, int depth) {
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool planned = field.options().GetExtension(v1::planned);
    if (planned ? !OneIn(50) : !OneIn(3)) continue;
    const uint64_t count = field.is_repeated() ? 1 + Below(4) : 1;
    for (uint64_t n = 0; n < count; ++n) SetField(field, message, depth);
  }
}

void WireWriter::SetField(const FieldDescriptor& field, Message& message, int depth) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  const auto set = [&](auto add, auto assign, auto value) {
    repeated ? (reflection.*add)(&message, &field, value)
             : (reflection.*assign)(&message, &field, value);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == kDepthMax) return;
      return Fill(repeated ? *reflection.AddMessage(&message, &field)
                           : *reflection.MutableMessage(&message, &field),
                  depth + 1);
    case FieldDescriptor::CPPTYPE_STRING:
      return set(&Reflection::AddString, &Reflection::SetString, RandomText());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(&Reflection::AddDouble, &Reflection::SetDouble, std::bit_cast<double>(random_()));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(&Reflection::AddFloat, &Reflection::SetFloat,
                 std::bit_cast<float>(static_cast<uint32_t>(random_())));
    case FieldDescriptor::CPPTYPE_INT32:
      return set(&Reflection::AddInt32, &Reflection::SetInt32, static_cast<int32_t>(Integer()));
    case FieldDescriptor::CPPTYPE_INT64:
      return set(&Reflection::AddInt64, &Reflection::SetInt64, Integer());
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(&Reflection::AddUInt32, &Reflection::SetUInt32, static_cast<uint32_t>(Integer()));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(&Reflection::AddUInt64, &Reflection::SetUInt64, static_cast<uint64_t>(Integer()));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set(&Reflection::AddBool, &Reflection::SetBool, OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(&Reflection::AddEnumValue, &Reflection::SetEnumValue, static_cast<int>(Below(5)));
  }
}

std::string WireWriter::RandomText() {
  constexpr const char* kWords[] = {"", "q", "BSHD", "\u00e9", "\u65e5\u672c", "{\"a\": 1}"};
  std::string text = kWords[Below(std::size(kWords))];
  if (OneIn(8)) text.append(Below(300), 'x');  // a length of two bytes
  return text;
}

std::string WireWriter::Varint(uint64_t value, size_t bytes_max) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  if (!OneIn(16)) return out;
  const size_t longer = Below(bytes_max - out.size() + 1);
  for (size_t i = 0; i < longer; ++i) {
    out.back() = static_cast<char>(static_cast<uint8_t>(out.back()) | 0x80);
    out.push_back('\0');
  }
  return out;
}

std::string WireWriter::Tag(int number, int type) {
  constexpr size_t kBytesMax = 5;
  return Varint(static_cast<uint64_t>(number) << 3 | static_cast<uint64_t>(type), kBytesMax);
}

std::string WireWriter::Delimited(int number, const std::string& value) {
  constexpr size_t kLengthBytesMax = 5;
  return Tag(number, kLength) + Varint(value.size(), kLengthBytesMax) + value;
}

std::string WireWriter::Number(const FieldDescriptor& field, const Message& message, int index) {
  constexpr size_t kBytesMax = 10;
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    return Bytes(repeated ? reflection.GetRepeatedDouble(message, &field, index)
                          : reflection.GetDouble(message, &field));
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
    return Bytes(repeated ? reflection.GetRepeatedFloat(message, &field, index)
                          : reflection.GetFloat(message, &field));
  }
  return Varint(VarintValue(field, message, index), kBytesMax);
}

// Encodes runs of elements: some packed, some one by one.
void WireWriter::WriteNumbers(const FieldDescriptor& field, const Message& message,
                              std::vector<std::string>& pieces) {
  const int count = message.GetReflection()->FieldSize(message, &field);
  std::string run;
  for (int i = 0; i < count;) {
    const int end = i + 1 + static_cast<int>(Below(static_cast<uint64_t>(count - i)));
    if (OneIn(2)) {
      std::string packed;
      for (; i < end; ++i) packed += Number(field, message, i);
      run += Delimited(field.number(), packed);
    } else {
      for (; i < end; ++i) {
        run += Tag(field.number(), WireTypeOf(field)) + Number(field, message, i);
      }
    }
  }
  pieces.push_back(run);
}

void WireWriter::WriteField(const FieldDescriptor& field, const Message& message, bool flawed,
                            std::vector<std::string>& pieces) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  if (repeated && field.is_packable()) return WriteNumbers(field, message, pieces);
  const int count = repeated ? reflection.FieldSize(message, &field) : 1;
  std::string run;  // elements keep their order
  for (int i = 0; i < count; ++i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const Message& nested = repeated ? reflection.GetRepeatedMessage(message, &field, i)
                                       : reflection.GetMessage(message, &field);
      run += Delimited(field.number(), Write(nested, flawed));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      run += Delimited(field.number(), Text(field, message, i));
    } else {
      run += Tag(field.number(), WireTypeOf(field)) + Number(field, message, i);
    }
  }
  pieces.push_back(run);
}

void WireWriter::AddFlaw(const Descriptor& type, std::vector<std::string>& pieces) {
  constexpr int kVarint = WireFormatLite::WIRETYPE_VARINT;
  constexpr size_t kBytesMax = 10;
  const auto fields = static_cast<uint64_t>(type.field_count());
  const int known = fields == 0 ? 1 : type.field(static_cast<int>(Below(fields)))->number();
  const int other = 16 + static_cast<int>(Below(1u << Below(29)));
  switch (Below(6)) {
    case 0:
      if (!pieces.empty()) pieces.push_back(pieces[Below(pieces.size())]);
      return;
    case 1:
      return pieces.push_back(Delimited(known, RandomText()));
    case 2:
      return pieces.push_back(Tag(known, kVarint) + Varint(random_() >> Below(64), kBytesMax));
    case 3:
      return pieces.push_back(Delimited(other, RandomText()));
    case 4:
      return pieces.push_back(Tag(other, kVarint) + Varint(random_() >> Below(64), kBytesMax));
    default:
      return pieces.push_back(Tag(other, WireFormatLite::WIRETYPE_START_GROUP) +
                              Tag(other, WireFormatLite::WIRETYPE_END_GROUP));
  }
}

std::string WireWriter::Write(const Message& message, bool flawed) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::vector<std::string> pieces;
  for (const FieldDescriptor* field : fields) WriteField(*field, message, flawed, pieces);
  if (flawed && OneIn(10)) AddFlaw(*message.GetDescriptor(), pieces);
  std::shuffle(pieces.begin(), pieces.end(), random_);
  std::string bytes;
  for (const std::string& piece : pieces) bytes += piece;
  return bytes;
}

std::string ReasonToRefuse(const Descriptor& type, std::string_view bytes,
                           bool skips_unknown_fields) {
  return Reason(type, bytes, skips_unknown_fields, "");
}

void CollectArrays(google::protobuf::Message& message, std::vector<v1::Array*>& arrays) {
  if (message.GetDescriptor() == v1::Array::descriptor()) {
    arrays.push_back(static_cast<v1::Array*>(&message));
    return;
  }
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      CollectArrays(*reflection.MutableMessage(&message, field), arrays);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      CollectArrays(*reflection.MutableRepeatedMessage(&message, field, i), arrays);
    }
  }
}

}  // namespace rope::testing
