#include "proto/wire/message_split.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/mutex.h"
#include "proto/wire/message_join.h"
#include "rope/v1/options.pb.h"

namespace rope::proto {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

WireType WireTypeOf(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return WireType::kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return WireType::kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return WireType::kLength;
    default:
      return WireType::kVarint;
  }
}

}  // namespace

// All schemas, by message type. Schemas may refer to each other, so they are built under one lock.
class SchemaRegistry {
 public:
  const Schema& Of(const Descriptor* descriptor) {
    proto::MutexLock lock(&mutex_);
    return Build(descriptor);
  }

 private:
  const Schema& Build(const Descriptor* descriptor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto [entry, is_new] = schemas_.try_emplace(descriptor);
    Schema& schema = entry->second;
    if (!is_new) return schema;
    schema.full_name_ = descriptor->full_name();
    schema.fields_.reserve(static_cast<size_t>(descriptor->field_count()));
    for (int i = 0; i < descriptor->field_count(); ++i) {
      schema.fields_.push_back(Field(*descriptor->field(i)));
    }
    for (const FieldSchema& field : schema.fields_) {
      if (schema.by_number_.size() <= field.number) schema.by_number_.resize(field.number + 1);
      schema.by_number_[field.number] = &field;
    }
    return schema;
  }

  FieldSchema Field(const FieldDescriptor& field) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    FieldSchema result;
    result.number = static_cast<uint32_t>(field.number());
    result.name = field.name();
    result.wire_type = WireTypeOf(field);
    result.repeated = field.is_repeated();
    result.packable = field.is_packable();
    const auto* const oneof = field.real_containing_oneof();
    if (oneof != nullptr) result.oneof = oneof->index();
    result.planned = field.options().GetExtension(v1::planned);
    result.payload = field.containing_type() == v1::Array::descriptor() &&
                     field.number() == v1::Array::kRawFieldNumber;
    if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
      result.message = &Build(field.message_type());
    }
    return result;
  }

  proto::Mutex mutex_;
  std::map<const Descriptor*, Schema> schemas_ ABSL_GUARDED_BY(mutex_);  // never moves a schema
};

const Schema& Schema::Of(const Descriptor* descriptor) {
  static SchemaRegistry registry;
  return registry.Of(descriptor);
}

namespace {

constexpr int kDepthMax = 16;
constexpr int64_t kFirstBytes = 512;  // initial capacity; enough for a small message's skeleton

void AppendTag(uint32_t number, WireType type, std::string& out) {
  AppendVarint(uint64_t{number} << 3 | static_cast<uint32_t>(type), out);
}

// Path from the root to the message being read. A linked list on the stack: a string is built only
// for an error.
struct Path {
  const Path* parent = nullptr;
  absl::string_view name;
  int64_t index = -1;  // in a repeated field; -1: singular

  std::string ToString() const {
    std::string prefix = parent == nullptr ? "" : parent->ToString();
    if (name.empty()) return prefix;
    if (!prefix.empty()) prefix += ".";
    return index < 0 ? absl::StrCat(prefix, name) : absl::StrCat(prefix, name, "[", index, "]");
  }
};

absl::string_view WireTypeName(uint32_t type) {
  constexpr absl::string_view kNames[] = {
      "varint", "64-bit", "length-delimited", "start-group", "end-group", "32-bit", "6", "7"};
  return kNames[type & 7];
}

// False for groups, which proto3 does not have, and for numbers that name no type.
bool IsWireType(uint32_t type) {
  return type <= static_cast<uint32_t>(WireType::kLength) ||
         type == static_cast<uint32_t>(WireType::kFixed32);
}

// Recursive descent over the wire, one level per nested message. Every field passes through Field,
// which checks it against the schema and then appends it to the skeleton `out`:
//
//   Message -> Field -> Scalar                copied
//                    -> Delimited -> bytes    copied
//                                 -> Payload  replaced by its index
//                                 -> Message  one level deeper
//                    -> Unknown               refused or skipped
//
// `end` is the position at which the current message ends. No lock, no state outside the object.
class Splitter {
 public:
  Splitter(absl::Span<const std::string_view> fragments, const SplitOptions& options)
      : cursor_(fragments), options_(options) {}

  absl::StatusOr<SplitMessage> Run(const Schema& schema) {
    SplitMessage result;
    payloads_ = &result.payloads;
    result.skeleton.reserve(static_cast<size_t>(std::min(cursor_.size(), kFirstBytes)));
    ROPE_RETURN_IF_ERROR(Message(schema, cursor_.size(), Path(), 0, result.skeleton));
    return result;
  }

 private:
  // How often each field of one message has occurred. Finds singular fields given twice and two
  // members of one oneof, and gives each element of a repeated field its index.
  struct Seen {
    // Returns the other member of `field`'s oneof that has occurred before; null if there is none.
    const FieldSchema* OtherMember(const FieldSchema& field) {
      const auto index = static_cast<size_t>(field.oneof);
      if (members.size() <= index) members.resize(index + 1);
      return std::exchange(members[index], &field);
    }

    int64_t Next(uint32_t number) {
      if (counts.size() <= number) counts.resize(number + 1);
      return counts[number]++;
    }
    absl::InlinedVector<int64_t, 24> counts;
    absl::InlinedVector<const FieldSchema*, 1> members;  // by oneof
  };

  absl::Status Message(const Schema& schema, int64_t end, const Path& path, int depth,
                       std::string& out) {
    if (depth > kDepthMax) {
      return InvalidField(path.ToString(),
                          absl::StrCat("a message nested more than ", kDepthMax, " deep"), "less");
    }
    Seen seen;
    while (cursor_.position() < end) {
      ROPE_ASSIGN_OR_RETURN(const uint32_t tag, cursor_.ReadTag());
      if (++fields_ > options_.fields_max) return TooManyFields();
      ROPE_RETURN_IF_ERROR(Field(schema, tag, end, path, depth, seen, out));
      if (static_cast<int64_t>(out.size()) > options_.skeleton_bytes_max) return TooLarge();
    }
    if (cursor_.position() == end) return absl::OkStatus();
    return Malformed(path, "a field that ends past its message", "fields within it");
  }

  absl::Status Field(const Schema& schema, uint32_t tag, int64_t end, const Path& path, int depth,
                     Seen& seen, std::string& out) {
    const uint32_t number = tag >> 3;
    const uint32_t type = tag & 7;
    if (number == 0) return Malformed(path, "field number 0", "1 to 2^29 - 1");
    const FieldSchema* field = schema.Find(number);
    if (field == nullptr) return Unknown(schema, number, type, path);
    const Path here{&path, field->name, -1};
    const bool packed = field->packable && type == static_cast<uint32_t>(WireType::kLength);
    if (!packed && type != static_cast<uint32_t>(field->wire_type)) {
      return Malformed(here, absl::StrCat("wire type ", WireTypeName(type)),
                       WireTypeName(static_cast<uint32_t>(field->wire_type)));
    }
    const int64_t index = seen.Next(field->number);
    if (!field->repeated && index > 0) return Malformed(here, "it more than once", "it once");
    if (field->oneof >= 0) {
      const FieldSchema* const other = seen.OtherMember(*field);
      if (other != nullptr) return TwoMembers(schema, *other, *field, path);
    }
    if (field->planned && options_.unknown_fields == UnknownFields::kRefuse) {
      return MakeError(Reason::kNotBuilt, here.ToString(), "a value", "it unset: not built yet");
    }
    if (field->message != nullptr && index >= options_.repeated_messages_max) {
      return MakeError(Reason::kLimitExceeded, here.ToString(),
                       absl::StrCat("more than ", options_.repeated_messages_max, " elements"),
                       "at most that many");
    }
    if (type != static_cast<uint32_t>(WireType::kLength)) return Scalar(*field, out);
    return Delimited(*field, end, Path{&path, field->name, field->repeated ? index : -1}, depth,
                     out);
  }

  // Appends a varint or fixed-size value. A varint is encoded again, in its shortest form.
  absl::Status Scalar(const FieldSchema& field, std::string& out) {
    AppendTag(field.number, field.wire_type, out);
    if (field.wire_type == WireType::kFixed64) return cursor_.ReadBytes(8, out);
    if (field.wire_type == WireType::kFixed32) return cursor_.ReadBytes(4, out);
    ROPE_ASSIGN_OR_RETURN(const uint64_t value, cursor_.ReadVarint());
    AppendVarint(value, out);
    return absl::OkStatus();
  }

  // Appends a string, packed numbers, a payload or a nested message. The length is checked against
  // the bytes left in the enclosing message before anything is read or allocated.
  absl::Status Delimited(const FieldSchema& field, int64_t end, const Path& path, int depth,
                         std::string& out) {
    ROPE_ASSIGN_OR_RETURN(const int64_t bytes, cursor_.ReadLength());
    const int64_t left = end - cursor_.position();
    if (bytes > left) {
      return Malformed(path, absl::StrCat("a length of ", bytes, " bytes"),
                       absl::StrCat("at most ", std::max<int64_t>(left, 0)));
    }
    AppendTag(field.number, WireType::kLength, out);
    if (field.payload) return Payload(bytes, out);
    if (field.message == nullptr) {
      if (bytes > options_.skeleton_bytes_max) return TooLarge();
      AppendVarint(static_cast<uint64_t>(bytes), out);
      return cursor_.ReadBytes(bytes, out);
    }
    const size_t begin = out.size();
    const int64_t nested_end = cursor_.position() + bytes;
    ROPE_RETURN_IF_ERROR(Message(*field.message, nested_end, path, depth + 1, out));
    // The length precedes the message, but is known only now: the skeleton of a nested message is
    // shorter than its bytes on the wire.
    std::string length_bytes;
    AppendVarint(out.size() - begin, length_bytes);
    out.insert(begin, length_bytes);
    return absl::OkStatus();
  }

  // Leaves the bytes where they are. The skeleton gets a `raw` of 4 bytes: the payload's index.
  absl::Status Payload(int64_t bytes, std::string& out) {
    const auto index = static_cast<uint32_t>(payloads_->size());
    ROPE_ASSIGN_OR_RETURN(payloads_->emplace_back(), cursor_.ReadView(bytes));
    AppendVarint(sizeof(index), out);
    out.append(reinterpret_cast<const char*>(&index), sizeof(index));
    return absl::OkStatus();
  }

  absl::Status Unknown(const Schema& schema, uint32_t number, uint32_t type, const Path& path) {
    if (options_.unknown_fields == UnknownFields::kRefuse) {
      const std::string message = path.ToString();
      return MakeError(Reason::kUnknownField, message.empty() ? "request" : message,
                       absl::StrCat("unknown field number ", number),
                       absl::StrCat("a field of ", schema.full_name()));
    }
    if (!IsWireType(type)) {
      return Malformed(path, absl::StrCat("wire type ", WireTypeName(type)), "no groups");
    }
    return cursor_.SkipField(static_cast<WireType>(type));
  }

  absl::Status TooLarge() const {
    return MakeError(
        Reason::kLimitExceeded, "request",
        absl::StrCat("more than ", options_.skeleton_bytes_max, " bytes outside raw payloads"),
        "fewer: send arrays as raw");
  }

  absl::Status TooManyFields() const {
    return MakeError(Reason::kLimitExceeded, "request",
                     absl::StrCat("more than ", options_.fields_max, " fields"),
                     "fewer: send numbers packed, or arrays as raw");
  }

  static absl::Status TwoMembers(const Schema& schema, const FieldSchema& first,
                                 const FieldSchema& second, const Path& path) {
    std::vector<absl::string_view> names;
    for (const FieldSchema& field : schema.fields()) {
      if (field.oneof == second.oneof) names.push_back(field.name);
    }
    return Malformed(path, absl::StrCat(first.name, " and ", second.name),
                     absl::StrCat("exactly one of ", absl::StrJoin(names, ", ")));
  }

  static absl::Status Malformed(const Path& path, absl::string_view got, absl::string_view want) {
    const std::string field = path.ToString();
    return InvalidField(field.empty() ? "request" : field, got, want);
  }

  WireCursor cursor_;
  SplitOptions options_;
  std::vector<FragmentedBytes>* payloads_ = nullptr;
  int64_t fields_ = 0;  // read so far
};

}  // namespace

absl::StatusOr<SplitMessage> Split(const Schema& schema,
                                   absl::Span<const std::string_view> fragments,
                                   const SplitOptions& options) {
  return Splitter(fragments, options).Run(schema);
}

const FragmentedBytes& PayloadOf(const v1::Array& array, const SplitMessage& message) {
  uint32_t index = 0;
  std::memcpy(&index, array.raw().data(), sizeof(index));
  return message.payloads[index];
}

void SetPayload(std::string_view bytes, v1::Array& array, SplitMessage& message) {
  const auto index = static_cast<uint32_t>(message.payloads.size());
  message.payloads.push_back({.fragments = {bytes}, .bytes = static_cast<int64_t>(bytes.size())});
  array.set_raw(&index, sizeof(index));
}

}  // namespace rope::proto
