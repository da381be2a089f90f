#include "proto/wire/schema.h"

#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "proto/mutex.h"
#include "rope/v1/array.pb.h"
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
    auto [entry, is_new] = schemas_.try_emplace(descriptor, nullptr);
    if (!is_new) return *entry->second;
    schemas_storage_.push_back(Schema());
    Schema& schema = schemas_storage_.back();
    entry->second = &schema;
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
  absl::flat_hash_map<const Descriptor*, const Schema*> schemas_ ABSL_GUARDED_BY(mutex_);
  std::deque<Schema> schemas_storage_ ABSL_GUARDED_BY(mutex_);  // a deque keeps addresses stable
};

const Schema& Schema::Of(const Descriptor* descriptor) {
  static SchemaRegistry registry;
  return registry.Of(descriptor);
}

}  // namespace rope::proto
