// Schema: what the strict decoder needs to know of a message type, looked up once per type.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_PROTO_WIRE_SCHEMA_H_
#define ROPE_PROTO_WIRE_SCHEMA_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/wire/wire_cursor.h"

namespace rope::proto {

class Schema;

struct FieldSchema {
  uint32_t number = 0;
  absl::string_view name;
  WireType wire_type = WireType::kVarint;  // of one element
  bool repeated = false;
  bool packable = false;            // a repeated number: also legal as one length-delimited run
  bool planned = false;             // marked (rope.v1.planned)
  bool payload = false;             // rope.v1.Array.raw
  const Schema* message = nullptr;  // of a message field
};

class Schema {
 public:
  // The schema of `descriptor` and of every message below it; made once and kept for the life of
  // the process.
  static const Schema& Of(const google::protobuf::Descriptor* descriptor);

  // The field with this number, or null.
  const FieldSchema* Find(uint32_t number) const {
    return number < by_number_.size() ? by_number_[number] : nullptr;
  }
  const std::string& full_name() const { return full_name_; }

 private:
  friend class SchemaRegistry;
  Schema() = default;

  std::string full_name_;
  std::vector<FieldSchema> fields_;
  std::vector<const FieldSchema*> by_number_;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_SCHEMA_H_
