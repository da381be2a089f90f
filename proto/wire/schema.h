// Schema: the properties of a message type that the strict decoder checks. Built once per type.
//
// Threading:  Immutable; usable from any thread.
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
  bool packable = false;            // repeated numbers, also legal as one length-delimited field
  bool planned = false;             // has the option (rope.v1.planned)
  bool payload = false;             // is rope.v1.Array.raw
  int oneof = -1;                   // index of its oneof in the message; -1: in none
  const Schema* message = nullptr;  // of a message field; else null
};

class Schema {
 public:
  // The schema of `descriptor`. Built on first use, together with those of all message types below
  // it, and kept for the life of the process.
  static const Schema& Of(const google::protobuf::Descriptor* descriptor);

  // The field with this number; null if there is none.
  const FieldSchema* Find(uint32_t number) const {
    return number < by_number_.size() ? by_number_[number] : nullptr;
  }
  const std::string& full_name() const { return full_name_; }
  const std::vector<FieldSchema>& fields() const { return fields_; }

 private:
  friend class SchemaRegistry;
  Schema() = default;

  std::string full_name_;
  std::vector<FieldSchema> fields_;
  std::vector<const FieldSchema*> by_number_;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_SCHEMA_H_
